"""SwiGLU, GELU and rotary kernels against fp64 (interpreter on a CPU, compiled on a GPU)."""

import itertools

import pytest
import torch

from kernels import activations, norms, reference_layer, residual, rotary
from kernels.random import NO_DROPOUT, Dropout, DropoutSlot
from kernels.reference_layer import Mask
from tests.kernels.fidelity import DEVICE, assert_faithful, randn

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (5, 300), (2, 1024), (2, 2500)])
def test_swiglu(dtype, rows, width):
    both = randn(rows, 2 * width, dtype=dtype)  # gate and up as views of one GEMM output
    gate, up, dh = both[:, :width], both[:, width:], randn(rows, width, dtype=dtype, seed=1)
    exact = activations.swiglu_forward_reference(gate.double(), up.double())
    assert_faithful(activations.swiglu_forward(gate, up), torch.nn.functional.silu(gate) * up, exact, "h")
    exact = activations.swiglu_backward_reference(dh.double(), gate.double(), up.double())
    low = activations.swiglu_backward_reference(dh, gate, up)
    joint = torch.empty_like(both)
    kept = both.clone()
    ours = activations.swiglu_backward(dh, gate, up, dgate=joint[:, :width], dup=joint[:, width:])
    assert torch.equal(kept, both)
    for a, b, c in zip(ours, low, exact, strict=True):
        assert_faithful(a, b, c)
    assert torch.equal(joint, torch.cat(activations.swiglu_backward(dh, gate, up), 1))
    again = torch.empty_like(dh)
    activations.swiglu_backward(dh, gate, up, h_out=again)
    torch.testing.assert_close(again, activations.swiglu_forward(gate, up))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_gelu(approximate, dtype, has_bias):
    x, dh = 2 * randn(37, 200, dtype=dtype), randn(37, 200, dtype=dtype, seed=1)
    bias = randn(200, dtype=dtype, seed=2) if has_bias else None
    wide = None if bias is None else bias.double()
    exact = activations.gelu_forward_reference(x.double(), wide, approximate)
    low = activations.gelu_forward_reference(x, bias, approximate)
    assert_faithful(activations.gelu_forward(x, bias, approximate=approximate), low, exact, "h")
    exact_dx, exact_db = activations.gelu_backward_reference(dh.double(), x.double(), wide, approximate)
    low_dx, low_db = activations.gelu_backward_reference(dh, x, bias, approximate)
    dx, db = activations.gelu_backward(dh, x, bias, approximate=approximate)
    assert_faithful(dx, low_dx, exact_dx, "dx")
    again = torch.empty_like(x)
    activations.gelu_backward(dh, x, bias, approximate=approximate, h_out=again)
    torch.testing.assert_close(again, activations.gelu_forward(x, bias, approximate=approximate))
    if has_bias:
        assert db.dtype == FP32
        assert_faithful(db, low_db, exact_db, "dbias")
        main = torch.ones_like(db)
        assert activations.gelu_backward(dh, x, bias, approximate=approximate, bias_grad=main)[1] is main
        torch.testing.assert_close(main, db + 1)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("has_bias", "p"), [(True, 0.0), (False, 0.3), (True, 0.3)])
