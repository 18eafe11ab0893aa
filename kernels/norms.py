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

from kernels.launch import (
    FLOATS,
    KernelArgumentError,
    Launcher,
    as_rows,
    by_width,
    cdiv,
    check_float,
    check_tensor,
    direct,
    new_rows,
    next_power_of_2,
    processors,
    use_triton,
)
from kernels.norms_config import (
    BACKWARD_TABLE,
    FORWARD_TABLE,
    LAYER_FORWARD_TABLE,
    PERSISTENT_WIDTH,
    PLAIN_FORWARD_TABLE,
    SHARED_BYTES,
    WIDE_BLOCK,
    BackwardConfig,
    ForwardConfig,
)
from kernels.norms_kernels import norm_backward_kernel, norm_forward_kernel, sum_partials_kernel
from kernels.norms_reference import Kind, Rounding, norm_backward_reference, norm_forward_reference
from kernels.norms_wide import norm_columns_kernel, norm_wide_backward_kernel, norm_wide_forward_kernel
from kernels.random import NO_DROPOUT, Dropout

Tensor = torch.Tensor


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
    width = _check(x, weight, bias, residual)
    if not use_triton(x):
        return norm_forward_reference(kind, x, weight, bias, eps, residual, dropout, rounding)
    flat = as_rows(x)
    rows = flat.shape[0]
    skip = as_rows(residual) if residual is not None else flat
    y = new_rows(flat, x.dtype)
    rstd = flat.new_empty(rows, dtype=torch.float32)
    mean = torch.empty(rows, dtype=torch.float32, device=x.device) if kind == "layer" else rstd[:0]
    has_dropout = dropout.p > 0.0
    store = residual is not None or has_dropout
    stream = new_rows(skip, skip.dtype) if store else flat
    if rows:
        tensors = (
            flat,
            skip,
            weight,
            bias if bias is not None else weight,
            y,
            stream,
            mean if kind == "layer" else rstd,
            rstd,
        )
        seeds = dropout.numbers
        flags = {
            "RMS": kind == "rms", "HAS_RESIDUAL": residual is not None, "HAS_BIAS": bias is not None,
            "HAS_DROPOUT": has_dropout, "STORE_STREAM": store, "ROUND": rounding == "llama",
        }  # fmt: skip
        table = FORWARD_TABLE if store else PLAIN_FORWARD_TABLE if kind == "rms" else LAYER_FORWARD_TABLE
        config = config or by_width(table, width)
        if not config.loop:
            tiles = cdiv(rows, config.rows)
            programs = min(tiles, processors(x.device) * config.per_processor) if config.per_processor else tiles
            launcher(norm_forward_kernel)[(programs,)](
                *tensors, flat.stride(0), skip.stride(0), rows, width, eps, *seeds, **flags, RELOAD=config.reload,
                ROWS=config.rows, BLOCK=next_power_of_2(width), STAGES=config.stages, num_warps=config.warps,
            )  # fmt: skip
        else:
            launcher(norm_wide_forward_kernel)[(rows,)](
                *tensors,
                flat.stride(0),
                skip.stride(0),
                stream.stride(0),
                rows,
                width,
                eps,
                *seeds,
                **flags,
                BLOCK=config.loop,
                num_warps=config.warps,
            )
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
    width = _check(dy, weight, None, stream)
    if kind == "layer" and mean is None:
        raise KernelArgumentError("mean is None; the backward of LayerNorm needs the mean that its forward returned")
    for name, main in (("weight_grad", weight_grad), ("bias_grad", bias_grad)):
        if main is not None:
            check_tensor(name, main, dtypes=(torch.float32, torch.float64), shape=(width,), device=dy.device)
    if not use_triton(dy):
        mean = mean if mean is not None else rstd
        ds, dx, fresh_dw, fresh_db = norm_backward_reference(
            kind, dy, stream, weight, rstd, mean, dstream, dropout, rounding
        )
        dw_out = None if not need_weight else fresh_dw if weight_grad is None else weight_grad.add_(fresh_dw)
        db_out = None if not has_bias else fresh_db if bias_grad is None else bias_grad.add_(fresh_db)
        return ds, dx, dw_out, db_out
    flat_dy, flat_stream = as_rows(dy), as_rows(stream)
    rows = flat_dy.shape[0]
    flat_ds = as_rows(dstream) if dstream is not None else flat_dy
    device, has_dropout = dy.device, dropout.p > 0.0
    dresidual = new_rows(flat_stream, stream.dtype)
    split = has_dropout or stream.dtype != dy.dtype
    dx = new_rows(flat_dy, dy.dtype) if split else dresidual
    mean = mean if mean is not None and kind == "layer" else rstd
    strides = flat_dy.stride(0), flat_stream.stride(0), flat_ds.stride(0)
    seeds = dropout.numbers
    shared = {
        "RMS": kind == "rms", "HAS_DSTREAM": dstream is not None, "SPLIT": split, "HAS_DROPOUT": has_dropout,
        "ROUND": rounding == "llama",
    }  # fmt: skip
    if width <= (PERSISTENT_WIDTH // 2 if has_bias else PERSISTENT_WIDTH):
        config = config or by_width(BACKWARD_TABLE, width)
        block = next_power_of_2(width)
        row_bytes = block * (
            dy.dtype.itemsize
            + stream.dtype.itemsize * (2 if dstream is not None else 1)
            + weight.dtype.itemsize * config.reload
        )
        in_flight = (config.stages - 1) * config.per_processor * config.rows * row_bytes
        stages = config.stages if in_flight <= SHARED_BYTES else 1
        partials = max(1, min(processors(device) * config.per_processor, cdiv(rows, config.rows)))
        dw_partial, db_partial = _partials(partials, width, device, need_weight, has_bias, rstd)
        launcher(norm_backward_kernel)[(partials,)](
            flat_dy, flat_stream, weight, mean, rstd, flat_ds, dresidual, dx, dw_partial, db_partial,
            *strides, rows, width, *seeds,
            **shared, HAS_BIAS=has_bias, WEIGHT_GRADIENT=need_weight, EXACT=block == width,
            RELOAD=config.reload, ROWS=config.rows, BLOCK=block, STAGES=stages, num_warps=config.warps,
        )  # fmt: skip
    else:
        partials = max(1, min(16, cdiv(rows, 64)))
        dw_partial, db_partial = _partials(partials, width, device, need_weight, has_bias, rstd)
        shared.pop("ROUND")
        launcher(norm_wide_backward_kernel)[(max(1, rows),)](
            flat_dy, flat_stream, weight, mean, rstd, flat_ds, dresidual, dx, *strides, rows, width, *seeds,
            **shared, BLOCK=WIDE_BLOCK, num_warps=8,
        )  # fmt: skip
        if need_weight or has_bias:
            launcher(norm_columns_kernel)[(cdiv(width, 256), partials)](
                flat_dy, flat_stream, mean, rstd, dw_partial, db_partial, *strides[:2], rows, width,
                RMS=kind == "rms", WEIGHT_GRADIENT=need_weight, HAS_BIAS=has_bias, ROUND=rounding == "llama",
                ROWS=16, BLOCK=256, num_warps=4,
            )  # fmt: skip
    dw = sum_partials(dw_partial, weight_grad, launcher) if need_weight else None
    db = sum_partials(db_partial, bias_grad, launcher) if has_bias else None
    if stream.dim() != 2:
        dresidual, dx = dresidual.view(stream.shape), dx.view(stream.shape)
    return dresidual, dx, dw, db


def _partials(
    partials: int, width: int, device: torch.device, need_weight: bool, has_bias: bool, unused: Tensor
) -> tuple[Tensor, Tensor]:
    """Partial rows of the weight and bias gradients; `unused` stands for one that is not formed."""
    dw = torch.empty((partials, width), dtype=torch.float32, device=device) if need_weight else unused
    db = torch.empty((partials, width), dtype=torch.float32, device=device) if has_bias else unused
    return dw, db


def sum_partials(partial: Tensor, into: Tensor | None, launcher: Launcher = direct) -> Tensor:
    """Σ over the rows of fp32 (partials, width), in a fixed order; added into `into` and returned as it, when given."""
    partials, width = partial.shape
    out = into if into is not None else torch.empty(width, dtype=torch.float32, device=partial.device)
    launcher(sum_partials_kernel)[(cdiv(width, 32),)](
        partial, out, partials, width, ACCUMULATE=into is not None, ROWS=64, BLOCK=32, num_warps=4
    )
    return out


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> int:
    check_float("x", x)
    if x.dim() == 0:
        raise KernelArgumentError("x is a scalar; accepted: (…, width)")
    width = x.shape[-1]
    accepted = FLOATS if x.dtype != torch.float64 else (*FLOATS, torch.float64)
    check_tensor("weight", weight, dtypes=accepted, shape=(width,), device=x.device)
    if bias is not None:
        check_tensor("bias", bias, dtypes=accepted, shape=(width,), device=x.device)
    if residual is not None:
        check_tensor("residual", residual, dtypes=accepted, shape=x.shape, device=x.device)
    return width
