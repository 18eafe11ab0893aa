"""RMSNorm and LayerNorm in plain torch: the specification of `kernels/norms.py`, its CPU path and its test oracle."""

from __future__ import annotations

from typing import Literal

import torch

from kernels.random import Dropout, apply_mask

Tensor = torch.Tensor
Kind = Literal["rms", "layer"]
Rounding = Literal["fp32", "llama"]


def norm_forward_reference(
    kind: Kind,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    dropout: Dropout,
    rounding: Rounding,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, stream, rstd, mean) in plain torch.

    Computes in fp64 for fp64 input and in fp32 otherwise. mean is empty for rms.
    """
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    s = apply_mask(x.to(compute), dropout)
    if residual is not None:
        s = (s + residual.to(compute)).to(residual.dtype)
    else:
        s = s.to(x.dtype)
    stream, s = s, s.to(compute)
    mean = s.mean(-1, keepdim=True) if kind == "layer" else s.new_empty(0)
    centred = s - mean if kind == "layer" else s
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    xhat = centred * rstd
    if rounding == "llama":
        xhat = xhat.to(x.dtype).to(compute)
    y = xhat * weight.to(compute)
    if bias is not None:
        y = y + bias.to(compute)
    return y.to(x.dtype), stream, rstd.reshape(-1), mean.reshape(-1)


def norm_backward_reference(
    kind: Kind,
    dy: Tensor,
    stream: Tensor,
    weight: Tensor,
    rstd: Tensor,
    mean: Tensor,
    dstream: Tensor | None,
    dropout: Dropout,
    rounding: Rounding,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dresidual in stream's type, dx in dy's type, dweight, dbias), the last two in the computing type."""
    compute = torch.float64 if stream.dtype == torch.float64 else torch.float32
    width = stream.shape[-1]
    s, g_out = stream.reshape(-1, width).to(compute), dy.reshape(-1, width).to(compute)
    xhat = (s - mean[:, None].to(compute)) * rstd[:, None] if kind == "layer" else s * rstd[:, None]
    g = g_out * weight.to(compute)
    ds = g - xhat * (g * xhat).mean(-1, keepdim=True)
    if kind == "layer":
        ds = ds - g.mean(-1, keepdim=True)
    ds = ds * rstd[:, None]
    if dstream is not None:
        ds = ds + dstream.reshape(-1, width).to(compute)
    rounded = xhat.to(dy.dtype).to(compute) if rounding == "llama" else xhat
    dx = apply_mask(ds, dropout)
    return (
        ds.to(stream.dtype).view(stream.shape),
        dx.to(dy.dtype).view(stream.shape),
        (g_out * rounded).sum(0),
        g_out.sum(0),
    )
