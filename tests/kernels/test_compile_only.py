"""Every kernel, with every launch configuration of its table, compiled for sm_90 without a GPU: no spills, wide
loads, no fp64 arithmetic.

This catches what the interpreter cannot: register pressure, lost vectorisation, a scalar that arrives as fp64 and
promotes a row.
"""

import importlib.util

import pytest

from tests.kernels.compile_only import compile_for_hopper

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def check(kernel, types, constants, warps, *, shared_limit=232_448, load_bytes=16, double="fp32", aligned=()):
    compiled = compile_for_hopper(kernel, types, constants, warps, float_type=double, aligned=aligned)
    assert compiled.stack_bytes == 0, f"spills {compiled.stack_bytes} bytes at {compiled.registers} registers"
    assert compiled.shared_bytes <= shared_limit
    assert compiled.widest_load_bytes >= load_bytes
    assert not compiled.double_arithmetic
    return compiled


def norm_types(x="bf16", stream="bf16", weight="bf16"):
    both = dict.fromkeys(("x", "y", "dy", "dx"), x) | dict.fromkeys(
        ("residual", "stream", "dstream", "dresidual"), stream
    )
    return both | {"weight": weight, "bias": weight}


def table(name):
    from kernels import norms_config

    return [(width, config) for width, config in getattr(norms_config, name)]


def forward(width, config, *, rms=True, has_residual=False, has_bias=False, has_dropout=False):
    """(kernel, constants, warps) of the launch of 512 rows."""
    import torch

    from kernels.norms_launch import forward_form

    flags = has_residual, has_bias, has_dropout, False
    launch = forward_form(rms, 512, width, *flags, torch.device("cpu"), config)
    constants = dict(launch.constants)
    return launch.kernel, constants, constants.pop("num_warps")


FULL = {"has_residual": True, "has_dropout": True}


@pytest.mark.parametrize(
    ("name", "stream", "flags"),
    [
        ("FORWARD_TABLE", "bf16", {}),
        ("FORWARD_TABLE", "fp32", FULL),
        ("LAYER_FORWARD_TABLE", "bf16", {"rms": False, "has_bias": True}),
        ("LAYER_FORWARD_TABLE", "fp32", FULL | {"rms": False, "has_bias": True}),
    ],
)
def test_norm_forward(name, stream, flags):
    for width, config in table(name):
        kernel, constants, warps = forward(width, config, **flags)
        check(kernel, norm_types(stream=stream), constants, warps)


def backward_constants(config, block, stages=None, **flags):
    base = dict.fromkeys(("HAS_BIAS", "HAS_DSTREAM", "SPLIT", "HAS_DROPOUT", "ROUND"), False) | {
        "RMS": True,
        "WEIGHT_GRADIENT": True,
    }
    sizes = {
        "RELOAD": config.reload,
        "ROWS": config.rows,
        "BLOCK": block,
        "STAGES": stages or config.stages,
        "EXACT": True,
    }
    return base | flags | sizes


@pytest.mark.parametrize("index", range(7))
def test_norm_backward(index):
    from kernels.norms_kernels import norm_backward_kernel

    width, config = table("BACKWARD_TABLE")[index]
    residents = 232_448 // config.per_processor  # the programs of one multiprocessor share its memory
    check(norm_backward_kernel, norm_types(), backward_constants(config, width), config.warps, shared_limit=residents)
    stages = 1 if width > 8192 else None
    check(
        norm_backward_kernel,
        norm_types(),
        backward_constants(config, width, stages, HAS_DSTREAM=True),
        config.warps,
        shared_limit=residents,
    )
    if width <= 8192:
        layer = {"RMS": False, "HAS_BIAS": True, "HAS_DSTREAM": True, "SPLIT": True, "HAS_DROPOUT": True}
        check(
            norm_backward_kernel,
            norm_types(),
            backward_constants(config, width, **layer),
            config.warps,
            shared_limit=residents,
        )


def test_wide_norms_and_reductions():
    from kernels.norms_config import ForwardConfig
    from kernels.norms_kernels import sum_partials_kernel
    from kernels.norms_wide import norm_columns_kernel, norm_wide_backward_kernel

    kernel, constants, warps = forward(16384 + 4096, ForwardConfig(1, 8, loop=4096), rms=False, has_bias=True, **FULL)
    check(kernel, norm_types(), constants, warps)
    flags = dict.fromkeys(("HAS_DSTREAM", "SPLIT", "HAS_DROPOUT"), True) | {"RMS": False, "BLOCK": 4096}
    check(norm_wide_backward_kernel, norm_types(), flags, 8)
    flags = {"RMS": False, "WEIGHT_GRADIENT": True, "HAS_BIAS": True, "ROUND": False, "ROWS": 16, "BLOCK": 256}
    check(norm_columns_kernel, norm_types(), flags, 4)
    check(sum_partials_kernel, {}, {"ACCUMULATE": True, "ROWS": 64, "BLOCK": 32}, 4)


def test_activations():
    from kernels import activations as a

    bf16 = dict.fromkeys(("gate", "up", "h", "dh", "dgate", "dup", "x", "bias", "dx"), "bf16")
    check(a.swiglu_forward_kernel, bf16, {"BLOCK": a.BLOCK}, a.WARPS)
    check(a.swiglu_backward_kernel, bf16, {"HAS_H": True, "BLOCK": a.BLOCK}, a.WARPS)
    for tanh in (True, False):
        flags = {"HAS_BIAS": True, "TANH": tanh, "BLOCK": a.BLOCK}
        check(a.gelu_forward_kernel, bf16, flags, a.GELU_FORWARD_WARPS)
        check(a.gelu_backward_kernel, bf16, flags | {"ROWS": 2, "HAS_H": True}, a.WARPS)


