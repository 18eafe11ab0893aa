"""Every kernel, with every launch configuration of its table, compiled for sm_90 without a GPU: no spills, wide
loads, no fp64 arithmetic.

This catches what the interpreter cannot: register pressure, lost vectorisation, a scalar that arrives as fp64 and
promotes a row.
"""

import importlib.util

import pytest

from tests.kernels.compile_only import compile_for_hopper

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def check(kernel, types, constants, warps, *, shared_limit=232_448, load_bytes=16, double="fp32"):
    compiled = compile_for_hopper(kernel, types, constants, warps, float_type=double)
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


def forward_constants(config, block, **flags):
    base = (
        dict.fromkeys(("HAS_RESIDUAL", "HAS_BIAS", "HAS_DROPOUT", "STORE_STREAM", "ROUND"), False)
        | {"RMS": True}
        | flags
    )
    return base | {"RELOAD": config.reload, "ROWS": config.rows, "BLOCK": block, "STAGES": config.stages}


def table(name):
    from kernels import norms_config

    return [(width, config) for width, config in getattr(norms_config, name) if width <= norms_config.PERSISTENT_WIDTH]


@pytest.mark.parametrize("index", range(7))
def test_norm_forward(index):
    from kernels.norms_kernels import norm_forward_kernel

    width, config = table("PLAIN_FORWARD_TABLE")[index]
    check(norm_forward_kernel, norm_types(), forward_constants(config, width), config.warps)
    width, config = table("FORWARD_TABLE")[index]
    full = {"HAS_RESIDUAL": True, "HAS_DROPOUT": True, "STORE_STREAM": True}
    check(norm_forward_kernel, norm_types(stream="fp32"), forward_constants(config, width, **full), config.warps)
    width, config = table("LAYER_FORWARD_TABLE")[index]
    check(norm_forward_kernel, norm_types(), forward_constants(config, width, RMS=False, HAS_BIAS=True), config.warps)


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
    from kernels.norms_kernels import sum_partials_kernel
    from kernels.norms_wide import norm_columns_kernel, norm_wide_backward_kernel, norm_wide_forward_kernel

    flags = dict.fromkeys(("HAS_RESIDUAL", "HAS_BIAS", "HAS_DROPOUT", "STORE_STREAM"), True) | {
        "RMS": False,
        "ROUND": False,
        "BLOCK": 4096,
    }
    check(norm_wide_forward_kernel, norm_types(), flags, 8)
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
    for kernel in (kernels.row_statistics_kernel, kernels.row_max_kernel, kernels.exp_target_kernel):
        check(kernel, types, {"BLOCK": CONFIG.block}, CONFIG.warps)


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
    from kernels.norms_kernels import norm_forward_kernel

    full = {"HAS_RESIDUAL": True, "HAS_DROPOUT": True, "STORE_STREAM": True}
    check(norm_forward_kernel, norm_types(), forward_constants(ForwardConfig(1, 8), 4096, **full), 8, double="fp64")
    flags = {"GIVEN": False, "GRADIENT": True, "HAS_WEIGHT": True, "BLOCK": 2048}
    check(cross_entropy_kernel, {"logits": "bf16", "out": "bf16", "target": "i64"}, flags, 8, double="fp64")
    flags = dict.fromkeys(("HAS_MASK", "HAS_SCALE", "HAS_INF"), False) | {"HAS_COPY": True, "BLOCK": MASK_BLOCK}
    check(adamw_kernel, {"g": "bf16", "copy": "bf16"}, flags, 4, double="fp64")


def test_a_spill_and_a_promotion_would_be_seen():
    """The two assertions can fail: a row held by too few threads spills, an unpinned fp64 scalar shows as f64
    arithmetic."""
    from kernels.norms_config import ForwardConfig
    from kernels.norms_kernels import norm_forward_kernel
    from tests.kernels.unpinned import scaled_kernel

    with pytest.raises(AssertionError, match="spills"):
        check(norm_forward_kernel, norm_types(), forward_constants(ForwardConfig(1, 4), 65536), 4)
    with pytest.raises(AssertionError):
        check(scaled_kernel, {"x": "bf16", "y": "bf16"}, {"BLOCK": 1024}, 4, double="fp64")
