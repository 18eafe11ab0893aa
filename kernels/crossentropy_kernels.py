"""Triton kernels of the cross entropy over rows of logits; `kernels/crossentropy.py` has the formulas, the reference
and the callers.

One program a row. The first pass keeps a maximum and a sum for each lane, one exponential an element: e = exp(−|x −
m|), then d ← d + e, or d ← d·e + 1 where x is the new maximum. (One program a multiprocessor, so that the second pass
finds its row in the L2, was measured and is slower: too little is in flight.) The running maximum starts at a finite
lowest value, so −inf logits stay exact zeros.
"""

from __future__ import annotations

from kernels.launch import tl, triton


@triton.jit
def _statistics(row_ptr, target, valid, BLOCK: tl.constexpr):
    """(maximum of others, Σ exp(x_j − it) over j ≠ target, x_target); one exponential an element."""
    lanes = tl.arange(0, BLOCK)
    m = tl.full([BLOCK], -3.0e38, tl.float32)
    d = tl.zeros([BLOCK], tl.float32)
    for start in range(0, valid, BLOCK):
        cols = start + lanes
        x = tl.load(row_ptr + cols, mask=cols < valid, other=float("-inf")).to(tl.float32)
        x = tl.where(cols == target, float("-inf"), x)
        e = tl.exp(-tl.abs(x - m))
        d = tl.where(x > m, d * e + 1.0, d + e)
        m = tl.maximum(m, x)
    top = tl.max(m, axis=0)
    return top, tl.sum(d * tl.exp(m - top), axis=0)


@triton.jit
def _gradient(row_ptr, out_ptr, target, valid, width, lse, factor, at_target, scale, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    for start in range(0, width, BLOCK):
        cols = start + lanes
        x = tl.load(row_ptr + cols, mask=cols < valid, other=float("-inf")).to(tl.float32)
        g = tl.where(cols == target, at_target, tl.exp(x - lse) * factor) * scale
        tl.store(out_ptr + cols, g.to(out_ptr.dtype.element_ty), mask=cols < width)


@triton.jit
def _zero(out_ptr, width, BLOCK: tl.constexpr):
    for start in range(0, width, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + cols, tl.zeros([BLOCK], tl.float32).to(out_ptr.dtype.element_ty), mask=cols < width)


@triton.jit
def row_max_kernel(logits_ptr, max_ptr, row_stride, valid, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    m = tl.full([BLOCK], -3.0e38, tl.float32)
    for start in range(0, valid, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        m = tl.maximum(
            m, tl.load(logits_ptr + row * row_stride + cols, mask=cols < valid, other=float("-inf")).to(tl.float32)
        )
    tl.store(max_ptr + row, tl.max(m, axis=0))


@triton.jit(do_not_specialize=["vocab_first"])
def exp_target_kernel(
    logits_ptr, max_ptr, target_ptr, others_ptr, target_logit_ptr, row_stride, valid, vocab_first, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    target = tl.load(target_ptr + row).to(tl.int64) - vocab_first
    local = (target >= 0) & (target < valid)
    row_max = tl.load(max_ptr + row)
    d = tl.zeros([BLOCK], tl.float32)
    for start in range(0, valid, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + cols, mask=cols < valid, other=float("-inf")).to(tl.float32)
        d += tl.where(cols == target, 0.0, tl.exp(x - row_max))
    tl.store(others_ptr + row, tl.sum(d, axis=0))
    tl.store(target_logit_ptr + row, tl.load(row_ptr + target, mask=local, other=0.0).to(tl.float32))


@triton.jit(do_not_specialize=["vocab_first", "ignore_index"])
def cross_entropy_kernel(
    logits_ptr, out_ptr, target_ptr, weight_ptr, max_ptr, others_ptr, target_logit_ptr, loss_ptr,
    row_stride, out_stride, valid, width, vocab_first, vocab_size, ignore_index, scale, z_loss,
    GIVEN: tl.constexpr, GRADIENT: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: statistics (read when GIVEN, else formed here), loss, and when GRADIENT the gradient into out (may be
    the logits)."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    out_row = out_ptr + row * out_stride
    label = tl.load(target_ptr + row).to(tl.int64)
    target = label - vocab_first
    if (label != ignore_index) & (label >= 0) & (label < vocab_size):
        if GIVEN:
            row_max = tl.load(max_ptr + row)
            others = tl.load(others_ptr + row)
            target_logit = tl.load(target_logit_ptr + row)
        else:
            target_logit = tl.load(row_ptr + target).to(tl.float32)
            top, others = _statistics(row_ptr, target, valid, BLOCK)
            row_max = tl.maximum(top, target_logit)
            others = others * tl.exp(top - row_max)
        z = tl.cast(z_loss, tl.float32)
        total = others + tl.exp(target_logit - row_max)
        lse = row_max + tl.log(total)
        tl.store(loss_ptr + row, lse - target_logit + z * lse * lse)
        if GRADIENT:
            tl.debug_barrier()  # every thread has read the row before any overwrites it
            factor = tl.cast(scale, tl.float32)
            if HAS_WEIGHT:
                factor = factor * tl.load(weight_ptr + row).to(tl.float32)
            at_target = 2.0 * z * lse * tl.exp(target_logit - lse) - others / total
            _gradient(row_ptr, out_row, target, valid, width, lse, 1.0 + 2.0 * z * lse, at_target, factor, BLOCK)
    else:
        tl.store(loss_ptr + row, 0.0)
        if GRADIENT:
            _zero(out_row, width, BLOCK)