def test_residual(dtype, has_bias, p):
    rows, width = 19, 1100
    stream, z, d = (randn(rows, width, dtype=dtype, seed=seed) for seed in range(3))
    bias = randn(width, dtype=dtype, seed=3) if has_bias else None
    tokens = torch.arange(rows, device=DEVICE).flip(0)[:, None] * 7 + 2**33  # any tokens, beyond 32 bits
    dropout = Dropout.at(p, seed=1, step=2, layer=3, site=4)
    mask = Mask(dropout, tokens, torch.arange(5, 5 + width, device=DEVICE), 5) if p else None
    if p and has_bias:  # the same key, filled in on the device
        slot = DropoutSlot(p, torch.tensor([dropout.key_low, dropout.key_high], device=DEVICE))
        assert torch.equal(reference_layer.Mask(slot, tokens, mask.elements, 5).apply(z), mask.apply(z))
        mask = Mask(slot, tokens, mask.elements, 5)
    wide = None if bias is None else bias.double()
    exact = reference_layer.add(stream.double(), z.double(), wide, mask)
    low = reference_layer.add(stream, z, bias, mask)
    assert_faithful(residual.residual_forward(stream, z, bias, mask), low, exact, "out")
    grads = [torch.full((width,), 0.5, dtype=t, device=DEVICE) for t in (FP32, FP32, torch.float64)]
    given = [g if has_bias else None for g in grads]
    exact = reference_layer.add_backward(d.double(), given[2], mask)
    low = reference_layer.add_backward(d, given[1], mask)
    ours = residual.residual_backward(d, given[0], mask)
    assert (ours is d) == (mask is None)
    assert_faithful(ours, low, exact, "dz")
    if has_bias:
        assert_faithful(grads[0], grads[1], grads[2], "bias gradient")


def layouts(*shape, seed=0):
    """Equal values of one shape, laid out in every way: contiguous, rows apart, width last but one, batches apart; and
    contiguous again."""
    x = randn(*shape, seed=seed)
    apart = torch.zeros(*shape[:-1], 2 * shape[-1], device=DEVICE)[..., : shape[-1]]
    across = torch.zeros(*shape[:-2], shape[-1], shape[-2], device=DEVICE).transpose(-1, -2)
    batches = torch.zeros(shape[0], shape[1] + 1, *shape[2:], device=DEVICE)[:, : shape[1]]
    return x, apart.copy_(x), across.copy_(x), batches.copy_(x), x


def test_tensors_of_one_shape_and_other_strides_are_told_apart():
    """What is remembered of a call depends on strides: pairs of layouts, alike and each with the next."""
    bias = randn(40, seed=3)
    firsts, seconds = layouts(3, 5, 40), layouts(3, 5, 40, seed=1)
    for a, b in (*zip(firsts, seconds, strict=True), *zip(firsts, seconds[1:] + seconds[:1], strict=True)):
        exact = activations.swiglu_forward_reference(a, b)
        torch.testing.assert_close(activations.swiglu_forward(a, b), exact)
        for ours, theirs in zip(
            activations.swiglu_backward(b, a, b), activations.swiglu_backward_reference(b, a, b), strict=True
        ):
            torch.testing.assert_close(ours, theirs)
        for ours, theirs in zip(
            activations.gelu_backward(b, a, bias), activations.gelu_backward_reference(b, a, bias, "tanh"), strict=True
        ):
            torch.testing.assert_close(ours, theirs)
        y, stream, rstd, _ = norms.norm_forward("rms", a, bias, eps=1e-5, residual=b)
        torch.testing.assert_close(stream, a + b)
        torch.testing.assert_close(y, torch.nn.functional.rms_norm(a + b, (40,), bias, 1e-5))
        ds, _, dw, _ = norms.norm_backward("rms", a, stream, bias, rstd, dstream=b)
        exact, _, exact_dw, _ = norms.norm_backward_reference("rms", a, stream, bias, rstd, rstd, b, NO_DROPOUT, "fp32")
        torch.testing.assert_close(ds, exact)
        torch.testing.assert_close(dw, exact_dw)
    for x in layouts(3, 5, 40):
        torch.testing.assert_close(
            activations.gelu_forward(x, bias), activations.gelu_forward_reference(x, bias, "tanh")
        )
    for q, k in itertools.product(layouts(2, 3, 4, 8), layouts(2, 3, 1, 8, seed=1)):
        cos, sin = rotary.rotary_table(3, 8, device=DEVICE)
        for table in ((cos, sin), (cos.t().contiguous().t(), sin)):
            ours, theirs = rotary.rotary_forward(q, k, *table), rotary.rotary_reference(q, k, cos, sin)
            torch.testing.assert_close(ours, theirs)


