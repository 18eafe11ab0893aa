"""The two ends of the model: vocabulary-parallel embedding (unit 0) and head with cross entropy (unit L + 1)."""

from __future__ import annotations

import torch

from kernels.registry_inputs import DTYPES
from trainer.context import SITE_EMBED, PieceContext
from trainer.pieces import Results, piece

Tensor = torch.Tensor

# ---------------------------------------------------------------- embedding


@piece("F", "embed")
def embed_forward(ctx: PieceContext, tokens: Tensor, table: Tensor) -> Results:
    """tokens (T,) → x0 (T, h); rows of other ranks' vocabulary are zero."""
    return (ctx.ops.embedding_forward(tokens, table, ctx.rank.vocab_first),)


@piece("W", "embed")
def embed_weight_gradient(ctx: PieceContext, dx0: Tensor, tokens: Tensor, grad: Tensor) -> Results:
    """g:table[token] += dx0[row]."""
    ctx.ops.embedding_backward(dx0, tokens, grad, ctx.rank.vocab_first)
    return ()


@piece("F", "embed.out")
def embed_out_forward(ctx: PieceContext, x0: Tensor, *weights: Tensor) -> Results:
    """x0 (S, h) [, w:positions] [, w:norm, b:norm] → x2 [, rstd, mean, xn]; x2 is never x0 itself."""
    e = ctx.e
    x, kept = x0, ()
    if e.learned:
        x, weights = ctx.ops.position_forward(x, weights[0], ctx.rank.first_row, e.batch), weights[1:]
    if e.embedding_norm:
        forward = ctx.ops.rmsnorm_forward if e.rms else ctx.ops.layernorm_forward
        before = x.clone() if x is x0 else x
        x, *stats = forward(before, *weights, ctx.rank.model.norm_eps)
        kept = (*stats, before)
    mask = ctx.mask(SITE_EMBED)
    if mask is not None:
        x = ctx.ops.add_backward(x, None, mask)
    return (x.clone() if x is x0 else x, *kept)


@piece("B", "embed.out")
def embed_out_backward(ctx: PieceContext, d: Tensor, *rest: Tensor) -> Results:
    """d2 [xn, rstd, mean, w:norm, g:norm, g:norm bias] [g:positions] → dx0 with norm or dropout, else nothing."""
    e = ctx.e
    mask = ctx.mask(SITE_EMBED)
    if mask is not None:
        d = ctx.ops.add_backward(d, None, mask)
    if e.embedding_norm:
        count = 1 if e.rms else 2
        xn, stats, weight = rest[0], rest[1 : 1 + count], rest[1 + count]
        grads, rest = rest[2 + count : 2 + 2 * count], rest[2 + 2 * count :]
        backward = ctx.ops.rmsnorm_backward if e.rms else ctx.ops.layernorm_backward
        d = backward(d, xn, *stats, weight, None, *grads)
    if e.learned:
        ctx.ops.position_backward(d, rest[0], ctx.rank.first_row, e.batch)
    return (d,) if mask is not None or e.embedding_norm else ()


# ---------------------------------------------------------------- head


@piece("F", "head.logits")
def logits_forward(ctx: PieceContext, y: Tensor, weight: Tensor) -> Results:
    """y (T, h) → logits (T, V), rowmax (T,); Megatron-LM's: logits16, its copy in the statistics' type, rowmax."""
    logits = ctx.ops.gemm(y, weight, variant="nt")
    if not ctx.e.megatron:
        return logits, ctx.ops.ce_max(logits, ctx.rank.vocab_valid)
    wide = logits.to(DTYPES[ctx.e.stat], copy=True)
    return logits, wide, ctx.ops.ce_max(wide, ctx.rank.vocab_valid)


@piece("F", "head.exp")
def exp_forward(ctx: PieceContext, logits: Tensor, rowmax: Tensor, targets: Tensor) -> Results:
    """→ sums (2, T): Σ exp(logit − maximum) over columns other than the target's; the target's logit, 0 where it is
    another rank's."""
    return (ctx.ops.ce_exp(logits, rowmax, targets, ctx.rank.vocab_first, ctx.rank.vocab_valid),)


@piece("F", "head.loss")
def loss_forward(ctx: PieceContext, *reads: Tensor) -> Results:
    """[logits16,] logits, rowmax, sums, targets, s:loss: logits become the gradient of the global mean loss; s:loss +=
    this micro-batch's share of it."""
    rank, (logits, rowmax, sums, targets, loss) = ctx.rank, reads[-5:]
    ctx.ops.ce_loss(logits, rowmax, sums, targets, loss, rank.vocab_first, rank.vocab_valid, rank.loss_scale)
    return ()


@piece("B", "head.fused")
def fused_head(ctx: PieceContext, y: Tensor, weight: Tensor, targets: Tensor, loss: Tensor, grad: Tensor) -> Results:
    """Logits, loss and both gradients chunk by chunk → dy (T, h); s:loss and g:head are added to."""
    rank, ops, dy = ctx.rank, ctx.ops, torch.empty_like(y)
    first, valid = rank.vocab_first, rank.vocab_valid
    chunks = zip(y.chunk(ctx.e.loss_chunks), targets.chunk(ctx.e.loss_chunks), dy.chunk(ctx.e.loss_chunks), strict=True)
    for rows, wanted, gradient in chunks:
        logits = ops.gemm(rows, weight, variant="nt")
        row_max = ops.ce_max(logits, valid)
        sums = ops.ce_exp(logits, row_max, wanted, first, valid)
        ops.ce_loss(logits, row_max, sums, wanted, loss, first, valid, rank.loss_scale)
        gradient.copy_(ops.gemm(logits, weight, variant="nn"))
        ops.gemm(logits, rows, None, grad, "tn+acc32")
    return (dy,)


@piece("I", "head.logits")
def logits_input_gradient(ctx: PieceContext, dlogits: Tensor, weight: Tensor) -> Results:
    """→ dy (T, h); Megatron-LM's: first the gradient of the logits in the computing type."""
    if not ctx.e.megatron:
        return (ctx.ops.gemm(dlogits, weight, variant="nn"),)
    narrow = dlogits.to(weight.dtype, copy=True)
    return narrow, ctx.ops.gemm(narrow, weight, variant="nn")


@piece("W", "head.logits")
def logits_weight_gradient(ctx: PieceContext, dlogits: Tensor, y: Tensor, grad: Tensor) -> Results:
    """g:head += dlogitsᵀ y."""
    ctx.add_product(dlogits, y, grad)
    return ()
