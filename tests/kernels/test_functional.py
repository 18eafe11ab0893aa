"""The operators as autograd and torch.compile see them: opcheck, gradients against PyTorch's own, compiled equal to
eager."""

import pytest
import torch
from torch.library import opcheck

from kernels import adamw, functional, rotary
from kernels.random import Dropout

OPS = torch.ops.windtunnel
F = torch.nn.functional


def leaf(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def drop():
    d = Dropout.at(0.2, seed=1, step=1, layer=1, site=1)
    return d.p, d.key_low, d.key_high, 2**33, 0, 3, 2**20


COS, SIN = rotary.rotary_table(3, 8)
TARGET = torch.tensor([1, 9, -100])
SAMPLES = {
    "norm rms": (OPS.norm, (leaf(3, 24), leaf(24), None, None, True, 1e-5, False, 0.0, 0, 0, 0, 0, 1, 0)),
    "norm layer": (
        OPS.norm,
        (leaf(3, 24), leaf(24), leaf(24, seed=1), leaf(3, 24, seed=2), False, 1e-5, False, *drop()),
    ),
    "swiglu": (OPS.swiglu, (leaf(3, 24), leaf(3, 24, seed=1))),
    "gelu": (OPS.gelu, (leaf(3, 24), leaf(24, seed=1), True)),
    "rotary": (OPS.rotary, (leaf(1, 3, 2, 8), leaf(1, 3, 1, 8, seed=1), COS, SIN, False)),
    "cross entropy": (OPS.cross_entropy, (leaf(3, 24), TARGET, 0.01, -100)),
    "linear cross entropy": (OPS.linear_cross_entropy, (leaf(3, 24), leaf(10, 24, seed=1), TARGET, 0.5, 0.0, -100, 2)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name):
    operator, arguments = SAMPLES[name]
    assert set(opcheck(operator.default, arguments).values()) == {"SUCCESS"}


def test_opcheck_of_the_optimizer_step():
    p, m, v, g = (torch.rand(2000, generator=torch.Generator().manual_seed(i)) for i in range(4))
    decay = adamw.DecayMask.of(torch.arange(2000) % 3 > 0)
    numbers = 1e-2, 3, 0.9, 0.95, 1e-8, 0.1
    scale, fine = torch.tensor([0.5]), torch.zeros(1)
    for arguments in ((p, m, v, g, None, None, None, None, None), (p, m, v, g, p.bfloat16(), *decay, scale, fine)):
        assert set(opcheck(OPS.adamw.default, (*arguments, *numbers)).values()) == {"SUCCESS"}


def model(x, w, gate_up, q, head):
    """Every operator, summed with weights that are not one (bug 5)."""
    y, stream = functional.rms_norm(x, w, eps=1e-5, residual=x * 2)
    y, _ = functional.layer_norm(y, w, None, eps=1e-5)
    gate, up = (y @ gate_up).chunk(2, -1)
    h = functional.gelu(functional.swiglu(gate, up))
    q, k = functional.rotary_embedding(q, q * 3, COS, SIN)
    rows = functional.cross_entropy(h @ head.t(), TARGET)
    loss = functional.linear_cross_entropy(h, head, TARGET, tokens=2, chunk_rows=2)
    return (rows * rows).sum() + loss.square() + (stream * y).sum() + (q * k).sum()


def torch_model(x, w, gate_up, q, head):
    stream = x * 2 + x
    y = F.layer_norm(F.rms_norm(stream, (24,), w, 1e-5), (24,), w, None, 1e-5)
    gate, up = (y @ gate_up).chunk(2, -1)
    h = F.gelu(F.silu(gate) * up, approximate="tanh")

    def rotate(t):
        a, b = t.chunk(2, -1)
        c, s = COS[None, :, None], SIN[None, :, None]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    rows = F.cross_entropy(h @ head.t(), TARGET, reduction="none")
    loss = F.cross_entropy(h @ head.t(), TARGET)
    return (rows * rows).sum() + loss.square() + (stream * y).sum() + (rotate(q) * rotate(q * 3)).sum()


def inputs():
    return leaf(3, 24), leaf(24, seed=1), leaf(24, 16, seed=2), leaf(1, 3, 2, 8, seed=3), leaf(10, 8, seed=4)


def test_gradients_are_pytorch_s():
    arguments = inputs()
    ours, theirs = model(*arguments), torch_model(*arguments)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(torch.autograd.grad(ours, arguments), torch.autograd.grad(theirs, arguments), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_compiled_equals_eager_without_a_break():
    arguments = inputs()
    eager = model(*arguments)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(compiled, eager)
    for a, b in zip(torch.autograd.grad(compiled, arguments), torch.autograd.grad(eager, arguments), strict=True):
        torch.testing.assert_close(a, b)


def test_training_with_the_operators_follows_the_same_curve():
    """40 steps of a tiny model, with the operators and with PyTorch's: the losses stay together."""
    curves = []
    for step_of in (model, torch_model):
        parameters = [p.detach().clone().requires_grad_() for p in inputs()]
        optimizer = torch.optim.AdamW(parameters[1:], lr=1e-2)
        losses = []
        for _ in range(40):
            loss = step_of(*parameters)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[0][-1] < curves[0][0]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), atol=1e-3, rtol=1e-3)