def test_residual():
    from kernels import residual as r

    types = dict.fromkeys(("residual", "z", "bias", "out", "d", "dz"), "bf16") | {"token": "i64", "key": "i64"}
    flags = {"HAS_BIAS": True, "HAS_DROPOUT": True, "BLOCK": r.BLOCK}
    check(r.residual_forward_kernel, types, flags, r.WARPS)
    check(r.residual_backward_kernel, types, flags | {"ROWS": r.ROWS}, r.WARPS)


@pytest.mark.parametrize("dim", [64, 128])
def test_rotary(dim):
    from kernels import rotary

    flags = {"BACKWARD": True, "HEADS": rotary.HEADS_PER_TILE, "HALF": dim // 2}
    check(rotary.rotary_kernel, dict.fromkeys(("q", "k", "qo", "ko"), "bf16"), flags, rotary.WARPS)


@pytest.mark.parametrize("logits", ["bf16", "fp32"])
def test_cross_entropy(logits):
    from kernels import crossentropy_kernels as kernels
    from kernels.crossentropy import CONFIG

    types = {"logits": logits, "out": logits, "target": "i64"}
    flags = {"GIVEN": False, "GRADIENT": True, "HAS_WEIGHT": True, "BLOCK": CONFIG.block}
    check(kernels.cross_entropy_kernel, types, flags, CONFIG.warps)
    for kernel in (kernels.row_max_kernel, kernels.exp_target_kernel):
        check(kernel, types, {"BLOCK": CONFIG.block}, CONFIG.warps)


@pytest.mark.parametrize("logits", ["bf16", "fp32"])
def test_cross_entropy_of_columns(logits):  # rows come in lines of 16
    from kernels import crossentropy_columns as c

    types = {"logits": logits, "target": "i64"}
    for kernel, tiles in ((c.columns_statistics_kernel, c.STATISTICS), (c.columns_gradient_kernel, c.GRADIENT)):
        constants = {"TILES": tiles.tiles, "ROWS": tiles.rows, "WORDS": tiles.words, "STAGES": tiles.stages}
        check(kernel, types, constants, tiles.warps, aligned=("rows",))
    once = {"ROWS": c.JOINED_ROWS}
    check(c.join_columns_kernel, types, once | {"SPANS": 16}, 2, aligned=("rows",), load_bytes=4)
    check(c.take_targets_kernel, types, once, 2, load_bytes=2)
    check(c.put_targets_kernel, types, once, 2, load_bytes=4)


def test_flat_buffers():
    from kernels import adamw, checksum, delta, onebit

    flags = dict.fromkeys(("HAS_MASK", "HAS_SCALE", "HAS_INF", "HAS_COPY"), True) | {"BLOCK": adamw.MASK_BLOCK}
    types = {"g": "bf16", "copy": "bf16", "mask": "u8", "code": "u8", "n": "i64"}
    check(adamw.adamw_kernel, types, flags, adamw.WARPS)
    check(onebit.abs_sum_kernel, {}, {"BLOCK": onebit.BLOCK}, 8)
    check(onebit.pack_kernel, {"bits": "u8"}, {"BYTES": onebit.BLOCK // 8}, 8)
    check(onebit.unpack_kernel, {"bits": "u8"}, {"BYTES": onebit.BLOCK // 8}, 8, load_bytes=1)
    check(checksum.checksum_kernel, {"words": "i32", "partial": "i64"}, {"BLOCK": checksum.BLOCK}, 8)
    check(
        delta.delta_pack_kernel, {"new": "i16", "base": "i16", "planes": "u8"}, {"PLANES": 2, "BLOCK": delta.BLOCK}, 8
    )


def test_scalars_typed_fp64_do_not_promote():  # bug 14: a compiled graph passes Python floats as fp64
    from kernels.adamw import MASK_BLOCK, adamw_kernel
    from kernels.crossentropy_kernels import cross_entropy_kernel
    from kernels.norms_config import ForwardConfig

    kernel, constants, warps = forward(4096, ForwardConfig(1, 8), **FULL)
    check(kernel, norm_types(), constants, warps, double="fp64")
    flags = {"GIVEN": False, "GRADIENT": True, "HAS_WEIGHT": True, "BLOCK": 2048}
    check(cross_entropy_kernel, {"logits": "bf16", "out": "bf16", "target": "i64"}, flags, 8, double="fp64")
    flags = dict.fromkeys(("HAS_MASK", "HAS_SCALE", "HAS_INF"), False) | {"HAS_COPY": True, "BLOCK": MASK_BLOCK}
    check(adamw_kernel, {"g": "bf16", "copy": "bf16"}, flags, 4, double="fp64")


def test_a_spill_and_a_promotion_would_be_seen():
    """The two assertions can fail: a row held by too few threads spills, an unpinned fp64 scalar shows as f64
    arithmetic."""
    from kernels.norms_config import ForwardConfig
    from tests.kernels.unpinned import scaled_kernel

    kernel, constants, warps = forward(65536, ForwardConfig(1, 4))
    with pytest.raises(AssertionError, match="spills"):
        check(kernel, norm_types(), constants, warps)
    with pytest.raises(AssertionError):
        check(scaled_kernel, {"x": "bf16", "y": "bf16"}, {"BLOCK": 1024}, 4, double="fp64")
