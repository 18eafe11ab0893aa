"""Plain torch references of the pointwise operators of a layer: activations, rotary, residual adds with dropout,
embeddings.

Rows are tokens in (position, sample) order: row r of a micro-batch of b sequences is position r // b of sample r % b.
Dropout's mask depends on the global token and the element alone (`kernels.random`), so that it is the same under every
layout and recompute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.reference import compute_type

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Mask:
    """A dropout mask by its coordinates: `dropout` names probability and random stream (`kernels.random.Dropout`);
    `tokens` int64 holds the global token of every row, broadcastable against `elements`, int64, the global column of
    every element. `first_element`: where those columns follow one another, the first of them (else None)."""

    dropout: Any
    tokens: Tensor
    elements: Tensor
    first_element: int | None = None

    def apply(self, x: Tensor) -> Tensor:
        """x · mask / (1 − p): forward and backward of dropout are this one function."""
        from kernels.random import uniform_reference

        p = torch.full((), self.dropout.p, dtype=torch.float32, device=x.device)  # fp32, as the kernels compare
        keep = uniform_reference(self.dropout, self.tokens, self.elements) >= p
        return torch.where(keep, x * self.dropout.scale, torch.zeros((), dtype=x.dtype, device=x.device))


# ---------------------------------------------------------------- activations


def swiglu_forward(u: Tensor) -> Tensor:
    """silu(gate) · up (rows, f) of u (rows, 2f), whose first half is the gate."""
    gate, up = u.to(compute_type(u)).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(u.dtype)


def swiglu_backward(da: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(du, a): the gradient of u and the activation, made again for the weight gradient of the product after it."""
    gate, up = u.to(compute_type(u)).chunk(2, dim=-1)
    d = da.to(gate.dtype)
    sigma = torch.sigmoid(gate)
    silu = gate * sigma
    du = torch.cat((d * up * sigma * (1 + gate * (1 - sigma)), d * silu), dim=-1)
    return du.to(u.dtype), (silu * up).to(u.dtype)


def gelu_forward(u: Tensor) -> Tensor:
    """gelu(u), in the tanh form GPT-2 and Megatron use."""
    return torch.nn.functional.gelu(u.to(compute_type(u)), approximate="tanh").to(u.dtype)


