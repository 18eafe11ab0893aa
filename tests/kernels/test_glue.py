"""The short way past the dispatcher is taken where nobody listens, and gives what the long one gives."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import wrap_triton
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from kernels import functional, functional_losses
from kernels.direct import direct
from kernels.functional_flat import residual_add
from kernels.glue import launcher, listened
from kernels.launch import KernelArgumentError
from kernels.random import Dropout, keep_mask

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


def test_launches_are_traced_where_somebody_listens():
    assert launcher() is direct
    with Heard():
        assert launcher() is wrap_triton


def test_other_kinds_of_tensors_take_the_long_way(monkeypatch):
    class Other(torch.Tensor):
        pass

    def refused(*_):
        raise AssertionError("the short way was taken")

    monkeypatch.setattr(functional._swiglu, "_straight", None)
    monkeypatch.setattr(functional._swiglu, "function", refused)
    x = torch.randn(3, 8)
    assert type(functional.swiglu(x.as_subclass(Other), x)) is Other
    with pytest.raises(AssertionError, match="the short way was taken"):
        functional.swiglu(x, x)


def test_transforms_take_the_long_way():
    heard = []
    torch.vmap(lambda x: heard.append(listened()) or x)(torch.zeros(2, 3))
    assert heard == [True]
    assert not listened()
    gate, up = leaf(4, 3, 8).detach(), leaf(4, 3, 8, seed=1).detach()
    torch.testing.assert_close(torch.vmap(functional.swiglu)(gate, up), functional.swiglu(gate, up))


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


TARGET, TABLE = torch.tensor([1, 2, -100]), torch.full((3, 4), 0.5)
DROPPED = Dropout.at(0.5, seed=1, step=1, layer=1, site=1)
CALLS = {
    "swiglu": (functional.swiglu, leaf(3, 8), leaf(3, 8, seed=1)),
    "gelu": (functional.gelu, leaf(3, 8), leaf(8, seed=1)),
    "rms_norm": (lambda x, w: functional.rms_norm(x, w, eps=1e-5)[0], leaf(3, 8), leaf(8, seed=1)),
    "layer_norm": (
        lambda x, w, b, r: sum(functional.layer_norm(x, w, b, eps=1e-5, residual=r, dropout=DROPPED)),
        leaf(3, 8), leaf(8, seed=1), leaf(8, seed=2), leaf(3, 8, seed=3),
    ),
    "rotary": (
        lambda q, k: torch.cat(functional.rotary_embedding(q, k, TABLE, TABLE), 2), leaf(2, 3, 2, 8), leaf(2, 3, 1, 8)
    ),
    "residual": (lambda s, z: residual_add(s, z, dropout=DROPPED), leaf(3, 8), leaf(3, 8, seed=1)),
    "cross entropy": (lambda x: functional.cross_entropy(x, TARGET), leaf(3, 8)),
    "head": (lambda x, w: functional.linear_cross_entropy(x, w, TARGET, tokens=2), leaf(3, 8), leaf(9, 8, seed=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_is_kept_is_unpacked_once(name):
    """Checkpoints and offloading give a kept tensor away when it is asked for."""
    call, *leaves = CALLS[name]
    plain = torch.autograd.grad(call(*leaves).square().sum(), leaves)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or len(packed), lambda i: packed[i - 1]):
        out = call(*leaves)
    count = len(packed)
    unpacked = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(t) or t):
        again = call(*leaves)
    hooked = [torch.autograd.grad(o.square().sum(), leaves) for o in (out, again)]
    assert len(unpacked) == count
    hooked.append(torch.autograd.grad(checkpoint(call, *leaves, use_reentrant=False).square().sum(), leaves))
    for gradients in hooked:
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode_is_refused(name):
    """Not answered with a tangent of zero, or with none."""
    call, *leaves = CALLS[name]
    values = tuple(t.detach() for t in leaves)
    with pytest.raises(KernelArgumentError, match="a forward-mode derivative .* accepted: backward"):
        torch.func.jvp(call, values, values)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        call(*values)
        dual = torch.autograd.forward_ad.make_dual(values[0], values[0])
        with pytest.raises(KernelArgumentError, match="a forward-mode derivative"):
            call(dual, *values[1:])


def test_a_loss_scale_finds_the_head_s_gradients_in_fp16():
    """1 / tokens applied in fp16 before the scale would round them to nothing."""
    tokens, scale = 8192, 65536.0
    x, w = leaf(64, 32).half().detach(), (0.05 * leaf(2000, 32, seed=1)).half().detach()
    target = torch.arange(64)

    def gradients(loss, dtype):
        leaves = x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()
        return torch.autograd.grad(loss(*leaves) * scale, leaves)

    def composed(x, w):
        return torch.nn.functional.cross_entropy((x @ w.t()).to(torch.promote_types(x.dtype, torch.float32)), target,
                                                 reduction="sum") / tokens  # fmt: skip

    exact = gradients(composed, torch.float64)
    ours = gradients(lambda x, w: functional.linear_cross_entropy(x, w, target, tokens=tokens), torch.float16)
    for mine, theirs in zip(ours, exact, strict=True):
        assert float((mine.double() - theirs).norm() / theirs.norm()) < 2e-3


def test_a_dropout_in_another_order_of_rows_drops_its_own_tokens():
    d = Dropout.at(0.5, seed=1, step=1, layer=1, site=1, token_first=3, samples=4, sample_stride=100)
    out = residual_add(torch.zeros(8, 16), torch.ones(8, 16), dropout=d)
    assert torch.equal(out != 0, keep_mask(d, 8, 16))
    assert not torch.equal(out != 0, keep_mask(DROPPED, 8, 16))


UNASKED = {
    "cross entropy": functional_losses._cross_entropy,
    "head": functional_losses._linear_cross_entropy,
    "last norm": functional._norm,
}


@pytest.mark.parametrize("name", UNASKED)
def test_no_zeros_stand_for_gradients_that_nobody_asks(monkeypatch, name):
    """Of the logits' size, the weight's, the stream's: gigabytes."""
    last = lambda x, r, w: functional.rms_norm(x, w, eps=1e-5, residual=r)[0]  # noqa: E731
    call, *leaves = CALLS.get(name, (last, leaf(3, 8), leaf(3, 8, seed=1), leaf(8, seed=2)))
    operator = UNASKED[name]
    backward, arrived = operator._straight.backward, []

    def watched(ctx, *gradients):
        arrived.append(gradients)
        return backward(ctx, *gradients)

    monkeypatch.setattr(operator._straight, "backward", staticmethod(watched))
    torch.autograd.grad(call(*leaves).sum(), leaves)
    ((loss, *others),) = arrived
    assert loss is not None
    assert others == [None] * len(others)
