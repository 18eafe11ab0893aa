"""A kernel that writes over a tensor counts a version of it, as PyTorch's operators do (interpreter on a CPU, compiled
on a GPU)."""

import pytest
import torch

from kernels import activations, crossentropy, norms, residual, rotary
from tests.kernels.fidelity import DEVICE, randn

X, Y = randn(3, 8), randn(3, 8, seed=1)
W = randn(8, seed=2)
COS, SIN = rotary.rotary_table(3, 8, device=DEVICE)
_, STREAM, RSTD, MEAN = norms.norm_forward("layer", X, W, W, eps=1e-5)


def into(*shape):
    return torch.zeros(*shape, device=DEVICE)


WRITERS = {
    "swiglu": lambda a, b, c: activations.swiglu_backward(X, X, Y, dgate=a, dup=b, h_out=c),
    "gelu": lambda a, _, c: activations.gelu_backward(X, Y, W, h_out=a, bias_grad=c.view(-1)[:8]),
    "rotary": lambda a, b, _: rotary.rotary_forward(
        X.view(1, 3, 1, 8), Y.view(1, 3, 1, 8), COS, SIN, q_out=a.view(1, 3, 1, 8), k_out=b.view(1, 3, 1, 8)
    ),
    "norm": lambda a, b, _: norms.norm_backward(
        "layer", X, STREAM, W, RSTD, MEAN, has_bias=True, weight_grad=a.view(-1)[:8], bias_grad=b.view(-1)[:8]
    ),
    "residual": lambda a, *_: residual.residual_backward(X, a.view(-1)[:8]),
    "loss": lambda a, *_: crossentropy.cross_entropy(X, torch.tensor([1, 0, 7], device=DEVICE), out=a),
}
WRITES = {"swiglu": 3, "gelu": 2, "rotary": 2, "norm": 2, "residual": 1, "loss": 1}


@pytest.mark.parametrize("name", WRITERS)
def test_versions(name):
    targets = [into(3, 8) for _ in range(3)]
    WRITERS[name](*targets)
    assert sum(t._version > 0 for t in targets) == WRITES[name]
    assert all(bool(t.any()) == (t._version > 0) for t in targets)
