"""`torch.library.triton_op` glue, continued: the residual stream (differentiable), 1-bit compression, checksum, deltas.

As in `functional.py`: the plain functions of each operator's file, registered as `torch.ops.windtunnel.*`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.library import triton_op

from kernels import checksum as checksum_file
from kernels import delta, onebit, residual
from kernels.glue import launcher, operator
from kernels.random import NO_DROPOUT, Dropout
from kernels.reference_layer import Mask

Tensor = torch.Tensor

# ---------------------------------------------------------------- residual stream


def _mask(tokens: Tensor | None, width: int, p: float, low: int, high: int, first: int) -> Mask | None:
    if tokens is None or p == 0.0:
        return None
    elements = torch.arange(first, first + width, device=tokens.device)
    return Mask(Dropout(p, low, high), tokens[:, None], elements, first)


@operator("residual_add")
def _residual_add(
    stream: Tensor, z: Tensor, bias: Tensor | None, tokens: Tensor | None, p: float, key_low: int, key_high: int,
    element_first: int,
) -> Tensor:  # fmt: skip
    mask = _mask(tokens, z.shape[-1], p, key_low, key_high, element_first)
    return residual.residual_forward(stream, z, bias, mask, launcher=launcher())


@operator("residual_add_backward")
def _residual_add_backward(
    d: Tensor, tokens: Tensor, has_bias: bool, p: float, key_low: int, key_high: int, element_first: int
) -> tuple[Tensor, Tensor]:
    mask = _mask(tokens, d.shape[1], p, key_low, key_high, element_first)
    wide = torch.float64 if d.dtype == torch.float64 else torch.float32
    bias_grad = torch.zeros(d.shape[1] if has_bias else 0, dtype=wide, device=d.device)
    dz = residual.residual_backward(d, bias_grad if has_bias else None, mask, launcher=launcher())
    return dz, bias_grad


def _residual_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, z, bias, tokens, *ctx.numbers = inputs
    ctx.types = z.dtype, None if bias is None else bias.dtype
    ctx.save_for_backward(tokens)


def _residual_autograd(ctx: Any, kept: tuple[Tensor | None], d: Tensor) -> tuple[Any, ...]:
    (tokens,) = kept
    z_type, bias_type = ctx.types
    if tokens is None or ctx.numbers[0] == 0.0:
        dz, db = d, None if bias_type is None else d.sum(0)
    else:
        dz, db = _residual_add_backward(d, tokens, bias_type is not None, *ctx.numbers)
    return d, dz.to(z_type), None if bias_type is None or db is None else db.to(bias_type), *([None] * 5)


_residual_add.differentiable(_residual_setup, _residual_autograd)


def residual_add(
    stream: Tensor,
    z: Tensor,
    bias: Tensor | None = None,
    *,
    dropout: Dropout = NO_DROPOUT,
    tokens: Tensor | None = None,
) -> Tensor:
    """stream + dropout(z + bias), differentiable; stream, z (rows, width), bias (width,). tokens: int64 (rows,), the
    global token of each row (None: where `dropout` says that rows lie)."""
    if tokens is None and dropout.p > 0.0:
        tokens = dropout.tokens(z.shape[0], z.device)
    numbers = dropout.p, dropout.key_low, dropout.key_high, dropout.element_first
    return _residual_add(stream, z, bias, tokens, *numbers)


# ---------------------------------------------------------------- flat buffers


@triton_op("windtunnel::onebit_pack", mutates_args={"error"})
def onebit_pack(x: Tensor, error: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """`onebit.onebit_pack`; `error` is replaced by what was lost."""
    return onebit.onebit_pack(x, error, chunk=chunk, launcher=launcher())


@triton_op("windtunnel::onebit_unpack", mutates_args={})
def onebit_unpack(bits: Tensor, scale: Tensor, chunk: int) -> Tensor:
    """`onebit.onebit_unpack` to fp32."""
    return onebit.onebit_unpack(bits, scale, chunk=chunk, launcher=launcher())


@triton_op("windtunnel::checksum", mutates_args={})
def checksum(tensor: Tensor, word_first: int = 0) -> Tensor:
    """`checksum.checksum`."""
    return checksum_file.checksum(tensor, word_first=word_first, launcher=launcher())


@triton_op("windtunnel::delta_pack", mutates_args={})
def delta_pack(new: Tensor, base: Tensor) -> Tensor:
    """`delta.delta_pack`."""
    return delta.delta_pack(new, base, launcher=launcher())


@triton_op("windtunnel::delta_unpack", mutates_args={})
def delta_unpack(planes: Tensor, base: Tensor) -> Tensor:
    """`delta.delta_unpack` into a new tensor."""
    return delta.delta_unpack(planes, base, launcher=launcher())
