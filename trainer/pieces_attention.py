"""Attention's pieces: QKV product with rotary, the attention itself (fused, or scores–softmax–values), output product;
whole or cut in three.

The fused tensor `qkv` (T, q + 2·kv) holds queries, keys and values side by side, rows in (position, sample) order; the
attention reads strided views of it and never copies to split. Rotary turns queries and keys inside `qkv`, so what is
saved is already turned.
"""

from __future__ import annotations

import torch

from plan.errors import InputError
from trainer.context import PieceContext
from trainer.pieces import Results, piece

Tensor = torch.Tensor


def _project(ctx: PieceContext, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    qkv: Tensor = ctx.ops.gemm(y, weight, bias)
    if ctx.e.rotary:
        ctx.ops.rope_forward(_turned(ctx, qkv), *ctx.rank.rope())
    return qkv


def _turned(ctx: PieceContext, qkv: Tensor) -> Tensor:
    """Queries and keys of `qkv` as (s, b, heads, d): what rotary turns."""
    e, row = ctx.e, qkv.stride(0)
    shape, strides = (e.seq, e.batch, e.heads + e.kv_heads, e.head_dim), (e.batch * row, row, e.head_dim, 1)
    return qkv.as_strided(shape, strides)


def _heads(ctx: PieceContext, rows: Tensor, heads: int, first: int = 0) -> Tensor:
    """Columns of (T, …) from `first` on as a (b, heads, s, d) view, made at once: slicing, viewing and permuting would
    take the host three times as long."""
    e, row = ctx.e, rows.stride(0)
    shape, strides = (e.batch, heads, e.seq, e.head_dim), (row, e.head_dim, e.batch * row, 1)
    return rows.as_strided(shape, strides, rows.storage_offset() + first)


def _rows(heads: Tensor) -> Tensor:
    """(b, n, s, d) back to contiguous (T, n·d)."""
    b, n, s, d = heads.shape
    return heads.permute(2, 0, 1, 3).contiguous().view(s * b, n * d)


def _split(ctx: PieceContext, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    e = ctx.e
    keys = _heads(ctx, qkv, e.kv_heads, e.q)
    return _heads(ctx, qkv, e.heads), keys, _heads(ctx, qkv, e.kv_heads, e.q + e.kv)


# ---------------------------------------------------------------- the attention itself


def _attend(ctx: PieceContext, qkv: Tensor) -> Results:
    """(o (T, q), lse (b, heads, s)), or the probabilities (b·heads, s, s) in place of lse when unfused; with dropout in
    Megatron-LM's layers also the mask and what it left."""
    q, k, v = _split(ctx, qkv)
    if not ctx.e.unfused:
        if ctx.e.alibi:
            raise InputError("model.positions alibi trains with plan.attention: unfused")
        o, lse = ctx.ops.attention_forward(q, k, v, ctx.e.attention)
        return _rows(o), lse.contiguous()
    scale = ctx.e.head_dim**-0.5
    scores = ctx.ops.bmm(_flat(q), _flat(_repeat(ctx, k)), "nt")
    if ctx.e.alibi:
        scores.view(ctx.e.batch, -1, ctx.e.seq, ctx.e.seq).add_(ctx.rank.alibi(scale))
    mask = ctx.probability_mask()
    probabilities, dropped = ctx.ops.softmax_forward(scores, scale, mask)
    o = ctx.ops.bmm(dropped, _flat(_repeat(ctx, v)), "nn")
    kept = (ctx.stored(mask, dropped), dropped) if ctx.e.megatron and mask is not None else ()
    return _rows(o.view(q.shape)), probabilities, *kept


def _attend_backward(ctx: PieceContext, do: Tensor, qkv: Tensor, o: Tensor, lse: Tensor, *kept: Tensor) -> Tensor:
    """dqkv (T, q + 2·kv), before rotary is undone."""
    q, k, v = _split(ctx, qkv)
    if ctx.e.unfused:
        grads = _unfused_backward(ctx, _heads(ctx, do, ctx.e.heads), (q, k, v), lse, *kept)
    else:
        out_gradient, out = (_heads(ctx, rows, ctx.e.heads) for rows in (do, o))
        grads = ctx.ops.attention_backward(out_gradient, q, k, v, out, lse, ctx.e.attention)
    dqkv = torch.empty_like(qkv)
    for part, grad in zip(_split(ctx, dqkv), grads, strict=True):
        part.copy_(grad)
    return dqkv


def _unfused_backward(
    ctx: PieceContext, do: Tensor, qkv: tuple[Tensor, Tensor, Tensor], probabilities: Tensor, *kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`kept`: the mask of the probabilities and what it left, where they are stored."""
    q, k, v = qkv
    mask = None if kept else ctx.probability_mask()
    dropped = kept[1] if kept else probabilities if mask is None else mask.apply(probabilities)
    dv = ctx.ops.bmm(dropped, _flat(do), "tn")
    del dropped
    dp = ctx.ops.bmm(_flat(do), _flat(_repeat(ctx, v)), "nt")
    if kept:
        dp = ctx.drop(dp, kept[0], ctx.rank.model.attention_dropout)
    ds = ctx.ops.softmax_backward(dp, probabilities, ctx.e.head_dim**-0.5, mask)
    dq = ctx.ops.bmm(ds, _flat(_repeat(ctx, k)), "nn")
    dk = ctx.ops.bmm(ds, _flat(q), "tn")
    return dq.view(q.shape), _fold(ctx, dk.view(q.shape)), _fold(ctx, dv.view(q.shape))


def _flat(heads: Tensor) -> Tensor:
    return heads.reshape(-1, *heads.shape[2:])


def _repeat(ctx: PieceContext, kv: Tensor) -> Tensor:
    """Keys or values once for each query head."""
    times = ctx.e.heads // ctx.e.kv_heads
    return kv if times == 1 else kv.repeat_interleave(times, dim=1)


def _fold(ctx: PieceContext, d: Tensor) -> Tensor:
    """Gradients of repeated keys or values summed over the query heads that shared them."""
    times = ctx.e.heads // ctx.e.kv_heads
    return d if times == 1 else d.unflatten(1, (ctx.e.kv_heads, times)).sum(2)


def _unproject(ctx: PieceContext, dqkv: Tensor, weight: Tensor) -> Tensor:
    """Undo rotary in place, then the input gradient of the QKV product."""
    if ctx.e.rotary:
        ctx.ops.rope_backward(_turned(ctx, dqkv), *ctx.rank.rope())
    dy: Tensor = ctx.ops.gemm(dqkv, weight, variant="nn")
    return dy


# ---------------------------------------------------------------- whole


@piece("F", "attn.core")
def core_forward(ctx: PieceContext, y: Tensor, w_qkv: Tensor, *rest: Tensor) -> Results:
    """y (T, h), w:qkv [, b:qkv], w:out → z (T, h), qkv, o, lse."""
    bias, w_out = (rest[0], rest[1]) if ctx.e.qkv_bias else (None, rest[0])
    qkv = _project(ctx, y, w_qkv, bias)
    attended = _attend(ctx, qkv)
    return ctx.ops.gemm(attended[0], w_out, variant="nt"), qkv, *attended


@piece("I", "attn.core")
def core_input_gradient(
    ctx: PieceContext, dz: Tensor, w_out: Tensor, w_qkv: Tensor, qkv: Tensor, o: Tensor, lse: Tensor, *kept: Tensor
) -> Results:
    """→ dy (T, h), dqkv."""
    dqkv = _attend_backward(ctx, ctx.ops.gemm(dz, w_out, variant="nn"), qkv, o, lse, *kept)
    return _unproject(ctx, dqkv, w_qkv), dqkv


@piece("W", "attn.core")
def core_weight_gradient(ctx: PieceContext, dz: Tensor, o: Tensor, y: Tensor, dqkv: Tensor, *grads: Tensor) -> Results:
    """grads: g:out, g:qkv [, g:qkv bias]."""
    ctx.add_product(dz, o, grads[0])
    return qkv_weight_gradient(ctx, dqkv, y, *grads[1:])


# ---------------------------------------------------------------- cut in three


@piece("F", "attn.qkv")
def qkv_forward(ctx: PieceContext, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Results:
    """→ qkv (T, q + 2·kv)."""
    return (_project(ctx, y, weight, bias),)


@piece("F", "attn.sdpa")
def sdpa_forward(ctx: PieceContext, qkv: Tensor) -> Results:
    """→ o, lse."""
    return _attend(ctx, qkv)


@piece("F", "attn.proj")
def proj_forward(ctx: PieceContext, o: Tensor, weight: Tensor) -> Results:
    """→ z (T, h)."""
    return (ctx.ops.gemm(o, weight, variant="nt"),)


@piece("I", "attn.proj")
def proj_input_gradient(ctx: PieceContext, dz: Tensor, weight: Tensor) -> Results:
    """→ do (T, q)."""
    return (ctx.ops.gemm(dz, weight, variant="nn"),)


@piece("I", "attn.sdpa")
def sdpa_backward(ctx: PieceContext, do: Tensor, qkv: Tensor, o: Tensor, lse: Tensor, *kept: Tensor) -> Results:
    """→ dqkv."""
    return (_attend_backward(ctx, do, qkv, o, lse, *kept),)


@piece("I", "attn.qkv")
def qkv_input_gradient(ctx: PieceContext, dqkv: Tensor, weight: Tensor) -> Results:
    """→ dy (T, h); dqkv leaves with rotary undone, as the weight gradient wants it."""
    return (_unproject(ctx, dqkv, weight),)


@piece("W", "attn.proj")
def proj_weight_gradient(ctx: PieceContext, dz: Tensor, o: Tensor, grad: Tensor) -> Results:
    """g:out += dzᵀ o."""
    ctx.add_product(dz, o, grad)
    return ()


@piece("W", "attn.qkv")
def qkv_weight_gradient(ctx: PieceContext, dqkv: Tensor, y: Tensor, *grads: Tensor) -> Results:
    """g:qkv += dqkvᵀ y [, g:qkv bias += Σ dqkv]."""
    ctx.add_product(dqkv, y, grads[0])
    if ctx.e.qkv_bias:
        ctx.ops.bias_grad(dqkv, grads[1])
    return ()
