"""The kernels as differentiable operators: `torch.library.triton_op` glue, for models built on autograd and for
torch.compile.

The trainer's pieces call the plain `xxx_forward` / `xxx_backward` functions of each operator's file. Here the same
functions are registered as `torch.ops.windtunnel.*`, so that a compiler sees through them to the kernels, fake
tensors and `opcheck` work, and autograd links forward to backward. On the CPU they run the references. (The chunked
head is an opaque `custom_op`: traced, its loop would be unrolled into the graph and its one buffer lost.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.library import triton_op, wrap_triton

from kernels import activations, crossentropy, linear_crossentropy, norms, rotary
from kernels.launch import KernelArgumentError
from kernels.random import NO_DROPOUT, Dropout

Tensor = torch.Tensor

# ---------------------------------------------------------------- norms


@triton_op("windtunnel::norm", mutates_args={})
def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, rms: bool, eps: float, llama: bool,
    p: float, key_low: int, key_high: int, token_first: int, element_first: int,
    samples: int, sample_stride: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dropout = Dropout(p, key_low, key_high, token_first, element_first, samples, sample_stride)
    y, stream, rstd, mean = norms.norm_forward(
        "rms" if rms else "layer", x, weight, bias, eps=eps, residual=residual, dropout=dropout,
        rounding="llama" if llama else "fp32", launcher=wrap_triton,
    )  # fmt: skip
    own = residual is not None or p > 0.0
    return y, stream if own else x.new_empty(0), rstd, mean if not rms else x.new_empty(0)


@triton_op("windtunnel::norm_backward", mutates_args={})
def _norm_backward(
    dy: Tensor, stream: Tensor, weight: Tensor, rstd: Tensor, mean: Tensor, dstream: Tensor | None,
    rms: bool, has_bias: bool, llama: bool,
    p: float, key_low: int, key_high: int, token_first: int, element_first: int,
    samples: int, sample_stride: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dropout = Dropout(p, key_low, key_high, token_first, element_first, samples, sample_stride)
    ds, dx, dw, db = norms.norm_backward(
        "rms" if rms else "layer", dy, stream, weight, rstd, None if rms else mean, has_bias=has_bias,
        dstream=dstream, dropout=dropout, rounding="llama" if llama else "fp32", launcher=wrap_triton,
    )  # fmt: skip
    assert dw is not None
    split = p > 0.0 or stream.dtype != dy.dtype
    return (
        ds,
        dx if split else dy.new_empty(0),
        dw.to(weight.dtype),
        db.to(weight.dtype) if db is not None else dy.new_empty(0),
    )


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, residual, *ctx.options = inputs
    _, stream, rstd, mean = output
    ctx.has_bias, ctx.has_residual, ctx.own = (
        bias is not None,
        residual is not None,
        stream.numel() > 0 or x.numel() == 0,
    )
    ctx.save_for_backward(stream if residual is not None or ctx.options[3] > 0.0 else x, weight, rstd, mean)
    ctx.mark_non_differentiable(rstd, mean)


def _norm_autograd(ctx: Any, dy: Tensor, dstream: Tensor | None, drstd: Any, dmean: Any) -> tuple[Any, ...]:
    stream, weight, rstd, mean = ctx.saved_tensors
    rms, _, llama, *dropout = ctx.options
    own = ctx.has_residual or dropout[0] > 0.0
    ds, dx, dw, db = torch.ops.windtunnel.norm_backward(
        dy, stream, weight, rstd, mean, dstream if own else None, rms, ctx.has_bias, llama, *dropout
    )
    dx = dx if dropout[0] > 0.0 or stream.dtype != dy.dtype else ds
    return dx, dw, db if ctx.has_bias else None, ds if ctx.has_residual else None, *([None] * 10)


_norm.register_autograd(_norm_autograd, setup_context=_norm_setup)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float,
    residual: Tensor | None = None,
    dropout: Dropout = NO_DROPOUT,
    rounding: norms.Rounding = "fp32",
) -> tuple[Tensor, Tensor]:
    """(y, stream), differentiable; see `norms.norm_forward`."""
    return _apply_norm(x, weight, None, True, eps, residual, dropout, rounding)


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    residual: Tensor | None = None,
    dropout: Dropout = NO_DROPOUT,
) -> tuple[Tensor, Tensor]:
    """(y, stream), differentiable; see `norms.norm_forward`."""
    return _apply_norm(x, weight, bias, False, eps, residual, dropout, "fp32")


def _apply_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rms: bool,
    eps: float,
    residual: Tensor | None,
    d: Dropout,
    rounding: str,
) -> tuple[Tensor, Tensor]:
    y, stream, _, _ = torch.ops.windtunnel.norm(
        x,
        weight,
        bias,
        residual,
        rms,
        eps,
        rounding == "llama",
        d.p,
        d.key_low,
        d.key_high,
        d.token_first,
        d.element_first,
        d.samples,
        d.sample_stride,
    )
    return y, stream if residual is not None or d.p > 0.0 else x


# ---------------------------------------------------------------- activations


@triton_op("windtunnel::swiglu", mutates_args={})
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return activations.swiglu_forward(gate, up, launcher=wrap_triton)


@triton_op("windtunnel::swiglu_backward", mutates_args={})
def _swiglu_backward(dh: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return activations.swiglu_backward(dh, gate, up, launcher=wrap_triton)


swiglu.register_autograd(
    lambda ctx, dh: torch.ops.windtunnel.swiglu_backward(dh, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@triton_op("windtunnel::gelu", mutates_args={})
def gelu(x: Tensor, bias: Tensor | None = None, tanh: bool = True) -> Tensor:
    return activations.gelu_forward(x, bias, approximate="tanh" if tanh else "none", launcher=wrap_triton)


@triton_op("windtunnel::gelu_backward", mutates_args={})
def _gelu_backward(dh: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    dx, db = activations.gelu_backward(dh, x, bias, approximate="tanh" if tanh else "none", launcher=wrap_triton)
    return dx, db.to(bias.dtype) if db is not None and bias is not None else x.new_empty(0)


def _gelu_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, ctx.tanh = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, *(() if bias is None else (bias,)))


def _gelu_autograd(ctx: Any, dh: Tensor) -> tuple[Any, ...]:
    x, *bias = ctx.saved_tensors
    dx, db = torch.ops.windtunnel.gelu_backward(dh, x, bias[0] if bias else None, ctx.tanh)
    return dx, db if ctx.has_bias else None, None


gelu.register_autograd(_gelu_autograd, setup_context=_gelu_setup)


# ---------------------------------------------------------------- rotary


@triton_op("windtunnel::rotary", mutates_args={})
def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    rotate = rotary.rotary_backward if backward else rotary.rotary_forward
    return rotate(q, k, cos, sin, launcher=wrap_triton)


def _rotary_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, cos, sin, ctx.backward = inputs
    ctx.save_for_backward(cos, sin)


def _rotary_autograd(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Any, ...]:
    return *torch.ops.windtunnel.rotary(dq, dk, *ctx.saved_tensors, not ctx.backward), None, None, None


_rotary.register_autograd(_rotary_autograd, setup_context=_rotary_setup)


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(q, k) rotated, differentiable; see `rotary.rotary_forward`."""
    return torch.ops.windtunnel.rotary(q, k, cos, sin, False)