def gelu_backward(da: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(du, a), as `swiglu_backward`."""
    wide = u.to(compute_type(u))
    du = torch.ops.aten.gelu_backward(da.to(wide.dtype), wide, approximate="tanh")
    return du.to(u.dtype), torch.nn.functional.gelu(wide, approximate="tanh").to(u.dtype)


def geglu_forward(u: Tensor) -> Tensor:
    """gelu(gate) · up (rows, f) of u (rows, 2f), whose first half is the gate."""
    gate, up = u.to(compute_type(u)).chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(u.dtype)


def geglu_backward(da: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(du, a), as `swiglu_backward`."""
    gate, up = u.to(compute_type(u)).chunk(2, dim=-1)
    d, turned = da.to(gate.dtype), torch.nn.functional.gelu(gate, approximate="tanh")
    du = torch.cat((torch.ops.aten.gelu_backward(d * up, gate, approximate="tanh"), d * turned), dim=-1)
    return du.to(u.dtype), (turned * up).to(u.dtype)


def relu_forward(u: Tensor) -> Tensor:
    """max(u, 0)."""
    return u.relu()


def relu_backward(da: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(du, a), as `swiglu_backward`."""
    return da * (u > 0), u.relu()


def relu2_forward(u: Tensor) -> Tensor:
    """max(u, 0)²."""
    return u.relu().square()


def relu2_backward(da: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(du, a), as `swiglu_backward`."""
    a = u.relu()
    return 2 * da * a, a.square()


# ---------------------------------------------------------------- caps and norms of heads


def softcap_forward(x: Tensor, cap: float, scale: float) -> Tensor:
    """x becomes cap · tanh(scale · x / cap), in place."""
    return x.copy_(torch.tanh(x.to(compute_type(x)) * (scale / cap)) * cap)


def softcap_backward(d: Tensor, y: Tensor, cap: float, scale: float) -> Tensor:
    """The gradient d of what `softcap_forward` made, y, becomes that of x, in place."""
    wide = y.to(compute_type(y)) / cap
    return d.copy_(d.to(wide.dtype) * (1 - wide.square()) * scale)


def rmsnorm_heads_forward(x: Tensor, weight: Tensor, y: Tensor, eps: float) -> Tensor:
    """rstd (tokens, heads): y (tokens, heads, width) = x · rstd · weight along the width; both may lie in wider
    rows."""
    s = x.to(compute_type(x))
    rstd = torch.rsqrt(s.square().mean(-1) + eps)
    y.copy_(s * rstd[..., None] * weight.to(s.dtype))
    return rstd


def rmsnorm_heads_backward(d: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
    """The gradient d of y becomes that of x, in place; the weight's is added into `grad`."""
    xhat, g = x.to(rstd.dtype) * rstd[..., None], d.to(rstd.dtype)
    grad.add_((g * xhat).sum((0, 1)))
    g = g * weight.to(rstd.dtype)
    return d.copy_((g - xhat * (g * xhat).mean(-1, keepdim=True)) * rstd[..., None])


# ---------------------------------------------------------------- rotary


def rope_forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (s, b, heads, d) rotated in place, rotate-half convention; cos and sin (s, d/2) in the computing type."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    c, s = cos[:, None, None, :], sin[:, None, None, :]
    return x.copy_(torch.cat((first * c - second * s, second * c + first * s), dim=-1))


def rope_backward(dx: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient before rotation, in place: a rotation the other way."""
    return rope_forward(dx, cos, -sin)


# ---------------------------------------------------------------- residual stream


def add(residual: Tensor, z: Tensor, bias: Tensor | None = None, mask: Mask | None = None) -> Tensor:
    """residual + dropout(z + bias)."""
    if bias is None and mask is None:
        return (residual + z).to(residual.dtype)
    wide = z.to(compute_type(z))
    if bias is not None:
        wide = wide + bias.to(wide.dtype)
    return (residual + (wide if mask is None else mask.apply(wide))).to(residual.dtype)


def add_backward(d: Tensor, grad: Tensor | None = None, mask: Mask | None = None) -> Tensor:
    """The branch's gradient: d itself without dropout. The bias's gradient is added into `grad` when given."""
    dz = d if mask is None else mask.apply(d)
    if grad is not None:
        grad.add_(dz.sum(0, dtype=grad.dtype))
    return dz


def bias_grad(d: Tensor, grad: Tensor) -> Tensor:
    """grad += Σ over rows of d."""
    return grad.add_(d.sum(0, dtype=grad.dtype))


# ---------------------------------------------------------------- embeddings


def embedding_forward(tokens: Tensor, table: Tensor, first: int = 0) -> Tensor:
    """Rows of the local table, which holds vocabulary first … first + rows − 1; tokens outside it give zero rows."""
    rows = table.shape[0]
    local = tokens - first
    x = table.index_select(0, local.clamp(0, rows - 1))
    return x.masked_fill_(((local < 0) | (local >= rows))[:, None], 0)


def embedding_backward(d: Tensor, tokens: Tensor, grad: Tensor, first: int = 0) -> Tensor:
    """grad[token] += d[row] for the tokens of the local table."""
    rows = grad.shape[0]
    local = tokens - first
    outside = ((local < 0) | (local >= rows))[:, None]
    return grad.index_add_(0, local.clamp(0, rows - 1), d.to(grad.dtype).masked_fill(outside, 0))


def position_forward(x: Tensor, table: Tensor, first: int = 0, batch: int = 1) -> Tensor:
    """x + the position rows; row r of x is row first + r of the micro-batch, at position (first + r) // batch."""
    return x + table.index_select(0, _positions(x.shape[0], first, batch, x.device))


def position_backward(d: Tensor, grad: Tensor, first: int = 0, batch: int = 1) -> Tensor:
    """grad[position] += d[row]."""
    return grad.index_add_(0, _positions(d.shape[0], first, batch, d.device), d.to(grad.dtype))


def _positions(rows: int, first: int, batch: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + rows, device=device).div(batch, rounding_mode="floor")
