"""Bugs that users of published kernels reported, as tests; those that concern one operator's numbers are marked "bug
n" in its own suite.

 1 int32 offsets · 2 flat buffers past 2³¹ elements · 3 the 65,535 limit of a grid axis · 4 expanded gradients
 (interp_norms) · 5, 6 non-unit and per-row upstream gradients · 7 all ignored · 8 ignored rows in the mean · 9 p → 1
 · 10 targets outside the vocabulary (interp_losses) ·
11 inputs changed · 12 odd sizes (interp_norms, interp_pointwise) · 13 recompilation by length · 14 fp64 scalars
(test_compile_only) · 15 races · 16 dropout masks (interp_norms, interp_flat) · 17 bf16 accumulation (interp_losses) ·
18 types out · 19 empty, NaN, infinity · 20 every flag (all suites) · 21 host cost (tools.bench)
"""

import contextlib
import resource

import pytest
import torch

from kernels import (
    activations,
    adamw,
    checksum,
    crossentropy,
    delta,
    direct,
    norms,
    norms_launch,
    onebit,
    residual,
    rotary,
)
from kernels.crossentropy_columns import cross_entropy_columns
from kernels.norms_config import PERSISTENT_WIDTH
from tests.kernels.fidelity import DEVICE, ON_GPU, randn

FAR = 1_200_000_000


@pytest.fixture(scope="module")
def far():
    """Three rows 1.2·10⁹ elements apart in a buffer whose pages between them are never touched."""
    return torch.empty(2 * FAR + 4096, dtype=torch.bfloat16, device=DEVICE)


def spread(far, width, seed, rows=3):
    view = far.as_strided((rows, width), (FAR, 1), seed * 512)
    view.copy_(randn(rows, width, dtype=torch.bfloat16, seed=seed))
    return view


