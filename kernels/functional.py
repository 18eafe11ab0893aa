"""The kernels as differentiable operators, for models built on autograd and for torch.compile.

The trainer's pieces call the plain `xxx_forward` / `xxx_backward` functions of each operator's file. Here the same
functions are registered as `torch.ops.windtunnel.*` (`kernels/glue.py`), so that a compiler sees through them to the
kernels, fake tensors and `opcheck` work, and autograd links forward to backward. On the CPU they run the references.
Losses are in `kernels/functional_losses.py`, what is left in `kernels/functional_flat.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import activations, norms, rotary
from kernels.functional_losses import cross_entropy, linear_cross_entropy
from kernels.glue import launcher, operator
from kernels.launch import KernelArgumentError
from kernels.random import NO_DROPOUT, Dropout

Tensor = torch.Tensor
__all__ = ["cross_entropy", "gelu", "layer_norm", "linear_cross_entropy", "rms_norm", "rotary_embedding", "swiglu"]

# ---------------------------------------------------------------- norms


@operator("norm")
def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, rms: bool, eps: float, llama: bool,
    p: float, key_low: int, key_high: int, token_first: int, element_first: int,
    samples: int, sample_stride: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dropout = Dropout(p, key_low, key_high, token_first, element_first, samples, sample_stride)
    y, stream, rstd, mean = norms.norm_forward(
        "rms" if rms else "layer", x, weight, bias, eps=eps, residual=residual, dropout=dropout,
        rounding="llama" if llama else "fp32", launcher=launcher(),
    )  # fmt: skip
    own = residual is not None or p > 0.0
    return y, stream if own else x.new_empty(0), rstd, mean if not rms else x.new_empty(0)


@operator("norm_backward")
def _norm_backward(
    dy: Tensor, stream: Tensor, weight: Tensor, rstd: Tensor, mean: Tensor, dstream: Tensor | None,
    rms: bool, has_bias: bool, llama: bool,
    p: float, key_low: int, key_high: int, token_first: int, element_first: int,
    samples: int, sample_stride: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dropout = Dropout(p, key_low, key_high, token_first, element_first, samples, sample_stride)
    ds, dx, dw, db = norms.norm_backward(
        "rms" if rms else "layer", dy, stream, weight, rstd, None if rms else mean, has_bias=has_bias,
        dstream=dstream, dropout=dropout, rounding="llama" if llama else "fp32", launcher=launcher(),
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
    ctx.has_bias, ctx.has_residual = bias is not None, residual is not None
    ctx.save_for_backward(stream if residual is not None or ctx.options[3] > 0.0 else x, weight, rstd, mean)
    ctx.mark_non_differentiable(rstd, mean)
    ctx.set_materialize_grads(False)  # a stream that nobody uses needs no zeros to be added
    ctx.y_type = x.dtype


def _norm_autograd(
    ctx: Any, kept: tuple[Tensor, ...], dy: Tensor | None, dstream: Tensor | None, drstd: Any, dmean: Any
) -> tuple[Any, ...]:
    stream, weight, rstd, mean = kept
    rms, _, llama, *dropout = ctx.options
    own = ctx.has_residual or dropout[0] > 0.0
    dy = torch.zeros_like(stream, dtype=ctx.y_type) if dy is None else dy
    ds, dx, dw, db = _norm_backward(
        dy, stream, weight, rstd, mean, dstream if own else None, rms, ctx.has_bias, llama, *dropout
    )
    dx = dx if dropout[0] > 0.0 or stream.dtype != dy.dtype else ds
    return dx, dw, db if ctx.has_bias else None, ds if ctx.has_residual else None, *([None] * 10)


_norm.differentiable(_norm_setup, _norm_autograd)


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
    if rounding not in ("fp32", "llama"):
        raise KernelArgumentError(f"rounding is {rounding!r}; accepted: 'fp32', 'llama'")
    y, stream, _, _ = _norm(
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


@operator("swiglu")
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return activations.swiglu_forward(gate, up, launcher=launcher())


@operator("swiglu_backward")
def _swiglu_backward(dh: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return activations.swiglu_backward(dh, gate, up, launcher=launcher())


_swiglu.differentiable(
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    lambda ctx, kept, dh: _swiglu_backward(dh, *kept),
)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up, differentiable; see `activations.swiglu_forward`."""
    return _swiglu(gate, up)


@operator("gelu")
def _gelu(x: Tensor, bias: Tensor | None = None, tanh: bool = True) -> Tensor:
    return activations.gelu_forward(x, bias, approximate="tanh" if tanh else "none", launcher=launcher())


@operator("gelu_backward")
def _gelu_backward(dh: Tensor, x: Tensor, bias: Tensor | None, tanh: bool) -> tuple[Tensor, Tensor]:
    dx, db = activations.gelu_backward(dh, x, bias, approximate="tanh" if tanh else "none", launcher=launcher())
    return dx, db.to(bias.dtype) if db is not None and bias is not None else x.new_empty(0)


def _gelu_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, ctx.tanh = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, *(() if bias is None else (bias,)))


def _gelu_autograd(ctx: Any, kept: tuple[Tensor, ...], dh: Tensor) -> tuple[Any, ...]:
    x, *bias = kept
    dx, db = _gelu_backward(dh, x, bias[0] if bias else None, ctx.tanh)
    return dx, db if ctx.has_bias else None, None


_gelu.differentiable(_gelu_setup, _gelu_autograd)


def gelu(x: Tensor, bias: Tensor | None = None, tanh: bool = True) -> Tensor:
    """gelu(x + bias), differentiable; see `activations.gelu_forward`."""
    return _gelu(x, bias, tanh)


# ---------------------------------------------------------------- rotary


@operator("rotary")
def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    rotate = rotary.rotary_backward if backward else rotary.rotary_forward
    return rotate(q, k, cos, sin, launcher=launcher())


def _rotary_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, cos, sin, ctx.backward = inputs
    ctx.save_for_backward(cos, sin)


def _rotary_autograd(ctx: Any, kept: tuple[Tensor, ...], dq: Tensor, dk: Tensor) -> tuple[Any, ...]:
    return *_rotary(dq, dk, *kept, not ctx.backward), None, None, None


_rotary.differentiable(_rotary_setup, _rotary_autograd)


def rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(q, k) rotated, differentiable in both; see `rotary.rotary_forward`."""
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        name = "cos" if cos.requires_grad else "sin"
        raise KernelArgumentError(f"{name} requires a gradient; accepted: tables that need none (call .detach())")
    return _rotary(q, k, cos, sin, False)
