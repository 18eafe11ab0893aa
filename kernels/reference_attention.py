"""Causal attention: the fused kernels torch ships, called through their operators, and the softmax of the unfused form.

The fused operators are called directly (never `scaled_dot_product_attention`), because forward and backward are two
instructions of a step program and what is saved between them (output and log-sum-exp) must be in our hands. They take
grouped queries without copying keys. Scale is 1/√d. q (b, heads, s, d), k and v (b, kv_heads, s, d), any strides with
unit stride along d.
"""

from __future__ import annotations

import torch

from kernels.reference import compute_type
from kernels.reference_layer import Mask
from program.errors import InputError

Tensor = torch.Tensor
aten = torch.ops.aten


def attention_forward(q: Tensor, k: Tensor, v: Tensor, variant: str = "flash") -> tuple[Tensor, Tensor]:
    """(o (b, heads, s, d), lse (b, heads, s) in the computing type, contiguous and of its own)."""
    if "alibi" in variant:
        raise InputError("torch's fused attention takes no ALiBi bias; set plan.attention: unfused")
    if not q.is_cuda:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return out, lse.contiguous()
    _check_cuda(q)
    if variant.startswith("cudnn"):
        out, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[:2]
        return out, lse.reshape(q.shape[:3]).contiguous()
    out, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:2]
    return out, lse.contiguous()


def attention_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, variant: str = "flash"
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped as q, k, v, from what the forward returned."""
    if not q.is_cuda:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(do, q, k, v, o, lse, 0.0, True)
    _check_cuda(q)
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # generator state: there is no dropout inside
    s = q.shape[2]
    if variant.startswith("cudnn"):
        return aten._scaled_dot_product_cudnn_attention_backward(
            do, q, k, v, o, lse.unsqueeze(-1), unused, unused, None, None, None, s, s, 0.0, True
        )
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return aten._scaled_dot_product_flash_attention_backward(
        do, q, k, v, o, lse, None, None, s, s, 0.0, True, state, unused
    )


def _check_cuda(q: Tensor) -> None:
    if q.dtype not in (torch.bfloat16, torch.float16):
        kind = str(q.dtype).removeprefix("torch.")
        raise InputError(f"fused attention on CUDA takes bf16 or fp16, not {kind}; set plan.attention: unfused")


def softmax_forward(scores: Tensor, future: Tensor, scale: float, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """(probabilities, probabilities after dropout) of causal scores (batch, s, s); the same tensor twice without
    dropout. `future` (s, s) uint8 is 1 where a key comes after its query."""
    wide = scores.to(compute_type(scores)) * scale
    p = torch.softmax(wide.masked_fill_(future.view(torch.bool), float("-inf")), dim=-1).to(scores.dtype)
    return p, p if mask is None else mask.apply(p)


def softmax_backward(dp: Tensor, p: Tensor, scale: float, mask: Mask | None = None) -> Tensor:
    """Gradient of the scores from that of the (dropped) probabilities."""
    wide = p.to(compute_type(p))
    d = dp if mask is None else mask.apply(dp)
    d = d.to(wide.dtype)
    return ((d - (d * wide).sum(-1, keepdim=True)) * wide * scale).to(p.dtype)