def same(a, b):
    for x, y in zip(a, b, strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


def test_looped_norms_and_residuals_beyond_int32(far, monkeypatch):  # bug 1
    x, dy, w = spread(far, 96, 0), spread(far, 96, 1), randn(96, dtype=torch.bfloat16)
    near, near_dy = x.clone(), dy.clone()
    loop = norms.ForwardConfig(1, 1, loop=64)
    same(
        norms.norm_forward("layer", x, w, w, eps=1e-5, residual=dy, config=loop),
        norms.norm_forward("layer", near, w, w, eps=1e-5, residual=near_dy, config=loop),
    )
    _, _, rstd, mean = norms.norm_forward("layer", near, w, w, eps=1e-5)
    monkeypatch.setattr(norms_launch, "PERSISTENT_WIDTH", 64)
    direct.forget()
    wide = [
        norms.norm_backward("layer", b, a, w, rstd, mean, has_bias=True, dstream=a)
        for a, b in ((x, dy), (near, near_dy))
    ]
    direct.forget()
    same(*wide)
    same([residual.residual_forward(x, dy, w)], [residual.residual_forward(near, near_dy, w)])
    sums = [torch.zeros(96, device=DEVICE) for _ in range(2)]
    for rows, into in zip((x, near), sums, strict=True):
        residual.residual_backward(rows, into)
    same(sums[:1], sums[1:])


def test_strided_rows_beyond_int32(far):  # bug 1
    x, dy, w = spread(far, 96, 0), spread(far, 96, 1), randn(96, dtype=torch.bfloat16)
    near, near_dy = x.clone(), dy.clone()
    forward = norms.norm_forward("rms", x, w, eps=1e-5, residual=dy)
    same(forward, norms.norm_forward("rms", near, w, eps=1e-5, residual=near_dy))
    rstd = forward[2]
    same(
        norms.norm_backward("rms", dy, x, w, rstd, dstream=x),
        norms.norm_backward("rms", near_dy, near, w, rstd, dstream=near),
    )
    same([activations.swiglu_forward(x, dy)], [activations.swiglu_forward(near, near_dy)])
    out = spread(far, 96, 2)
    activations.swiglu_backward(dy, x, dy, dgate=out)
    same([out], activations.swiglu_backward(near_dy, near, near_dy)[:1])
    same([activations.gelu_forward(x, w)], [activations.gelu_forward(near, w)])
    same(activations.gelu_backward(dy, x, w), activations.gelu_backward(near_dy, near, w))
    target = torch.tensor([1, 95, 3], device=DEVICE)
    same(crossentropy.cross_entropy(x, target), crossentropy.cross_entropy(near, target))
    top = crossentropy.row_max(near)
    same([crossentropy.row_max(x)], [top])
    same(crossentropy.exp_target(x, top, target), crossentropy.exp_target(near, top, target))
    crossentropy.cross_entropy(out, target, in_place=True)
    words, near_words = spread(far, 96, 3), spread(far, 96, 3).clone()
    target = (torch.arange(96, device=DEVICE) % 3).to(torch.int32)
    same([cross_entropy_columns(words, target)], [cross_entropy_columns(near_words, target)])
    same([words], [near_words])
    if not ON_GPU:
        assert (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20
        )  # KiB: the buffer between the rows stayed untouched


def test_wide_rows_and_rotary_beyond_int32(far):  # bug 1, batch and time axes
    w = PERSISTENT_WIDTH + 1
    x = far.as_strided((2, w), (2 * FAR - 20_000, 1))
    x.copy_(randn(2, w, dtype=torch.bfloat16))
    weight = randn(w, dtype=torch.bfloat16)
    if ON_GPU:  # a few seconds in the interpreter, which test_rows_too_wide_for_registers spends already
        same(norms.norm_forward("rms", x, weight, eps=1e-5), norms.norm_forward("rms", x.clone(), weight, eps=1e-5))
    cos, sin = rotary.rotary_table(1, 16, device=DEVICE)
    q = far.as_strided((3, 1, 2, 16), (FAR, 7, 16, 1))
    q.copy_(randn(3, 1, 2, 16, dtype=torch.bfloat16))
    same(rotary.rotary_forward(q, q, cos, sin), rotary.rotary_forward(q.clone(), q.clone(), cos, sin))
    q = far.as_strided((1, 1, 3, 16), (7, 9, FAR, 1))
    q.copy_(randn(1, 1, 3, 16, dtype=torch.bfloat16))
    same(rotary.rotary_forward(q, q, cos, sin), rotary.rotary_forward(q.clone(), q.clone(), cos, sin))
    cos, sin = rotary.rotary_table(3, 16, device=DEVICE)
    q = far.as_strided((1, 3, 2, 16), (7, FAR, 16, 1))
    same(
        rotary.rotary_backward(q, q, cos, sin, q_out=q.clone()), rotary.rotary_backward(q.clone(), q.clone(), cos, sin)
    )


@contextlib.contextmanager
def only_program(number):
    """Runs one program of a grid in the interpreter, as if it were program `number`."""
    import numpy
    from triton.runtime import interpreter
    from triton.runtime.interpreter import TensorHandle

    builder = interpreter.interpreter_builder
    create = type(builder).create_get_program_id
    type(builder).create_get_program_id = lambda self, axis: TensorHandle(
        numpy.array([number], dtype=numpy.int32), interpreter.tl.int32
    )
    try:
        yield
    finally:
        type(builder).create_get_program_id = create


def one_bit_past_two_to_the_31():
    """The last blocks of one chunk of more than 2³¹ elements, and of nine workers' bits."""
    n = 2**31 + 2 * onebit.BLOCK
    blocks, number, last = n // onebit.BLOCK, n // onebit.BLOCK - 1, slice(n - onebit.BLOCK, n)
    x, error, out, partial = (torch.empty(size) for size in (n, n, n, blocks))
    x[last], error[last], scale = -3.0, 1.0, torch.full((9, 1), 1.5)
    bits = torch.empty(9, n // 8, dtype=torch.uint8)
    with only_program(number):
        onebit.abs_sum_kernel[(1,)](x, error, partial, n, blocks, BLOCK=onebit.BLOCK)
        onebit.pack_kernel[(1,)](x, error, scale[0], bits[0], n, blocks, BYTES=onebit.BLOCK // 8)
    assert float(partial[number]) == 2 * onebit.BLOCK
    assert torch.equal(error[last], torch.full((onebit.BLOCK,), -0.5))
    assert not bool(bits[0, -onebit.BLOCK // 8 :].any())
    bits[:, -onebit.BLOCK // 8 :] = 255
    with only_program(number):
        onebit.unpack_kernel[(1,)](bits, scale, out, 9, n, n, 1, blocks, BYTES=onebit.BLOCK // 8)
    assert torch.equal(out[last], torch.full((onebit.BLOCK,), 1.5))


@pytest.mark.skipif(ON_GPU, reason="needs the interpreter; test_flat_buffers_past_int32_on_the_device does it whole")
def test_one_block_past_two_to_the_31():  # bug 2
    n = 2**31 + 2 * adamw.MASK_BLOCK
    block, last = 2**31 // adamw.MASK_BLOCK + 1, slice(2**31 + adamw.MASK_BLOCK, n)
    p, m, v = (torch.empty(n) for _ in range(3))
    g = torch.empty(n, dtype=torch.bfloat16)
    for t in (p, m, v, g):
        t[last] = 1.0
    with only_program(block):
        adamw.adamw_kernel[(1,)](
            p, m, v, g, g, p, p, p, p, n, 0.1, 0.0, 0.9, 0.9, 0.1, 0.1, 1.0, 1e-8,
            HAS_MASK=False, HAS_SCALE=False, HAS_INF=False, HAS_COPY=False, BLOCK=adamw.MASK_BLOCK,
        )  # fmt: skip
    torch.testing.assert_close(p[last], torch.full((adamw.MASK_BLOCK,), 0.9))
    base = g.view(torch.int16)
    planes = torch.empty(2 * n, dtype=torch.uint8)
    first = 2**31 // delta.BLOCK
    held = slice(n + 2**31, n + 2**31 + 2 * adamw.MASK_BLOCK)
    planes[held] = 1
    with only_program(first):
        delta.delta_pack_kernel[(1,)](base, base, planes, n, PLANES=2, BLOCK=delta.BLOCK)
    assert not bool(planes[held].any())
    one_bit_past_two_to_the_31()
    wide = 2**30  # as 32-bit words, n fits an int32 and the fourth plane does not begin inside one
    words, out = (torch.empty(wide, dtype=torch.int32) for _ in range(2))
    planes = torch.empty(4 * wide, dtype=torch.uint8)
    words[: delta.BLOCK] = 0x07060504
    zeros = torch.zeros(delta.BLOCK, dtype=torch.int32)
    with only_program(0):
        delta.delta_pack_kernel[(1,)](words, zeros, planes, wide, PLANES=4, BLOCK=delta.BLOCK)
        delta.delta_unpack_kernel[(1,)](planes, zeros, out, wide, PLANES=4, BLOCK=delta.BLOCK)
    assert bool((planes[3 * wide : 3 * wide + delta.BLOCK] == 7).all())
    assert torch.equal(out[: delta.BLOCK], words[: delta.BLOCK])
    p.view(torch.int32)[2**31 :] = 3
    partial = torch.zeros(2**20 + 1, dtype=torch.int64)
    with only_program(2**31 // checksum.BLOCK):
        checksum.checksum_kernel[(1,)](p.view(torch.int32), partial, n, 0, BLOCK=checksum.BLOCK)
    words = torch.arange(2**31, n)
    assert int(partial[2**31 // checksum.BLOCK]) == int((3 * (2 * words + 1)).sum())


@pytest.mark.gpu
def test_flat_buffers_past_int32_on_the_device():  # bug 2
    n = 2**31 + 4096
    p, m, v = (torch.ones(n, device=DEVICE) for _ in range(3))
    g = torch.ones(n, dtype=torch.bfloat16, device=DEVICE)
    adamw.adamw_step(p, m, v, g, adamw.AdamWStep(0.1, 1))
    assert bool((p[-8:] != 1).all())
    assert bool((p[:8] == p[-8:]).all())
    del m, v
    x = p.to(torch.bfloat16)
    x[-1] = 7
    planes = delta.delta_pack(x, g)
    assert torch.equal(delta.delta_unpack(planes, g)[-8:], x[-8:])
    before = checksum.checksum_int(x)
    x[-2] = 9
    assert checksum.checksum_int(x) != before
    error = torch.zeros(n, device=DEVICE)
    bits, scale = onebit.onebit_pack(p, error)
    assert torch.allclose(onebit.onebit_unpack(bits[None], scale[None])[-8:], scale)


@pytest.fixture
def launches(monkeypatch):
    """Every operator on so many rows: the grid and the constants of each launch, none of which happens."""
    found = []
    monkeypatch.setattr(
        direct, "start", lambda kernel, grid, tensors, numbers, constants: found.append((grid, dict(constants)))
    )

    def run(rows):
        found.clear()
        x, w = torch.zeros(rows, 16, device=DEVICE), torch.zeros(16, device=DEVICE)
        norms.norm_forward("rms", x, w, eps=1e-5)
        norms.norm_backward("rms", x, x, w, torch.zeros(rows, device=DEVICE))
        activations.swiglu_forward(x, x)
        activations.swiglu_backward(x, x, x)
        activations.gelu_forward(x, w)
        activations.gelu_backward(x, x, w)
        cos, sin = rotary.rotary_table(rows, 8, device=DEVICE)
        rotary.rotary_forward(x.view(1, rows, 2, 8), x.view(1, rows, 2, 8), cos, sin)
        crossentropy.cross_entropy(x, torch.zeros(rows, dtype=torch.int64, device=DEVICE))
        return list(found)

    direct.forget()  # a remembered launch with a compiled form would not come by here
    yield run
    direct.forget()


def test_rows_never_meet_the_limit_of_a_grid_axis(launches):  # bug 3
    for rows in (65_537, 70_000, 3_000_000):
        grids = [grid for grid, _ in launches(rows)]
        assert len(grids) >= 8
        assert all(limit <= 65_535 for grid in grids for limit in grid[1:]), grids


def test_nothing_is_compiled_again_for_another_length(launches):  # bug 13
    seen = [[constants for _, constants in launches(rows)] for rows in (7, 100, 1000, 1001, 4096)]
    assert all(constants == seen[0] for constants in seen)


@pytest.mark.gpu  # races do not show in the interpreter, which runs programs one after another
def test_repeats_are_bitwise_equal():  # bug 15
    x, dy, w = (randn(500, 1000, dtype=torch.bfloat16, seed=i) for i in range(3))
    target = torch.arange(500, device=DEVICE)

    def run():
        y, stream, rstd, _ = norms.norm_forward("rms", x, w[0], eps=1e-5, residual=dy)
        return (
            y,
            *norms.norm_backward("rms", dy, stream, w[0], rstd)[:3],
            *crossentropy.cross_entropy(x, target),
            *activations.gelu_backward(dy, x, w[0]),
        )

    first = run()
    for _ in range(100):
        same(first, run())
    same(first, torch.compile(run)())  # bug 14: eager and compiled, bit for bit
