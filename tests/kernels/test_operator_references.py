"""The references of the kernels' files are the specification: their backwards are the gradients of their forwards
(fp64 gradcheck)."""

import torch
from torch.autograd import Function, gradcheck

from kernels import activations, norms, rotary
from kernels.crossentropy import cross_entropy
from kernels.random import NO_DROPOUT, Dropout

F64 = torch.float64


def leaf(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def paired(forward, backward):
    """An autograd function out of a plain pair: forward(*inputs) → outputs, backward(grads, *inputs) → input
    gradients."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx, *grads):
            return backward(grads, *ctx.saved_tensors)

    return Pair.apply


def test_norms():
    for kind in ("rms", "layer"):
        for p in (0.0, 0.4):
            drop = Dropout.at(p, seed=1, step=1, layer=1, site=1) if p else NO_DROPOUT
            has_bias = kind == "layer"

            def forward(x, residual, w, b, kind=kind, drop=drop, has_bias=has_bias):
                return norms.norm_forward(
                    kind, x, w, b if has_bias else None, eps=1e-3, residual=residual, dropout=drop
                )[:2]

            def backward(grads, x, residual, w, b, kind=kind, drop=drop, has_bias=has_bias):
                saved = norms.norm_forward(
                    kind, x, w, b if has_bias else None, eps=1e-3, residual=residual, dropout=drop
                )
                ds, dx, dw, db = norms.norm_backward(
                    kind, grads[0], saved[1], w, saved[2], saved[3], has_bias=has_bias, dstream=grads[1], dropout=drop
                )
                return dx, ds, dw, db if has_bias else torch.zeros_like(w)

            assert gradcheck(
                paired(forward, backward), (leaf(3, 6), leaf(3, 6, seed=1), leaf(6, seed=2), leaf(6, seed=3))
            )


def test_activations():
    swiglu = paired(activations.swiglu_forward, lambda grads, gate, up: activations.swiglu_backward(grads[0], gate, up))
    assert gradcheck(swiglu, (leaf(3, 5), leaf(3, 5, seed=1)))
    for approximate in ("none", "tanh"):
        gelu = paired(
            lambda x, b, a=approximate: activations.gelu_forward(x, b, approximate=a),
            lambda grads, x, b, a=approximate: activations.gelu_backward(grads[0], x, b, approximate=a),
        )
        assert gradcheck(gelu, (leaf(3, 5), leaf(5, seed=1)))


def test_rotary():
    cos, sin = rotary.rotary_table(4, 6)
    turn = paired(
        lambda q, k: rotary.rotary_forward(q, k, cos, sin), lambda grads, q, k: rotary.rotary_backward(*grads, cos, sin)
    )
    assert gradcheck(turn, (leaf(2, 4, 3, 6), leaf(2, 4, 1, 6, seed=1)))


def test_losses():
    target = torch.tensor([0, 6, -100, 3])
    weight = torch.rand(4, dtype=F64)

    def loss(logits):
        return cross_entropy(logits, target, z_loss=0.01, row_weight=weight)[0] * weight

    rows = paired(
        loss, lambda grads, logits: cross_entropy(logits, target, z_loss=0.01, row_weight=weight * grads[0])[1]
    )
    assert gradcheck(rows, (leaf(4, 7),))
