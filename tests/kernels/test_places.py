"""Where results are written: beside their inputs, over them, or (refused) half over them; versions count what was
written; values that a signature does not hold."""

import pytest
import torch

from kernels import activations, crossentropy, norms, residual, rotary
from kernels.launch import KernelArgumentError
from kernels.random import Dropout
from kernels.reference_layer import Mask, add

X, Y = (torch.randn(3, 8, generator=torch.Generator().manual_seed(s)) for s in range(2))
W, TARGET = torch.ones(8), torch.tensor([1, 0, 7])
COS, SIN = rotary.rotary_table(3, 8)
LONG = torch.randn(1, 4, 2, 8)
DROP = Dropout.at(0.5, seed=1, step=1, layer=1, site=1)


def mask(elements, first=0):
    return Mask(DROP, torch.arange(3)[:, None], elements, first)


WIDE = torch.zeros(4, 8)
"""What is refused does not write."""


FAULTS = {
    "dgate overlaps gate": lambda: activations.swiglu_backward(X, WIDE[:3], Y, dgate=WIDE[1:]),
    "dup overlaps up": lambda: activations.swiglu_backward(X, Y, WIDE[:3], dup=WIDE[1:]),
    "dgate and dup begin at one address": lambda: activations.swiglu_backward(X, X, Y, dgate=WIDE[:3], dup=WIDE[:3]),
    "q_out overlaps q": lambda: rotary.rotary_forward(LONG[:, :3], X.view(1, 3, 1, 8), COS, SIN, q_out=LONG[:, 1:]),
    "k_out overlaps k": lambda: rotary.rotary_forward(X.view(1, 3, 1, 8), LONG[:, :3], COS, SIN, k_out=LONG[:, 1:]),
    "out overlaps logits": lambda: crossentropy.cross_entropy(WIDE[:3], TARGET, out=WIDE[1:]),
    "out is given and in_place is True": lambda: crossentropy.cross_entropy(
        X.clone(), TARGET, out=Y.clone(), in_place=True
    ),
    "vocab_size is 0": lambda: crossentropy.cross_entropy(X, TARGET, vocab_size=0),
    "vocab_size is -3": lambda: crossentropy.row_max(X, vocab_size=-3),
    "row_weight has dtype complex64": lambda: crossentropy.cross_entropy(
        X, TARGET, row_weight=torch.ones(3, dtype=torch.complex64)
    ),
    "dh has dtype int64": lambda: activations.gelu_backward(torch.ones(3, 8, dtype=torch.int64), X),
    "eps is -1.0": lambda: norms.norm_forward("rms", X, W, eps=-1.0),
    "eps is nan": lambda: norms.norm_forward("rms", X, W, eps=float("nan")),
    "gate is lazily negated": lambda: activations.swiglu_forward(torch._neg_view(X), Y),
    "up is lazily negated": lambda: activations.swiglu_forward(X, torch._neg_view(Y)),
    "mask.elements do not follow one another": lambda: residual.residual_forward(
        X, Y, None, mask(torch.arange(0, 16, 2))
    ),
    "mask.elements holds 7 columns": lambda: residual.residual_backward(X, None, mask(torch.arange(7))),
    "mask.first_element is 0 and mask.elements begins with 5": lambda: residual.residual_forward(
        X, Y, None, mask(torch.arange(5, 13))
    ),
}


@pytest.mark.parametrize("said", FAULTS)
def test_refused(said):
    activations.swiglu_forward(X, Y)  # a remembered signature must not let the fault pass
    for _ in range(2):
        with pytest.raises(KernelArgumentError, match=said.replace(".", r"\.")):
            FAULTS[said]()


def test_exactly_over_an_input_and_into_halves_of_one_buffer():
    both = torch.cat((X, Y), 1)
    expected = activations.swiglu_backward(X, X, Y)
    into = torch.empty_like(both)
    activations.swiglu_backward(X, *both.chunk(2, 1), dgate=into[:, :8], dup=into[:, 8:])
    torch.testing.assert_close(into, torch.cat(expected, 1))
    wide = torch.cat((X, Y, X), 1)  # a result in other columns of its input's buffer
    activations.swiglu_backward(X, wide[:, :8], wide[:, 8:16], dgate=wide[:, 16:])
    torch.testing.assert_close(wide[:, 16:], expected[0])
    torch.testing.assert_close(wide[:, :8], X)
    with pytest.raises(KernelArgumentError, match="dgate overlaps gate"):
        activations.swiglu_backward(X, wide[:, :8], wide[:, 8:16], dgate=wide[:, 4:12])
    gate, up = X.clone(), Y.clone()
    activations.swiglu_backward(X, gate, up, dgate=gate, dup=up)
    torch.testing.assert_close((gate, up), expected)
    q = LONG.clone()
    table = rotary.rotary_table(4, 8)
    expected = rotary.rotary_forward(LONG[:, :, :1], LONG[:, :, 1:], *table)
    rotary.rotary_forward(q[:, :, :1], q[:, :, 1:], *table, q_out=q[:, :, :1], k_out=q[:, :, 1:])
    torch.testing.assert_close(q, torch.cat(expected, 2))


def test_columns_in_any_order_go_to_the_reference():
    scattered = mask(torch.arange(0, 16, 2), None)
    assert torch.equal(residual.residual_forward(X, Y, None, scattered), add(X, Y, None, scattered))
