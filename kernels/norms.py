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

from typing import NamedTuple

import torch

from kernels.direct import Launch, checked_once
from kernels.launch import (
    FLOATS,
    KernelArgumentError,
    cdiv,
    check_float,
    check_tensor,
    new_like,
    row_strides,
    use_triton,
)
from kernels.norms_config import BackwardConfig, ForwardConfig
from kernels.norms_launch import backward_form, forward_form
from kernels.norms_reference import Kind, Rounding, norm_backward_reference, norm_forward_reference
from kernels.norms_wide import norm_columns_kernel
from kernels.partials import PartialSum
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
    config: ForwardConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, stream, rstd, mean). x (…, width) floating point; weight, bias (width,); residual like x, its type is the
    stream's.

    y has x's type and shape; rstd and mean are fp32 (rows,); mean is empty for rms. Without residual and dropout
    `stream` is x itself.
    """
    dropped = dropout.p > 0.0
    found = _forward((x, weight, bias, residual), kind, rounding, float(eps), dropped, config)
    if found is None:
        return norm_forward_reference(kind, x, weight, bias, eps, residual, dropout, rounding)
    launch, rows, mean = found
    y, rstd = new_like(x), x.new_empty(rows, dtype=torch.float32)
    if mean is None:
        mean = torch.empty_like(rstd)
    stored = new_like(x if residual is None else residual) if dropped or residual is not None else None
    tensors = x, residual, weight, bias, y, stored, None if kind == "rms" else mean, rstd
    launch(tensors, *_random(dropout) if dropped else ())
    return y, x if stored is None else stored, rstd, mean


@checked_once
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None,
    kind: Kind, rounding: Rounding, eps: float, dropped: bool, config: ForwardConfig | None,
) -> tuple[Launch, int, Tensor | None] | None:  # fmt: skip
    """(launch, rows, the mean where that is nothing)."""
    if not eps >= 0:
        raise KernelArgumentError(f"eps is {eps}; accepted: 0 or more")
    width = _check(kind, rounding, x, weight, bias, residual)
    if not use_triton(x):
        return None
    strides, copied = row_strides(x, x if residual is None else residual)
    rows = x.numel() // width
    kernel, grid, constants = forward_form(
        kind == "rms", rows, width, residual is not None, bias is not None, dropped, rounding == "llama", x.device,
        config,
    )  # fmt: skip
    numbers = *strides, rows, width, eps, *(() if dropped else NO_DROPOUT.numbers)
    with torch.inference_mode(False):  # what is remembered outlives a mode
        nothing = x.new_empty(0, dtype=torch.float32) if kind == "rms" else None
    return Launch(kernel, grid, numbers, constants, copied), rows, nothing


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
    config: BackwardConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """(dresidual, dx, dweight, dbias) from dy (…, width) and what the forward returned; dy's type is x's.

    dresidual has stream's type, dx x's type; they are one tensor when types agree and nothing was dropped (do not
    write into either). dweight and dbias are fp32 (width,): new tensors, or `weight_grad` / `bias_grad` with the
    gradient added; None where not asked for.
    """
    dropped = dropout.p > 0.0
    found = _backward(
        (dy, stream, weight, rstd, mean, dstream, weight_grad, bias_grad),
        kind, rounding, has_bias, dropped, need_weight, config,
    )  # fmt: skip
    if found is None:
        return _backward_reference(
            kind, dy, stream, weight, rstd, mean, has_bias, dstream, dropout, rounding, weight_grad, bias_grad,
            need_weight,
        )  # fmt: skip
    dresidual = new_like(stream)
    dx = new_like(dy) if found.split else None
    mean = None if kind == "rms" else mean
    dw = found.weight_sum.partials(rstd) if need_weight else None
    db = found.bias_sum.partials(rstd) if has_bias else None
    tensors = dy, stream, weight, mean, rstd, dstream, dresidual, dx
    found.main(tensors if found.wide else (*tensors, dw, db), *_random(dropout) if dropped else ())
    if found.columns is not None:
        found.columns((dy, stream, mean, rstd, dw, db))
    return (
        dresidual,
        dresidual if dx is None else dx,
        found.weight_sum(dw, weight_grad) if need_weight else None,
        found.bias_sum(db, bias_grad) if has_bias else None,
    )


class _Backward(NamedTuple):
    main: Launch
    wide: bool  # `main` forms no weight gradients; `columns` does, where one is asked for
    columns: Launch | None
    split: bool  # dx is not dresidual
    weight_sum: PartialSum
    bias_sum: PartialSum


@checked_once
def _backward(
    dy: Tensor, stream: Tensor, weight: Tensor, rstd: Tensor, mean: Tensor | None,
    dstream: Tensor | None, weight_grad: Tensor | None, bias_grad: Tensor | None,
    kind: Kind, rounding: Rounding, has_bias: bool, dropped: bool, need_weight: bool, config: BackwardConfig | None,
) -> _Backward | None:  # fmt: skip
    if bias_grad is not None and not has_bias:
        raise KernelArgumentError("bias_grad is given and has_bias is False; accepted: both, or neither")
    width = _check(kind, rounding, dy, weight, None, stream)
    _check_backward(kind, dy, stream, rstd, mean, dstream, weight_grad, bias_grad, width)
    if not use_triton(dy):
        return None
    strides, copied = row_strides(dy, stream, dy if dstream is None else dstream)
    rows, split = dy.numel() // width, dropped or stream.dtype is not dy.dtype
    (kernel, grid, constants), wide, columns, partials = backward_form(
        kind == "rms", rows, width, dstream is not None, has_bias, dropped, rounding == "llama", need_weight, split,
        (dy.itemsize, stream.itemsize, weight.itemsize), dy.device, config,
    )  # fmt: skip
    numbers = *strides, rows, width, *(() if dropped else NO_DROPOUT.numbers)
    main = Launch(kernel, grid, numbers, constants, tuple((0, 1, 5)[i] for i in copied))
    formed = None if columns is None else Launch(
        norm_columns_kernel, (cdiv(width, 256), partials), (*strides[:2], rows, width), columns,
        tuple(i for i in copied if i < 2),
    )  # fmt: skip
    sums = (PartialSum(partials, width, into) for into in (weight_grad, bias_grad))
    return _Backward(main, wide, formed, split, *sums)


def _random(dropout: Dropout) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """What changes of a launch from call to call: the dropout's floats, and its integers."""
    return dropout.numbers[:2], dropout.numbers[2:]


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
