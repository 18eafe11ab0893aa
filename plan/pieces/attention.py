"""Kernel calls of the attention itself, between the products of its piece: fused into one kernel, or with its scores in
memory.

Unfused it is Megatron-LM's `CoreAttention`: a product of queries and keys, a softmax, a product with the values. Its
transposes of QKV and context are the copies `split` and `merge`; what a dropped probability costs besides is a copy
forward and backward. Each function returns (calls, transient bytes).
"""

from __future__ import annotations

from plan.pieces.shapes import Extents
from plan.pieces.sheet import present
from plan.program import DTYPE_BYTES, KernelCall

Calls = tuple[KernelCall, ...]


def attention_forward(e: Extents) -> tuple[Calls, int]:
    """Rotation (rotary positions), then the attention; unfused, its scores are transient."""
    rope = _rope(e, "rope_forward")
    if not e.unfused:
        return (*rope, KernelCall("attention_forward", *_fused(e))), 0
    product, square, split, merge, masked = _parts(e)
    # Megatron-DeepSpeed's scores are a baddbmm on ALiBi: its rows written over the square, and read by the product.
    bias = (KernelCall("fill", (square,), e.dtype, "", 2),) if e.serial and e.alibi else ()
    return (
        *rope,
        *split,
        *bias,
        KernelCall("bmm", product, e.dtype, "nt"),
        KernelCall("softmax_forward", *_softmax(e)),
        *masked,
        KernelCall("bmm", _with_values(e), e.dtype, "nn"),
        *merge,
    ), square * DTYPE_BYTES[e.dtype]


def attention_backward(e: Extents) -> tuple[Calls, int]:
    """The gradients of queries, keys and values, then the rotation's."""
    rope = _rope(e, "rope_backward")
    gradients = e.tokens * (e.q + e.qkv) * DTYPE_BYTES[e.dtype]
    if not e.unfused:
        return (KernelCall("attention_backward", *_fused(e)), *rope), gradients
    product, square, split, merge, masked = _parts(e)
    return (
        *merge,
        KernelCall("bmm", _with_values(e), e.dtype, "tn"),
        KernelCall("bmm", product, e.dtype, "nt"),
        *masked,
        KernelCall("softmax_backward", *_softmax(e)),
        KernelCall("bmm", _with_values(e), e.dtype, "nn"),
        KernelCall("bmm", _with_values(e), e.dtype, "tn"),
        *split,
        *rope,
    ), 2 * square * DTYPE_BYTES[e.dtype] + gradients


def _rope(e: Extents, op: str) -> Calls:
    return (KernelCall(op, (e.tokens, e.heads + e.kv_heads, e.head_dim), e.dtype),) if e.rotary else ()


def _fused(e: Extents) -> tuple[tuple[int, ...], str, str]:
    """Shape, dtype and variant of a fused kernel."""
    return (e.batch, e.heads, e.kv_heads, e.seq, e.head_dim), e.dtype, e.attention + ("+alibi" if e.alibi else "")


def _softmax(e: Extents) -> tuple[tuple[int, ...], str, str]:
    """Shape, dtype and variant of the softmax over the scores."""
    variant = "+".join(present("causal", "dropout" if e.attention_dropout else None, "alibi" if e.alibi else None))
    return (e.batch * e.heads * e.seq, e.seq), e.dtype, variant


def _with_values(e: Extents) -> tuple[int, int, int, int]:
    """The product of probabilities and values, (matrices, m, n, k)."""
    return e.batch * e.heads, e.seq, e.head_dim, e.seq


def _parts(e: Extents) -> tuple[tuple[int, int, int, int], int, Calls, Calls, Calls]:
    """Unfused: the product of queries and keys, elements of the scores, and Megatron's copies: split, merge, masked."""
    matrices, s = e.batch * e.heads, e.seq
    split = (KernelCall("copy", (e.tokens * e.qkv,), e.dtype),) if e.megatron else ()
    merge = (KernelCall("copy", (e.tokens * e.q,), e.dtype),) if e.megatron else ()
    masked = (KernelCall("copy", (matrices * s * s,), e.dtype),) if e.megatron and e.attention_dropout else ()
    return (matrices, s, s, e.head_dim), matrices * s * s, split, merge, masked