# ---------------------------------------------------------------- losses


@triton_op("windtunnel::cross_entropy", mutates_args={})
def _cross_entropy(logits: Tensor, target: Tensor, z_loss: float, ignore_index: int) -> tuple[Tensor, Tensor]:
    loss, gradient = crossentropy.cross_entropy(
        logits, target, z_loss=z_loss, ignore_index=ignore_index, launcher=wrap_triton
    )
    assert gradient is not None
    return loss, gradient


def _cross_entropy_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], inputs[1])
    ctx.ignore_index = inputs[3]
    ctx.mark_non_differentiable(output[1])


@once_differentiable  # type: ignore[untyped-decorator]
def _cross_entropy_autograd(ctx: Any, dloss: Tensor, _: Any) -> tuple[Any, ...]:
    """An ignored row has no gradient, whatever arrives for it (0/0 where all are ignored)."""
    gradient, target = ctx.saved_tensors
    used = (target != ctx.ignore_index) & (target >= 0) & (target < gradient.shape[1])
    return (gradient * torch.where(used, dloss, 0.0)[:, None]).to(gradient.dtype), None, None, None


_cross_entropy.register_autograd(_cross_entropy_autograd, setup_context=_cross_entropy_setup)


def cross_entropy(
    logits: Tensor, target: Tensor, *, z_loss: float = 0.0, ignore_index: int = crossentropy.IGNORE_INDEX
) -> Tensor:
    """Loss of each row, fp32 (rows,), 0 where ignored; any upstream gradient. Reduce it with your own token count."""
    return torch.ops.windtunnel.cross_entropy(logits, target, z_loss, ignore_index)[0]


@torch.library.custom_op("windtunnel::linear_cross_entropy", mutates_args={})
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, scale: float, z_loss: float, ignore_index: int, chunk_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    result = linear_crossentropy.linear_cross_entropy(
        x, weight, target, scale=scale, z_loss=z_loss, ignore_index=ignore_index, chunk_rows=chunk_rows or None
    )
    assert result.dx is not None
    assert result.dweight is not None
    return result.loss.sum() * scale, result.dx, result.dweight


@_linear_cross_entropy.register_fake
def _linear_shapes(
    x: Tensor, weight: Tensor, target: Tensor, scale: float, z_loss: float, ignore_index: int, chunk_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty((), dtype=wide), torch.empty_like(x), weight.new_empty(weight.shape, dtype=wide)


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.weight_type = inputs[1].dtype
    ctx.save_for_backward(output[1], output[2])
    ctx.mark_non_differentiable(output[1], output[2])


@once_differentiable  # type: ignore[untyped-decorator]
def _linear_autograd(ctx: Any, dloss: Tensor, _dx: Any, _dw: Any) -> tuple[Any, ...]:
    dx, dweight = ctx.saved_tensors
    return (dx * dloss).to(dx.dtype), (dweight * dloss).to(ctx.weight_type), *([None] * 5)


_linear_cross_entropy.register_autograd(_linear_autograd, setup_context=_linear_setup)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    tokens: int,
    reduction: str = "mean",
    z_loss: float = 0.0,
    ignore_index: int = crossentropy.IGNORE_INDEX,
    chunk_rows: int = 0,
) -> Tensor:
    """Scalar loss, differentiable. reduction "mean" divides by `tokens`, the valid tokens of the whole step (0 counts
    as 1); or "sum".

    "none" is refused: a gradient for each row arriving after the forward cannot be applied to the weight gradient any
    more; give it to `linear_crossentropy.linear_cross_entropy(row_weight=…)`.
    """
    if reduction not in ("mean", "sum"):
        raise KernelArgumentError(
            f"reduction is {reduction!r}; accepted: 'mean', 'sum' (per-row upstream gradients go in row_weight)"
        )
    scale = 1.0 / max(1, tokens) if reduction == "mean" else 1.0
    return torch.ops.windtunnel.linear_cross_entropy(x, weight, target, scale, z_loss, ignore_index, chunk_rows)[0]
