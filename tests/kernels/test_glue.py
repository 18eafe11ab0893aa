"""The short way past the dispatcher is taken where nobody listens, and gives what the long one gives."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import functional
from kernels.functional_flat import residual_add
from kernels.launch import KernelArgumentError
from kernels.random import Dropout

OPS = torch.ops.windtunnel


class Heard(TorchDispatchMode):
    """Records the project's operators that pass the dispatcher."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "windtunnel":
            self.names.append(operator.__name__)
        return operator(*args, **(kwargs or {}))


def leaf(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def test_a_mode_hears_every_operator():
    gate, up = leaf(3, 8), leaf(3, 8, seed=1)
    with Heard() as heard:
        torch.autograd.grad(functional.swiglu(gate, up).square().sum(), (gate, up))
    assert heard.names == ["swiglu.default", "swiglu_backward.default"]


def test_nothing_passes_the_dispatcher_otherwise(monkeypatch):
    def refused(*_):
        raise AssertionError("the dispatcher was asked")

    for name in ("_swiglu", "_swiglu_backward", "_norm", "_norm_backward"):
        monkeypatch.setattr(getattr(functional, name), "_overload", refused)
    gate, up, weight = leaf(3, 8), leaf(3, 8, seed=1), leaf(8, seed=2)
    y, _ = functional.rms_norm(functional.swiglu(gate, up), weight, eps=1e-5)
    y.square().sum().backward()
    assert gate.grad is not None
    with torch.no_grad():
        assert not functional.swiglu(gate, up).requires_grad


def test_fake_tensors_take_the_long_way():
    with FakeTensorMode():
        outside = torch.empty(3, 8)
    out = functional.swiglu(outside, outside)
    assert type(out) is type(outside)
    assert out.shape == (3, 8)


def test_both_ways_give_the_same():
    x, weight, bias, residual = leaf(4, 16), leaf(16, seed=1), leaf(16, seed=2), leaf(4, 16, seed=3)
    d = Dropout.at(0.3, seed=1, step=1, layer=1, site=1)
    numbers = False, 1e-5, False, d.p, d.key_low, d.key_high, 0, 0, 1, 0
    y, stream = functional.layer_norm(x, weight, bias, eps=1e-5, residual=residual, dropout=d)
    theirs = OPS.norm(x, weight, bias, residual, *numbers)
    assert torch.equal(y, theirs[0])
    assert torch.equal(stream, theirs[1])
    leaves = x, weight, bias, residual
    for ours, other in (((y, stream), theirs[:2]), ((stream,), theirs[1:2])):  # the second: nothing arrives for y
        a, b = (
            torch.autograd.grad([o.square().sum() for o in out], leaves, retain_graph=True, allow_unused=True)
            for out in (ours, other)
        )
        for one, another in zip(a, b, strict=True):
            assert (one is None and another is None) or torch.equal(one, another)


@pytest.mark.parametrize("call", [functional.swiglu, OPS.swiglu.default], ids=["short", "dispatched"])
def test_second_derivatives_are_refused(call):
    gate, up = leaf(3, 8), leaf(3, 8, seed=1)
    (first,) = torch.autograd.grad(call(gate, up).sum(), gate, create_graph=True)
    with pytest.raises(KernelArgumentError, match="a second derivative .* accepted: first derivatives"):
        torch.autograd.grad(first.sum(), up)


def test_only_asked_gradients():
    stream, z = leaf(3, 8), leaf(3, 8, seed=1).detach()
    residual_add(stream, z, dropout=Dropout.at(0.5, seed=1, step=1, layer=1, site=1)).sum().backward()
    assert torch.equal(stream.grad, torch.ones(3, 8))
    assert z.grad is None
