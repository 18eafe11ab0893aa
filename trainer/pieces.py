"""The functions behind the pieces of `plan.pieces`: one for each (kind, piece), arguments and results in the order of
its table.

    @piece("F", "mlp.core")
    def mlp_core_forward(ctx, y, w_up, w_down): …; return z, u

A function returns new tensors, contiguous and owning exactly their bytes, in the order of the instruction's writes; a
tensor that is both read and written is updated in place and not returned. Optional arguments are absent, so functions
of optional biases take `*rest`. No autograd: each backward is written out, in terms of the operators of
`kernels.registry`. Attention is in `trainer.pieces_attention`, the two ends of the model in `trainer.pieces_ends`.

Legend: T tokens of a micro-batch, S rows of this rank's residual stream, h hidden, f feed-forward columns of this rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainer.context import SITE_ATTENTION, SITE_MLP, PieceContext

Tensor = torch.Tensor
Results = tuple[Tensor, ...]
PieceFunction = Callable[..., Results]
PIECES: dict[tuple[str, str], PieceFunction] = {}
FILLS: set[tuple[str, str]] = set()  # pieces whose results are given to them, after their arguments, to be filled


def piece(kind: str, *names: str, fills: bool = False) -> Callable[[PieceFunction], PieceFunction]:
    """Registers a function for (kind, each name). `fills`: its results live in fixed places (slots, flat buffers); it
    is handed them after its arguments and returns nothing."""

    def register(function: PieceFunction) -> PieceFunction:
        PIECES.update({(kind, name): function for name in names})
        FILLS.update({(kind, name) for name in names} if fills else ())
        return function

    return register


# ---------------------------------------------------------------- norms


@piece("F", "attn.in", "mlp.in", "head.in")
def norm_forward(ctx: PieceContext, x: Tensor, *weights: Tensor) -> Results:
    """x (S, h), w [, b] → y, rstd [, mean]."""
    forward = ctx.ops.rmsnorm_forward if ctx.e.rms else ctx.ops.layernorm_forward
    return tuple(forward(x, *weights, ctx.rank.model.norm_eps))


@piece("B", "attn.in", "mlp.in")
def norm_backward(ctx: PieceContext, dy: Tensor, x: Tensor, *rest: Tensor) -> Results:
    """dy, x, rstd [, mean], w, residual gradient, g:w [, g:b] → dx."""
    count = 1 if ctx.e.rms else 2
    backward = ctx.ops.rmsnorm_backward if ctx.e.rms else ctx.ops.layernorm_backward
    stats, (weight, residual), grads = rest[:count], rest[count : count + 2], rest[count + 2 :]
    return (backward(dy, x, *stats, weight, residual, *grads),)


@piece("B", "head.in")
def head_norm_backward(ctx: PieceContext, dy: Tensor, x: Tensor, *rest: Tensor) -> Results:
    """As above, without a residual gradient."""
    count = 1 if ctx.e.rms else 2
    backward = ctx.ops.rmsnorm_backward if ctx.e.rms else ctx.ops.layernorm_backward
    return (backward(dy, x, *rest[:count], rest[count], None, *rest[count + 1 :]),)


# ---------------------------------------------------------------- residual adds


def _site(piece_name: str) -> int:
    return SITE_ATTENTION if piece_name == "attn.out" else SITE_MLP


def _out_forward(name: str) -> PieceFunction:
    site = _site(name)

    def forward(ctx: PieceContext, residual: Tensor, z: Tensor, bias: Tensor | None = None) -> Results:
        """residual + dropout(z + bias) (S, h) [, the mask as Megatron-LM stores it]."""
        mask = ctx.mask(site)
        out = ctx.ops.add(residual, z, bias, mask)
        return (out, ctx.stored(mask, out)) if ctx.e.megatron and mask is not None else (out,)

    return forward


def _out_backward(name: str) -> PieceFunction:
    site = _site(name)

    def backward(ctx: PieceContext, d: Tensor, *rest: Tensor) -> Results:
        """[the stored mask, as Megatron-LM's layers have it] [, g:b] → dz when there is dropout; the bias gradient is
        added into g:b."""
        if ctx.e.megatron and ctx.e.dropout:
            d, rest = ctx.drop(d, rest[0], ctx.rank.model.dropout), rest[1:]
            dz = ctx.ops.add_backward(d, *(rest or (None,)), None)
        else:
            dz = ctx.ops.add_backward(d, *(rest or (None,)), ctx.mask(site))
        return (dz,) if ctx.e.dropout else ()

    return backward


for _name in ("attn.out", "mlp.out"):
    piece("F", _name)(_out_forward(_name))
    piece("B", _name)(_out_backward(_name))


# ---------------------------------------------------------------- feed-forward


@piece("F", "mlp.core")
def mlp_forward(ctx: PieceContext, y: Tensor, w_up: Tensor, *rest: Tensor) -> Results:
    """y (T, h), w:up [, b:up], w:down → z (T, h), u (T, f or 2f) [, a (T, f) as Megatron-LM keeps it]."""
    bias, w_down = (rest[0], rest[1]) if ctx.e.bias else (None, rest[0])
    u = ctx.ops.gemm(y, w_up, bias)
    a = ctx.ops.swiglu_forward(u) if ctx.e.gated else ctx.ops.gelu_forward(u)
    z = ctx.ops.gemm(a, w_down, variant="nt")
    return (z, u, a) if ctx.e.megatron else (z, u)


@piece("I", "mlp.core")
def mlp_input_gradient(ctx: PieceContext, dz: Tensor, w_down: Tensor, u: Tensor, w_up: Tensor) -> Results:
    """→ dy (T, h) [, a: the activation, made again where it was not kept], du."""
    da = ctx.ops.gemm(dz, w_down, variant="nn")
    du, a = ctx.ops.swiglu_backward(da, u) if ctx.e.gated else ctx.ops.gelu_backward(da, u)
    dy = ctx.ops.gemm(du, w_up, variant="nn")
    return (dy, du) if ctx.e.megatron else (dy, a, du)


@piece("W", "mlp.core")
def mlp_weight_gradient(ctx: PieceContext, dz: Tensor, a: Tensor, y: Tensor, du: Tensor, *grads: Tensor) -> Results:
    """grads: g:down, g:up [, g:up bias]."""
    ctx.add_product(dz, a, grads[0])
    ctx.add_product(du, y, grads[1])
    if ctx.e.bias:
        ctx.ops.bias_grad(du, grads[2])
    return ()
