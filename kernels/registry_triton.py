"""The fused kernels of this package under the registry's signatures: what `kernels: triton` binds on CUDA.

Each adapter has its reference's arguments and results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels import activations, crossentropy, norms, reference_loss, residual, rotary
from kernels.adamw import AdamWStep, adamw_step
from kernels.crossentropy_columns import cross_entropy_columns

Tensor = torch.Tensor


def rmsnorm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(y, rstd)."""
    y, _, rstd, _ = norms.norm_forward("rms", x, weight, eps=eps)
    return y, rstd


def rmsnorm_backward(
    dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual: Tensor | None, weight_grad: Tensor
) -> Tensor:
    """dx."""
    return norms.norm_backward("rms", dy, x, weight, rstd, dstream=residual, weight_grad=weight_grad)[1]


def layernorm_forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, mean)."""
    y, _, rstd, mean = norms.norm_forward("layer", x, weight, bias, eps=eps)
    return y, rstd, mean


def layernorm_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    mean: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    weight_grad: Tensor,
    bias_grad: Tensor,
) -> Tensor:
    """dx."""
    return norms.norm_backward(
        "layer",
        dy,
        x,
        weight,
        rstd,
        mean,
        has_bias=True,
        dstream=residual,
        weight_grad=weight_grad,
        bias_grad=bias_grad,
    )[1]


def swiglu_forward(u: Tensor) -> Tensor:
    """silu(gate)·up; the halves of u are read in place."""
    return activations.swiglu_forward(*u.chunk(2, dim=-1))


def swiglu_backward(da: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(du, a); the halves of du are written in place."""
    gate, up = u.chunk(2, dim=-1)
    du, a = torch.empty_like(u), da.new_empty(da.shape)
    dgate, dup = du.chunk(2, dim=-1)
    activations.swiglu_backward(da, gate, up, dgate=dgate, dup=dup, h_out=a)
    return du, a


def gelu_forward(u: Tensor) -> Tensor:
    """gelu(u)."""
    return activations.gelu_forward(u)


def gelu_backward(da: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(du, a)."""
    a = da.new_empty(da.shape)
    return activations.gelu_backward(da, u, h_out=a)[0], a


def bias_grad(d: Tensor, grad: Tensor) -> Tensor:
    """grad += Σ over rows of d."""
    residual.residual_backward(d, grad)
    return grad


def rope_forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (s, b, heads, d) in place."""
    return _rope(x, cos, sin, rotary.rotary_forward)


def rope_backward(dx: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """dx in place."""
    return _rope(dx, cos, sin, rotary.rotary_backward)


def _rope(x: Tensor, cos: Tensor, sin: Tensor, turn: Callable[..., Any]) -> Tensor:
    """Both operands of the kernel are halves of the heads; it reads a row whole before it writes it, so in place is
    safe."""
    heads = x.transpose(0, 1)
    split = max(1, heads.shape[2] // 2)
    first, second = heads[:, :, :split], heads[:, :, split:]
    if second.shape[2] == 0:
        second = first[:, :, :0]
    turn(first, second, cos, sin, q_out=first, k_out=second)
    return x


def _size(first: int, valid: int, logits: Tensor) -> int:
    """Global vocabulary as far as a shard can tell: its own end when it holds padding, beyond every target when it does
    not."""
    return first + valid if valid < logits.shape[1] else 2**31 - 1


def ce_max(logits: Tensor, valid: int) -> Tensor:
    """(rows,)."""
    return crossentropy.row_max(logits, vocab_size=valid)


def ce_exp(logits: Tensor, row_max: Tensor, targets: Tensor, first: int, valid: int) -> Tensor:
    """(2, rows)."""
    size = _size(first, valid, logits)
    return torch.stack(crossentropy.exp_target(logits, row_max, targets, vocab_first=first, vocab_size=size))


def _times(scale: float, times: Tensor | None) -> float:
    """What gradients are multiplied by: the host has both."""
    return scale if times is None else scale * float(times)


def ce_loss(
    logits: Tensor,
    row_max: Tensor,
    sums: Tensor,
    targets: Tensor,
    loss: Tensor,
    first: int,
    valid: int,
    scale: float,
    times: Tensor | None = None,
) -> Tensor:
    """Logits become their gradient."""
    stats = crossentropy.RowStatistics(row_max, sums[0], sums[1])
    size = _size(first, valid, logits)
    rows, _ = crossentropy.cross_entropy(
        logits, targets, scale=_times(scale, times), stats=stats, vocab_first=first, vocab_size=size, in_place=True
    )
    loss.add_(rows.sum() * scale)
    return logits


def ce_columns(
    logits: Tensor, targets: Tensor, loss: Tensor, valid: int, scale: float, times: Tensor | None = None
) -> Tensor:
    """Transposed logits become their gradient."""
    rows = cross_entropy_columns(logits, targets, scale=_times(scale, times), vocab_size=valid)
    loss.add_(rows.sum() * scale)
    return logits


def adamw(
    master: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    coefficient: Tensor,
    weight: Tensor | None = None,
    found_inf: Tensor | None = None,
    decayed: Sequence[tuple[int, int]] = (),
    *,
    lr: float | Tensor = 1e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    step: int | Tensor = 1,
) -> None:
    """One pass over each stretch that decays, and each that does not; the low-precision copy is written on the way."""
    copy = weight if weight is not None and weight.data_ptr() != master.data_ptr() else None
    scale = coefficient.reshape(1).to(exp_avg.dtype)
    kept = reference_loss.complement(decayed, master.numel())
    for stretches, decay in ((decayed, weight_decay), (kept, 0.0)):
        numbers = AdamWStep(float(lr), int(step), betas[0], betas[1], eps, decay)
        for a, b in stretches:
            p, m, v, g = (t[a:b] for t in (master, exp_avg, exp_avg_sq, grad))
            low = None if copy is None else copy[a:b]
            adamw_step(p, m, v, g, numbers, grad_scale=scale, found_inf=found_inf, copy=low)


FUSED: dict[str, Callable[..., Any]] = {
    "rmsnorm_forward": rmsnorm_forward,
    "rmsnorm_backward": rmsnorm_backward,
    "layernorm_forward": layernorm_forward,
    "layernorm_backward": layernorm_backward,
    "swiglu_forward": swiglu_forward,
    "swiglu_backward": swiglu_backward,
    "gelu_forward": gelu_forward,
    "gelu_backward": gelu_backward,
    "add": residual.residual_forward,
    "add_backward": residual.residual_backward,
    "bias_grad": bias_grad,
    "rope_forward": rope_forward,
    "rope_backward": rope_backward,
    "ce_max": ce_max,
    "ce_exp": ce_exp,
    "ce_loss": ce_loss,
    "ce_columns": ce_columns,
    "adamw": adamw,
}
