"""Positional arguments of each operator's function, of exactly the shapes, types and layouts that a `KernelCall` names,
so that what is timed is what a step runs.

A function of this file makes the arguments of the operators of its name from a `Maker`, which holds the call, the
device and the random generator.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import reference_attention, reference_layer, reference_loss
from kernels.random import Dropout
from program import KernelCall

Tensor = torch.Tensor
Inputs = tuple[Any, ...]
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
}


class Maker:
    """Random tensors of one call on one device."""

    def __init__(self, call: KernelCall, device: torch.device | str, generator: torch.Generator | None) -> None:
        self.call, self.device, self.generator = call, device, generator
        self.dtype = DTYPES[call.dtype]
        self.wide = torch.float64 if self.dtype == torch.float64 else torch.float32

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, generator=self.generator, dtype=self.wide).to(self.dtype)

    def stat(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.device, generator=self.generator, dtype=self.wide).add_(0.5)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=self.wide)

    def ids(self, rows: int, below: int) -> Tensor:
        return torch.randint(max(1, below), (rows,), device=self.device, generator=self.generator)

    def mask(self, rows: int, width: int) -> reference_layer.Mask | None:
        if "dropout" not in self.call.variant:
            return None
        tokens = torch.arange(rows, device=self.device)[:, None]
        dropout, elements = Dropout.at(0.1, seed=0, step=0, layer=0, site=0), torch.arange(width, device=self.device)
        return reference_layer.Mask(dropout, tokens, elements, first_element=0)


def gemm(m: Maker) -> Inputs:
    rows, columns, inner = m.call.shape
    layout = m.call.variant.partition("+")[0] or "nt"
    a = m.normal(inner, rows) if layout == "tn" else m.normal(rows, inner)
    b = m.normal(columns, inner) if layout == "nt" else m.normal(inner, columns)
    out = m.zeros(rows, columns) if "acc32" in m.call.variant else None
    return a, b, m.normal(columns) if "bias" in m.call.variant else None, out, m.call.variant


def bmm(m: Maker) -> Inputs:
    batch, rows, columns, inner = m.call.shape
    a = m.normal(batch, inner, rows) if m.call.variant == "tn" else m.normal(batch, rows, inner)
    b = m.normal(batch, columns, inner) if m.call.variant == "nt" else m.normal(batch, inner, columns)
    return a, b, m.call.variant


def qkv(m: Maker) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as views of one fused (s, b, columns) tensor, as a step has them."""
    b, heads, kv_heads, s, d = m.call.shape
    fused = m.normal(s, b, (heads + 2 * kv_heads) * d)
    parts = fused.split([heads * d, kv_heads * d, kv_heads * d], dim=-1)
    q, k, v = (part.view(s, b, -1, d).permute(1, 2, 0, 3) for part in parts)
    return q, k, v


def attention_backward(m: Maker) -> Inputs:
    q, k, v = qkv(m)
    out, lse = reference_attention.attention_forward(q, k, v, m.call.variant)
    b, heads, _, s, d = m.call.shape
    return m.normal(s, b, heads, d).permute(1, 2, 0, 3), q, k, v, out, lse, m.call.variant


def norm_backward(m: Maker) -> Inputs:
    rows, width = m.call.shape
    layer = m.call.op.startswith("layer")
    stats = (m.stat(rows), m.zeros(rows)) if layer else (m.stat(rows),)
    grads = (m.zeros(width), m.zeros(width)) if layer else (m.zeros(width),)
    return m.normal(rows, width), m.normal(rows, width), *stats, m.normal(width), m.normal(rows, width), *grads


def rope(m: Maker) -> Inputs:
    tokens, heads, d = m.call.shape
    angles = m.stat(tokens, d // 2)
    return m.normal(tokens, 1, heads, d), angles.cos(), angles.sin()


def add(m: Maker) -> Inputs:
    x = m.normal(*m.call.shape)
    bias = m.normal(m.call.shape[-1]) if "bias" in m.call.variant else None
    return x, m.normal(*m.call.shape), bias, m.mask(m.call.shape[0], m.call.shape[-1])


def add_backward(m: Maker) -> Inputs:
    rows, width = m.call.shape
    return m.normal(rows, width), m.zeros(width) if "bias" in m.call.variant else None, m.mask(rows, width)


def softmax(m: Maker) -> Inputs:
    rows, cols = m.call.shape
    scores = m.normal(rows // cols, cols, cols)
    mask = m.mask(cols, cols)
    if m.call.op.endswith("forward"):
        future = torch.ones(cols, cols, dtype=torch.uint8, device=m.device).triu_(1)
        return scores, future, cols**-0.5, mask
    return scores, torch.softmax(m.normal(rows // cols, cols, cols), -1), cols**-0.5, mask


def embedding(m: Maker) -> Inputs:
    tokens, width, rows = m.call.shape
    if m.call.op.endswith("forward"):
        return m.ids(tokens, rows), m.normal(rows, width)
    return m.normal(tokens, width), m.ids(tokens, rows), m.zeros(rows, width)


def cross_entropy(m: Maker) -> Inputs:
    rows, columns = m.call.shape
    logits = m.normal(rows, columns)
    if m.call.op == "ce_max":
        return logits, columns
    targets, row_max = m.ids(rows, columns), reference_loss.ce_max(logits, columns)
    if m.call.op == "ce_exp":
        return logits, row_max, targets, 0, columns
    sums = reference_loss.ce_exp(logits, row_max, targets, 0, columns)
    return logits, row_max, sums, targets, m.zeros(1), 0, columns, 1.0 / rows


def copy(m: Maker) -> Inputs:
    source, _, target = m.call.variant.partition("->")
    x = m.normal(*m.call.shape)
    return x.to(DTYPES[target or m.call.dtype]), x.to(DTYPES[source or m.call.dtype])


def adamw(m: Maker) -> Inputs:
    n = m.call.shape[0]
    low = DTYPES[m.call.variant] if m.call.variant and m.call.variant != m.call.dtype else None
    weight = None if low is None else torch.zeros(n, dtype=low, device=m.device)
    one = torch.ones((), dtype=m.wide, device=m.device)
    return m.normal(n).to(m.wide), m.stat(n), m.stat(n), m.stat(n), one, weight, None, ((0, n),)
