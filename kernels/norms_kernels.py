"""Triton kernels of RMSNorm and LayerNorm; `kernels/norms.py` says what they compute and calls them.

Forward: one program a row tile, one pass. Backward: a persistent grid, `k` programs a multiprocessor; each strides
over the rows, writes the input gradient and keeps its share of the weight gradient in fp32 registers, then stores one
partial row; `sum_partials_kernel` adds the partial rows in a fixed order. Neither atomics nor locks: the weight
gradient is the same bits on every run, and the second kernel's work does not grow with the number of rows. Rows wider
than registers hold: `kernels/norms_wide.py`.
"""

from __future__ import annotations

from kernels.launch import tl, triton
from kernels.random import keep_tile, token_of


@triton.jit(do_not_specialize=["token_first", "element_first", "key_low", "key_high", "sample_stride"])
def norm_forward_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, stream_ptr, mean_ptr, rstd_ptr,
    x_stride, residual_stride, rows, width, eps,
    p, keep_scale, key_low, key_high, token_first, element_first, samples, sample_stride,
    RMS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    STORE_STREAM: tl.constexpr, ROUND: tl.constexpr, RELOAD: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """stream = residual + dropout(x); y = (stream − mean)·rstd·weight + bias. ROUND: y's type is applied before the
    weight.

    RELOAD: read the weight again for each row tile (from L1) instead of holding it in registers.
    """
    cols = tl.arange(0, BLOCK)[None, :]
    column = cols < width
    inverse_width = tl.math.div_rn(1.0, tl.cast(width, tl.float32))  # exact for width 1, where x − mean must be 0
    if not RELOAD:
        weight = tl.load(weight_ptr + cols, mask=column, other=0.0)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + cols, mask=column, other=0.0)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        live = row < rows
        inside = live & column
        s = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROPOUT:
            keep = keep_tile(
                token_of(row, token_first, samples, sample_stride), cols + element_first, key_low, key_high, p
            )
            s = tl.where(keep, s * tl.cast(keep_scale, tl.float32), 0.0)
        if HAS_RESIDUAL:
            s += tl.load(residual_ptr + row * residual_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if STORE_STREAM:
            stored = s.to(stream_ptr.dtype.element_ty)
            tl.store(stream_ptr + row * width + cols, stored, mask=inside)
            s = stored.to(tl.float32)  # normalise what the backward will read
        if RMS:
            centred = s
        else:
            mean = tl.sum(s, axis=1, keep_dims=True) * inverse_width
            centred = tl.where(column, s - mean, 0.0)
            tl.store(mean_ptr + row, mean, mask=live)
        variance = tl.sum(centred * centred, axis=1, keep_dims=True) / width
        rstd = 1.0 / tl.sqrt(variance + tl.cast(eps, tl.float32))
        tl.store(rstd_ptr + row, rstd, mask=live)
        y = centred * rstd
        if ROUND:
            y = y.to(y_ptr.dtype.element_ty).to(tl.float32)
        if RELOAD:
            weight = tl.load(weight_ptr + cols, mask=column, other=0.0, eviction_policy="evict_last")
        y = y * weight.to(tl.float32)
        if HAS_BIAS:
            if RELOAD:
                bias = tl.load(bias_ptr + cols, mask=column, other=0.0, eviction_policy="evict_last")
            y += bias.to(tl.float32)
        tl.store(y_ptr + row * width + cols, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["token_first", "element_first", "key_low", "key_high", "sample_stride"])
def norm_backward_kernel(
    dy_ptr, stream_ptr, weight_ptr, mean_ptr, rstd_ptr, dstream_ptr, dresidual_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    dy_stride, stream_stride, dstream_stride, rows, width,
    p, keep_scale, key_low, key_high, token_first, element_first, samples, sample_stride,
    RMS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DSTREAM: tl.constexpr, SPLIT: tl.constexpr,
    HAS_DROPOUT: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, ROUND: tl.constexpr, EXACT: tl.constexpr,
    RELOAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """d(stream) into dresidual, and when SPLIT its dropped-out copy in x's type into dx; partial weight gradients
    into row `program`.

    EXACT: width = BLOCK, no column mask. RELOAD: read the weight again for each row (from L1) instead of holding it
    in registers.
    """
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)[None, :]
    column = cols < width
    if EXACT:
        column = cols < BLOCK
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK], tl.float32)
    inverse_width = tl.math.div_rn(1.0, tl.cast(width, tl.float32))
    if not RELOAD:
        weight = tl.load(weight_ptr + cols, mask=column, other=0.0).to(tl.float32)
    for tile in tl.range(program, tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        live = row < rows
        inside = column & live
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
        xhat = tl.load(stream_ptr + row * stream_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if HAS_DSTREAM:
            added = tl.load(dstream_ptr + row * dstream_stride + cols, mask=inside, other=0.0)
        rstd = tl.load(rstd_ptr + row, mask=live, other=0.0)
        if RELOAD:
            weight = tl.load(weight_ptr + cols, mask=column, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if not RMS:
            xhat = xhat - tl.load(mean_ptr + row, mask=live, other=0.0)
        xhat = xhat * rstd
        g = dy * weight
        if WEIGHT_GRADIENT:
            scaled = xhat
            if ROUND:
                scaled = xhat.to(dy_ptr.dtype.element_ty).to(tl.float32)
            dweight += dy * scaled
        ds = g - xhat * (tl.sum(g * xhat, axis=1, keep_dims=True) / width)
        if not RMS:
            ds -= tl.sum(g, axis=1, keep_dims=True) * inverse_width
        if HAS_BIAS:
            dbias += dy
        ds = ds * rstd
        if HAS_DSTREAM:
            ds += added.to(tl.float32)
        tl.store(dresidual_ptr + row * width + cols, ds.to(dresidual_ptr.dtype.element_ty), mask=inside)
        if SPLIT:
            if HAS_DROPOUT:
                keep = keep_tile(
                    token_of(row, token_first, samples, sample_stride), cols + element_first, key_low, key_high, p
                )
                ds = tl.where(keep, ds * tl.cast(keep_scale, tl.float32), 0.0)
            tl.store(dx_ptr + row * width + cols, ds.to(dx_ptr.dtype.element_ty), mask=inside)
    out = program.to(tl.int64) * width + tl.arange(0, BLOCK)
    column_mask = tl.arange(0, BLOCK) < width
    if WEIGHT_GRADIENT:
        tl.store(dweight_ptr + out, tl.sum(dweight, axis=0), mask=column_mask)
    if HAS_BIAS:
        tl.store(dbias_ptr + out, tl.sum(dbias, axis=0), mask=column_mask)


@triton.jit
def sum_partials_kernel(
    partial_ptr, out_ptr, partials, width, ACCUMULATE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """out (+)= Σ over `partials` rows of an fp32 (partials, width) matrix, in a fixed order."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(0, partials, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < partials) & (cols < width)[None, :]
        total += tl.load(partial_ptr + tl.cast(row, tl.int64) * width + cols[None, :], mask=inside, other=0.0)
    value = tl.sum(total, axis=0)
    if ACCUMULATE:
        value += tl.load(out_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
    tl.store(out_ptr + cols, value.to(out_ptr.dtype.element_ty), mask=cols < width)
