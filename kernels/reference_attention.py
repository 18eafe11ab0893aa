"""Causal attention: the fused kernels torch ships, called through their operators, and the softmax of the unfused form.

The fused operators are called directly (never `scaled_dot_product_attention`), because forward and backward are two
instructions of a step program and what is saved between them (output and log-sum-exp) must be in our hands. They take
grouped queries without copying keys. Scale is 1/√d. q (b, heads, s, d), k and v (b, kv_heads, s, d), any strides with
unit stride along d.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kernels.reference import compute_type
from kernels.reference_layer import Mask
from program.errors import InputError

Tensor = torch.Tensor
aten = torch.ops.aten


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, variant: str = "flash", scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """(o (b, heads, s, d), lse (b, heads, s) in the computing type, contiguous and of its own). `scale` of scores: None
    is 1/√d. A variant's "+windowN" is attention to the last N keys."""
    if "alibi" in variant:
        raise InputError("torch's fused attention takes no ALiBi bias; set plan.attention: unfused")
    if not q.is_cuda:
        mask = _band(q, variant)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        return out, lse.contiguous()
    _check_cuda(q)
    if (left := _window(variant)) is not None:
        s, rows = q.shape[2], [t.transpose(1, 2) for t in (q, k, v)]
        out, lse = aten._flash_attention_forward(
            *rows, None, None, s, s, 0.0, True, False, scale=scale, window_size_left=left - 1, window_size_right=0
        )[:2]
        return out.transpose(1, 2), lse.contiguous()
    if variant.startswith("cudnn"):
        out, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, scale=scale)[:2]
        return out, lse.reshape(q.shape[:3]).contiguous()
    out, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scale)[:2]
    return out, lse.contiguous()


def attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    variant: str = "flash",
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped as q, k, v, from what the forward returned."""
    if not q.is_cuda:
        mask = _band(q, variant)
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, o, lse, 0.0, mask is None, attn_mask=mask, scale=scale
        )
    _check_cuda(q)
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # generator state: there is no dropout inside
    s = q.shape[2]
    if variant.startswith("cudnn"):
        return aten._scaled_dot_product_cudnn_attention_backward(
            do, q, k, v, o, lse.unsqueeze(-1), unused, unused, None, None, None, s, s, 0.0, True, scale=scale
        )
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    if (left := _window(variant)) is not None:
        rows = [t.transpose(1, 2) for t in (do, q, k, v, o)]
        made = aten._flash_attention_backward(
            *rows, lse, None, None, s, s, 0.0, True, state, unused,
            scale=scale, window_size_left=left - 1, window_size_right=0,
        )  # fmt: skip
        dq, dk, dv = (t.transpose(1, 2) for t in made)
        return dq, dk, dv
    return aten._scaled_dot_product_flash_attention_backward(
        do, q, k, v, o, lse, None, None, s, s, 0.0, True, state, unused, scale=scale
    )


def _window(variant: str) -> int | None:
    """The window that a variant names."""
    size = variant.partition("+window")[2]
    return int(size) if size else None


def _band(q: Tensor, variant: str) -> Tensor | None:
    """The window as torch's kernel of a CPU takes it: what is added to scores (s, s); None without one."""
    size = _window(variant)
    return None if size is None else _banded(q.shape[2], size, q.dtype)


@lru_cache(maxsize=4)
def _banded(seq: int, size: int, dtype: torch.dtype) -> Tensor:
    seen = torch.ones(seq, seq, dtype=torch.bool).tril_().triu_(1 - size)
    return torch.zeros(seq, seq, dtype=dtype).masked_fill_(~seen, float("-inf"))


def _check_cuda(q: Tensor) -> None:
    if q.dtype not in (torch.bfloat16, torch.float16):
        kind = str(q.dtype).removeprefix("torch.")
        raise InputError(f"fused attention on CUDA takes bf16 or fp16, not {kind}; set plan.attention: unfused")


def _as_bool(table: Tensor) -> Tensor:
    """Bytes 0 and 1 as booleans: a view, where torch.compile, which knows no such view, does not look."""
    return table.to(torch.bool) if torch.compiler.is_compiling() else table.view(torch.bool)


def softmax_forward(scores: Tensor, future: Tensor, scale: float, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """(probabilities, probabilities after dropout) of causal scores (batch, s, s); the same tensor twice without
    dropout. `future` (s, s) uint8 is 1 where a key comes after its query."""
    wide = scores.to(compute_type(scores)) * scale
    p = torch.softmax(wide.masked_fill_(_as_bool(future), float("-inf")), dim=-1).to(scores.dtype)
    return p, p if mask is None else mask.apply(p)


def softmax_backward(dp: Tensor, p: Tensor, scale: float, mask: Mask | None = None) -> Tensor:
    """Gradient of the scores from that of the (dropped) probabilities."""
    wide = p.to(compute_type(p))
    d = dp if mask is None else mask.apply(dp)
    d = d.to(wide.dtype)
    return ((d - (d * wide).sum(-1, keepdim=True)) * wide * scale).to(p.dtype)
