"""The differentiable operators over their Triton kernels: forward and gradients against autograd in fp64 (interpreter
on a CPU, compiled on a GPU)."""

import pytest
import torch
from torch.nn import functional as F

from kernels import functional as ours
from kernels import functional_flat as flat
from kernels.random import Dropout, keep_mask
from kernels.rotary import rotary_reference, rotary_table
from tests.kernels.fidelity import DEVICE, randn


def gradients(function, *tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    out = function(*leaves)
    upstream = torch.linspace(0.5, 1.5, out.numel(), device=out.device, dtype=out.dtype).view(out.shape)
    return out.detach(), torch.autograd.grad(out, leaves, upstream)


def agree(function, reference, *tensors):
    out, grads = gradients(function, *tensors)
    exact, exact_grads = gradients(reference, *[t.double() for t in tensors])
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-5)
    for a, b in zip(grads, exact_grads, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


X, W, B = randn(5, 40), randn(40, seed=1), randn(40, seed=2)


def test_rms_norm():
    agree(lambda x, w: ours.rms_norm(x, w, eps=1e-5)[0], lambda x, w: F.rms_norm(x, (40,), w, 1e-5), X, W)


def test_layer_norm():
    def call(x, w, b):
        return ours.layer_norm(x, w, b, eps=1e-5)[0]

    agree(call, lambda x, w, b: F.layer_norm(x, (40,), w, b, 1e-5), X, W, B)


def test_swiglu():
    agree(ours.swiglu, lambda g, u: F.silu(g) * u, X, randn(5, 40, seed=3))


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu(approximate):
    def call(x, b):
        return ours.gelu(x, b, approximate == "tanh")

    agree(call, lambda x, b: F.gelu(x + b, approximate=approximate), X, B)


def test_rotary():
    q, k = randn(2, 6, 3, 8), randn(2, 6, 1, 8, seed=1)
    cos, sin = rotary_table(6, 8, device=DEVICE)

    def both(turn):
        return lambda q, k: torch.cat([t.flatten() for t in turn(q, k, cos, sin)])

    agree(both(ours.rotary_embedding), both(rotary_reference), q, k)


def test_cross_entropy():
    target = torch.tensor([1, -100, 3, 39, 0], device=DEVICE)
    agree(
        lambda x: ours.cross_entropy(x, target),
        lambda x: F.cross_entropy(x, target, reduction="none"),
        X,
    )


def test_residual_add():
    dropout = Dropout.at(0.3, seed=1, step=1, layer=1, site=1)
    kept = keep_mask(dropout, 5, 40, DEVICE)

    def exact(stream, z, bias):
        return stream + torch.where(kept, (z + bias) * dropout.scale, 0.0)

    agree(lambda s, z, b: flat.residual_add(s, z, b, dropout=dropout), exact, X, randn(5, 40, seed=3), B)


def test_flat_buffers():
    x = randn(2048)
    error = torch.zeros_like(x)
    bits, scale = flat.onebit_pack(x, error, 1024)
    torch.testing.assert_close(flat.onebit_unpack(bits[None], scale[None], 1024) + error, x)
    assert torch.equal(flat.delta_unpack(flat.delta_pack(x, error), error), x)
    assert int(flat.checksum(x)) == int(flat.checksum(x[:1024])) + int(flat.checksum(x[1024:], 1024))
