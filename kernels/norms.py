"""RMSNorm and LayerNorm, forward and backward, fused with the residual add and with dropout.

    stream = residual + dropout(x)                       the residual stream, in residual's type (x when that is None)
    rms:    y = stream · rstd · weight                   rstd = 1/√(mean(stream²) + eps), fp32, one a row
    layer:  y = (stream − mean) · rstd · weight + bias

The backward takes (dy, stream, weight, rstd[, mean]) and the gradient `dstream` that reaches the stream by its other
use, and returns the gradients of residual and x. Four passes over memory where PyTorch's separate kernels take nine
or more. Weight gradients are fp32, the same bits on every run, and are added into `weight_grad` (the caller's main
gradient) when it is given.

`rounding="llama"` applies y's type before the weight, as transformers' LlamaRMSNorm; "fp32" (the default; "gemma"
order) multiplies in fp32. fp64 goes through the reference.
"""

from __future__ import annotations

import torch

from kernels.direct import Constants, Launcher, direct, start
from kernels.launch import (
    FLOATS,
    KernelArgumentError,
    as_rows,
    cdiv,
    check_float,
    check_tensor,
    new_rows,
    use_triton,
)
from kernels.norms_config import BackwardConfig, ForwardConfig
from kernels.norms_kernels import sum_partials_kernel
from kernels.norms_launch import backward_launch, forward_launch
from kernels.norms_reference import Kind, Rounding, norm_backward_reference, norm_forward_reference
from kernels.norms_wide import norm_columns_kernel
from kernels.random import NO_DROPOUT, Dropout

Tensor = torch.Tensor
_WITH_FP64 = (*FLOATS, torch.float64)
_MAIN = (torch.float32, torch.float64)


