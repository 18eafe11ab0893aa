"""The specification of the activations: plain torch, what a CPU and fp64 run. Formulas: `kernels/activations.py`."""

from __future__ import annotations

from typing import Literal

import torch

Tensor = torch.Tensor
Approximation = Literal["none", "tanh"]


def _compute_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def swiglu_forward_reference(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up in gate's type, computed in fp32 (fp64 for fp64)."""
    compute = _compute_type(gate)
    return (torch.nn.functional.silu(gate.to(compute)) * up.to(compute)).to(gate.dtype)


def swiglu_backward_reference(dh: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """(dgate, dup)."""
    compute = _compute_type(gate)
    d, g, u = dh.to(compute), gate.to(compute), up.to(compute)
    sigma = torch.sigmoid(g)
    return (d * u * sigma * (1 + g * (1 - sigma))).to(gate.dtype), (d * g * sigma).to(up.dtype)


def gelu_forward_reference(x: Tensor, bias: Tensor | None, approximate: Approximation) -> Tensor:
    """gelu(x + bias) in x's type."""
    compute = _compute_type(x)
    a = x.to(compute) if bias is None else x.to(compute) + bias.to(compute)
    return torch.nn.functional.gelu(a, approximate=approximate).to(x.dtype)


def gelu_backward_reference(
    dh: Tensor, x: Tensor, bias: Tensor | None, approximate: Approximation
) -> tuple[Tensor, Tensor]:
    """(dx in x's type, dbias in the computing type)."""
    compute = _compute_type(x)
    a = x.to(compute) if bias is None else x.to(compute) + bias.to(compute)
    dx = torch.ops.aten.gelu_backward(dh.to(compute), a, approximate=approximate)
    return dx.to(x.dtype), dx.reshape(-1, x.shape[-1]).sum(0)