def test_rows_and_tokens_of_other_strides_are_told_apart():
    stream, bias = randn(6, 40), randn(40, seed=3)
    tokens = torch.arange(6, device=DEVICE)[:, None]
    spread = torch.stack((tokens, tokens), 1)[:, 0]
    for z, where in itertools.product(layouts(6, 40, seed=1), (tokens, spread, tokens)):
        mask = Mask(Dropout(0.5, 3, 4), where, torch.arange(40, device=DEVICE), 0)
        torch.testing.assert_close(
            residual.residual_forward(stream, z, bias, mask), reference_layer.add(stream, z, bias, mask)
        )
        ours, theirs = torch.zeros(40, device=DEVICE), torch.zeros(40, device=DEVICE)
        torch.testing.assert_close(
            residual.residual_backward(z, ours, mask), reference_layer.add_backward(z, theirs, mask)
        )
        torch.testing.assert_close(ours, theirs)


def test_saturated_gates_are_finite():
    gate = torch.tensor([[-1e4, 1e4, 0.0, -88.0, 88.0]], device=DEVICE)
    one = torch.ones_like(gate)
    assert bool(torch.isfinite(activations.swiglu_forward(gate, one)).all())
    assert all(bool(torch.isfinite(t).all()) for t in activations.swiglu_backward(one, gate, one))
    for dtype in (FP32, BF16):
        x = gate.to(dtype)
        torch.testing.assert_close(activations.gelu_forward(x), torch.nn.functional.gelu(x, approximate="tanh"))
        assert bool(torch.isfinite(activations.gelu_backward(one.to(dtype), x)[0]).all())


@pytest.mark.parametrize(("heads", "kv", "dim"), [(1, 1, 64), (3, 1, 96), (9, 2, 80), (4, 4, 6), (2, 2, 128)])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_rotary(heads, kv, dim, dtype):  # bug 12: one head, odd head_dim
    qkv = randn(2, 3, heads + 2 * kv, dim, dtype=dtype)
    q, k = qkv[:, :, :heads], qkv[:, :, heads : heads + kv]
    cos, sin = rotary.rotary_table(3, dim, device=DEVICE)
    for turn, backward in ((rotary.rotary_forward, False), (rotary.rotary_backward, True)):
        exact = rotary.rotary_reference(q.double(), k.double(), cos, sin, backward=backward)
        low = rotary.rotary_reference(q, k, cos, sin, backward=backward)
        for a, b, c in zip(turn(q, k, cos, sin), low, exact, strict=True):
            assert_faithful(a, b, c)
    out = torch.zeros_like(qkv)
    rotary.rotary_backward(q, k, cos, sin, q_out=out[:, :, :heads], k_out=out[:, :, heads : heads + kv])
    assert torch.equal(out[:, :, :heads], rotary.rotary_backward(q, k, cos, sin)[0])
    assert not bool(out[:, :, heads + kv :].any())


def test_rotary_turns_back():
    q, k = randn(1, 4, 2, 32), randn(1, 4, 1, 32)
    cos, sin = rotary.rotary_table(4, 32, first=7, device=DEVICE)
    back = rotary.rotary_backward(*rotary.rotary_forward(q, k, cos, sin), cos, sin)
    torch.testing.assert_close(back[0], q)
    torch.testing.assert_close(back[1], k)


def test_empty_inputs():
    assert activations.swiglu_forward(randn(0, 8), randn(0, 8)).shape == (0, 8)
    assert activations.gelu_forward(randn(0, 8)).shape == (0, 8)
    cos, sin = rotary.rotary_table(0, 8, device=DEVICE)
    assert rotary.rotary_forward(randn(1, 0, 2, 8), randn(1, 0, 1, 8), cos, sin)[0].shape == (1, 0, 2, 8)