def norm_forward(
    kind: Kind,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    residual: Tensor | None = None,
    dropout: Dropout = NO_DROPOUT,
    rounding: Rounding = "fp32",
    launcher: Launcher = direct,
    config: ForwardConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, stream, rstd, mean). x (…, width) floating point; weight, bias (width,); residual like x, its type is the
    stream's.

    y has x's type and shape; rstd and mean are fp32 (rows,); mean is empty for rms. Without residual and dropout
    `stream` is x itself.
    """
    width = _check(kind, rounding, x, weight, bias, residual)
    if not use_triton(x):
        return norm_forward_reference(kind, x, weight, bias, eps, residual, dropout, rounding)
    rms, dropped = kind == "rms", dropout.p > 0.0
    flat = as_rows(x)
    skip = flat if residual is None else as_rows(residual)
    rows = flat.shape[0]
    y, rstd = new_rows(flat, x.dtype), flat.new_empty(rows, dtype=torch.float32)
    mean = _nothing(x.device, launcher) if rms else torch.empty_like(rstd)
    store = dropped or residual is not None
    stream = new_rows(skip, skip.dtype) if store else flat
    if rows:
        launch = forward_launch(
            launcher, rms, rows, width, residual is not None, bias is not None, dropped, rounding == "llama", x.device,
            config,
        )  # fmt: skip
        tensors = flat, skip, weight, weight if bias is None else bias, y, stream, rstd if rms else mean, rstd
        numbers = flat.stride(0), skip.stride(0), rows, width, float(eps), *dropout.numbers
        start(launcher, launch.kernel, launch.grid, tensors, numbers, launch.constants)
    if x.dim() != 2:
        y, stream = y.view(x.shape), stream.view(x.shape)
    return y, stream if store else x, rstd, mean


def norm_backward(
    kind: Kind,
    dy: Tensor,
    stream: Tensor,
    weight: Tensor,
    rstd: Tensor,
    mean: Tensor | None = None,
    *,
    has_bias: bool = False,
    dstream: Tensor | None = None,
    dropout: Dropout = NO_DROPOUT,
    rounding: Rounding = "fp32",
    weight_grad: Tensor | None = None,
    bias_grad: Tensor | None = None,
    need_weight: bool = True,
    launcher: Launcher = direct,
    config: BackwardConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """(dresidual, dx, dweight, dbias) from dy (…, width) and what the forward returned; dy's type is x's.

    dresidual has stream's type, dx x's type; they are one tensor when types agree and nothing was dropped (do not
    write into either). dweight and dbias are fp32 (width,): new tensors, or `weight_grad` / `bias_grad` with the
    gradient added; None where not asked for.
    """
    if bias_grad is not None and not has_bias:
        raise KernelArgumentError("bias_grad is given and has_bias is False; accepted: both, or neither")
    width = _check(kind, rounding, dy, weight, None, stream)
    _check_backward(kind, dy, stream, rstd, mean, dstream, weight_grad, bias_grad, width)
    if not use_triton(dy):
        return _backward_reference(
            kind, dy, stream, weight, rstd, mean, has_bias, dstream, dropout, rounding, weight_grad, bias_grad,
            need_weight,
        )  # fmt: skip
    rms, dropped, dtype = kind == "rms", dropout.p > 0.0, stream.dtype
    flat_dy, flat_stream = as_rows(dy), as_rows(stream)
    flat_ds = flat_dy if dstream is None else as_rows(dstream)
    rows = flat_dy.shape[0]
    dresidual = new_rows(flat_stream, dtype)
    split = dropped or dtype is not dy.dtype
    dx = new_rows(flat_dy, dy.dtype) if split else dresidual
    centre = rstd if rms or mean is None else mean
    launch, wide, columns, partials = backward_launch(
        launcher, rms, rows, width, dstream is not None, has_bias, dropped, rounding == "llama", need_weight, split,
        (dy.itemsize, stream.itemsize, weight.itemsize), dy.device, config,
    )  # fmt: skip
    dw = rstd.new_empty((partials, width), dtype=torch.float32) if need_weight else rstd
    db = rstd.new_empty((partials, width), dtype=torch.float32) if has_bias else rstd
    strides = flat_dy.stride(0), flat_stream.stride(0), flat_ds.stride(0)
    tensors = flat_dy, flat_stream, weight, centre, rstd, flat_ds, dresidual, dx
    numbers = *strides, rows, width, *dropout.numbers
    start(launcher, launch.kernel, launch.grid, tensors if wide else (*tensors, dw, db), numbers, launch.constants)
    if columns is not None:
        grid, shape = (cdiv(width, 256), partials), (*strides[:2], rows, width)
        start(launcher, norm_columns_kernel, grid, (flat_dy, flat_stream, centre, rstd, dw, db), shape, columns)
    if stream.dim() != 2:
        dresidual, dx = dresidual.view(stream.shape), dx.view(stream.shape)
    return (
        dresidual,
        dx,
        sum_partials(dw, weight_grad, launcher) if need_weight else None,
        sum_partials(db, bias_grad, launcher) if has_bias else None,
    )


def sum_partials(partial: Tensor, into: Tensor | None, launcher: Launcher = direct) -> Tensor:
    """Σ over the rows of fp32 (partials, width), in a fixed order; added into `into` and returned as it, when given."""
    partials, width = partial.shape
    out = partial.new_empty(width) if into is None else into
    constants = _SUM_NEW if into is None else _SUM_INTO
    start(launcher, sum_partials_kernel, (cdiv(width, 32),), (partial, out), (partials, width), constants)
    return out


_SUM_NEW = Constants(ACCUMULATE=False, ROWS=64, BLOCK=32, num_warps=4)
_SUM_INTO = Constants(ACCUMULATE=True, ROWS=64, BLOCK=32, num_warps=4)
_EMPTY: dict[torch.device, Tensor] = {}


def _nothing(device: torch.device, launcher: Launcher) -> Tensor:
    """An empty fp32 tensor; one a device for the plain functions, as nobody can write into it."""
    if launcher is not direct:
        return torch.empty(0, dtype=torch.float32, device=device)
    found = _EMPTY.get(device)
    if found is None:
        with torch.inference_mode(False):  # it outlives the mode it is made under
            found = _EMPTY[device] = torch.empty(0, dtype=torch.float32, device=device)
    return found


def _backward_reference(
    kind: Kind, dy: Tensor, stream: Tensor, weight: Tensor, rstd: Tensor, mean: Tensor | None, has_bias: bool,
    dstream: Tensor | None, dropout: Dropout, rounding: Rounding, weight_grad: Tensor | None, bias_grad: Tensor | None,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    mean = rstd if mean is None else mean
    ds, dx, dw, db = norm_backward_reference(kind, dy, stream, weight, rstd, mean, dstream, dropout, rounding)
    return (
        ds,
        dx,
        None if not need_weight else dw if weight_grad is None else weight_grad.add_(dw),
        None if not has_bias else db if bias_grad is None else bias_grad.add_(db),
    )


def _check(
    kind: Kind, rounding: Rounding, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None
) -> int:
    if kind not in ("rms", "layer") or rounding not in ("fp32", "llama"):
        raise KernelArgumentError(
            f"kind is {kind!r}, rounding {rounding!r}; accepted: 'rms' or 'layer', 'fp32' or 'llama'"
        )
    check_float("x", x)
    shape = x.shape
    if not shape or shape[-1] == 0:
        raise KernelArgumentError(f"x has shape {tuple(shape)}; accepted: (…, width), width ≥ 1")
    width, device = shape[-1], x.device
    accepted = FLOATS if x.dtype is not torch.float64 else _WITH_FP64
    check_tensor("weight", weight, dtypes=accepted, shape=(width,), device=device, contiguous=True)
    if bias is not None:
        check_tensor("bias", bias, dtypes=accepted, shape=(width,), device=device, contiguous=True)
    if residual is not None:
        check_tensor("residual", residual, dtypes=accepted, shape=shape, device=device)
    return width


def _check_backward(
    kind: Kind, dy: Tensor, stream: Tensor, rstd: Tensor, mean: Tensor | None, dstream: Tensor | None,
    weight_grad: Tensor | None, bias_grad: Tensor | None, width: int,
) -> None:  # fmt: skip
    rows, device = (dy.numel() // width,), dy.device
    statistics = _MAIN if dy.dtype is torch.float64 else _MAIN[:1]
    check_tensor("rstd", rstd, dtypes=statistics, shape=rows, device=device, contiguous=True)
    if kind == "layer":
        if mean is None:
            raise KernelArgumentError("mean is None; the backward of LayerNorm needs what its forward returned")
        check_tensor("mean", mean, dtypes=statistics, shape=rows, device=device, contiguous=True)
    if dstream is not None:
        check_tensor("dstream", dstream, dtypes=_WITH_FP64, shape=stream.shape, device=device)
    if weight_grad is not None:
        check_tensor("weight_grad", weight_grad, dtypes=_MAIN, shape=(width,), device=device, contiguous=True)
    if bias_grad is not None:
        check_tensor("bias_grad", bias_grad, dtypes=_MAIN, shape=(width,), device=device, contiguous=True)
