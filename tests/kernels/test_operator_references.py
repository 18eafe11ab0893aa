"""The references of the kernels' files are the specification: their backwards are the gradients of their forwards
(fp64 gradcheck)."""

import pytest
import torch
from torch.autograd import Function, gradcheck

from kernels import activations, attention, norms, rotary
from kernels.crossentropy import cross_entropy
from kernels.launch import KernelArgumentError
from kernels.linear_crossentropy import linear_cross_entropy, linear_cross_entropy_reference, rows_per_chunk
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
    x, w = leaf(4, 5), leaf(7, 5, seed=1)
    ours = linear_cross_entropy(x.detach(), w.detach(), target, scale=0.3, row_weight=weight, chunk_rows=3)
    for a, b in zip(ours, linear_cross_entropy_reference(x, w, target, 0.3, weight), strict=True):
        torch.testing.assert_close(a, b)


def test_attention():
    for causal in (True, False):
        for backend in ("cpu", "unfused"):

            def forward(q, k, v, causal=causal, backend=backend):
                return attention.attention_forward(q, k, v, causal=causal, backend=backend).out

            def backward(grads, q, k, v, causal=causal, backend=backend):
                done = attention.attention_forward(q, k, v, causal=causal, backend=backend)
                return attention.attention_backward(grads[0], q, k, v, done, causal=causal)

            assert gradcheck(
                paired(forward, backward), (leaf(1, 4, 3, 4), leaf(1, 2, 3, 4, seed=1), leaf(1, 2, 3, 4, seed=2))
            )


def test_attention_passes_over_a_backend_that_refuses(monkeypatch):
    q = torch.randn(1, 2, 3, 4)

    def refuse(*_):
        raise RuntimeError("no such engine\nfor this shape")

    monkeypatch.setitem(attention._BACKENDS, "cpu", (refuse, refuse))
    monkeypatch.setattr(attention, "_REFUSED", {})
    done = attention.attention_forward(q, q, q)
    assert done.backend == "unfused"
    assert attention.refusals() == {("cpu", "cpu", torch.float32, (2, 3, 4), (2, 3, 4), True): "no such engine"}
    torch.testing.assert_close(done.out, torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))


def test_attention_does_not_hide_a_lost_device(monkeypatch):
    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setitem(attention._BACKENDS, "cpu", (lost, lost))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        attention.attention_forward(*[torch.randn(1, 2, 3, 4)] * 3)


def test_attention_without_keys_or_width():
    q, none = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4)
    assert attention.attention_forward(q, none, none, causal=False).backend == "unfused"
    with pytest.raises(KernelArgumentError, match="head_dim"):
        attention.attention_forward(q[..., :0], q[..., :0], q)


def test_attention_preference_names_cudnn_first_on_hopper(monkeypatch):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert attention.preference(device) == ("cudnn", "flash", "efficient", "unfused")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert attention.preference(device)[0] == "flash"
    assert attention.preference(torch.device("cpu")) == ("cpu", "unfused")


def test_chunks_of_the_head():
    assert rows_per_chunk(8192, 128_256, 2) == 2048  # 0.49 GiB of logits
    assert rows_per_chunk(1000, 50_304, 2) == 1000  # all at once when they fit
    assert rows_per_chunk(10_000, 10**7, 2) == 128  # never thinner than a tile
    assert rows_per_chunk(5, 10**9, 4) == 5
