"""Triton kernels of RMSNorm and LayerNorm for rows too wide for one program's registers: rows are looped over and
read again.

Slower than `kernels/norms_kernels.py` by the extra reads, correct at any width, and never spilled.
"""

from __future__ import annotations

from kernels.launch import tl, triton
from kernels.random import keep_tile, token_of


@triton.jit(do_not_specialize=["token_first", "element_first", "key_low", "key_high", "sample_stride"])
def norm_wide_forward_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, stream_ptr, mean_ptr, rstd_ptr,
    x_stride, residual_stride, rows, width, eps,
    p, keep_scale, key_low, key_high, token_first, element_first, samples, sample_stride,
    RMS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    STORE_STREAM: tl.constexpr, ROUND: tl.constexpr, EXACT: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A row tile, looped over in blocks of columns and read two times (rms) or three: the first read asks the caches
    to keep the row, the last lets it go. EXACT: blocks and tiles divide the shape, no masks; COLUMNS is then the width,
    so that the compiler sees how many blocks there are and has their loads in flight together."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    live = row < rows
    columns = COLUMNS if EXACT else width
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(0, columns, BLOCK):
        cols = start + lanes
        inside = live & (cols < width)
        if EXACT:
            inside = lanes < BLOCK
        s = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if HAS_DROPOUT:
            token = token_of(row, token_first, samples, sample_stride)
            keep = keep_tile(token, cols + element_first, key_low, key_high, p)
            s = tl.where(keep, s * tl.cast(keep_scale, tl.float32), 0.0)
        if HAS_RESIDUAL:
            s += tl.load(residual_ptr + row * residual_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if STORE_STREAM:
            stored = s.to(stream_ptr.dtype.element_ty)
            tl.store(stream_ptr + row * width + cols, stored, mask=inside)
            s = stored.to(tl.float32)
        total += s * s if RMS else s
    if STORE_STREAM:
        tl.debug_barrier()  # the row is read back below
        source, stride = stream_ptr, tl.cast(width, tl.int64)
    else:
        source, stride = x_ptr, tl.cast(x_stride, tl.int64)
    mean = tl.zeros([ROWS, 1], tl.float32)
    if not RMS:
        mean = tl.sum(total, axis=1, keep_dims=True) / width
        tl.store(mean_ptr + row, mean, mask=live)
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in tl.range(0, columns, BLOCK):
            cols = start + lanes
            inside = live & (cols < width)
            s = tl.load(source + row * stride + cols, mask=inside, other=0.0, eviction_policy="evict_last")
            centred = tl.where(inside, s.to(tl.float32) - mean, 0.0)
            total += centred * centred
    variance = tl.sum(total, axis=1, keep_dims=True) / width
    rstd = 1.0 / tl.sqrt(variance + tl.cast(eps, tl.float32))
    tl.store(rstd_ptr + row, rstd, mask=live)
    for start in tl.range(0, columns, BLOCK):
        cols = start + lanes
        column = cols < width
        inside = live & column
        if EXACT:
            column = lanes < BLOCK
            inside = column
        s = tl.load(source + row * stride + cols, mask=inside, other=0.0, eviction_policy="evict_first")
        y = (s.to(tl.float32) - mean) * rstd
        if ROUND:
            y = y.to(y_ptr.dtype.element_ty).to(tl.float32)
        y = y * tl.load(weight_ptr + cols, mask=column, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if HAS_BIAS:
            y += tl.load(bias_ptr + cols, mask=column, other=0.0, eviction_policy="evict_last").to(tl.float32)
        tl.store(y_ptr + row * width + cols, y.to(y_ptr.dtype.element_ty), mask=inside, cache_modifier=".cs")


@triton.jit(do_not_specialize=["token_first", "element_first", "key_low", "key_high", "sample_stride"])
def norm_wide_backward_kernel(
    dy_ptr, stream_ptr, weight_ptr, mean_ptr, rstd_ptr, dstream_ptr, dresidual_ptr, dx_ptr,
    dy_stride, stream_stride, dstream_stride, rows, width,
    p, keep_scale, key_low, key_high, token_first, element_first, samples, sample_stride,
    RMS: tl.constexpr, HAS_DSTREAM: tl.constexpr, SPLIT: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The input gradient of a row too wide for registers: one program a row, read twice (the second time mostly from
    the L2)."""
    row = tl.program_id(0).to(tl.int64)
    if row < rows:
        rstd = tl.load(rstd_ptr + row)
        mean = 0.0
        if not RMS:
            mean = tl.load(mean_ptr + row)
        product = tl.zeros([BLOCK], tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            inside = cols < width
            g = tl.load(dy_ptr + row * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
            g = g * tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
            xhat = (
                tl.load(stream_ptr + row * stream_stride + cols, mask=inside, other=0.0).to(tl.float32) - mean
            ) * rstd
            product += g * xhat
            total += g
        slope = tl.sum(product, axis=0) / width
        shift = 0.0
        if not RMS:
            shift = tl.sum(total, axis=0) / width
        for start in range(0, width, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            inside = cols < width
            g = tl.load(dy_ptr + row * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
            g = g * tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
            xhat = (
                tl.load(stream_ptr + row * stream_stride + cols, mask=inside, other=0.0).to(tl.float32) - mean
            ) * rstd
            ds = (g - xhat * slope - shift) * rstd
            if HAS_DSTREAM:
                ds += tl.load(dstream_ptr + row * dstream_stride + cols, mask=inside, other=0.0).to(tl.float32)
            tl.store(dresidual_ptr + row * width + cols, ds.to(dresidual_ptr.dtype.element_ty), mask=inside)
            if SPLIT:
                if HAS_DROPOUT:
                    tokens = token_of(row, token_first, samples, sample_stride) + tl.zeros([BLOCK], tl.int64)
                    keep = keep_tile(tokens, cols + element_first, key_low, key_high, p)
                    ds = tl.where(keep, ds * tl.cast(keep_scale, tl.float32), 0.0)
                tl.store(dx_ptr + row * width + cols, ds.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_columns_kernel(
    dy_ptr, stream_ptr, mean_ptr, rstd_ptr, dweight_ptr, dbias_ptr, dy_stride, stream_stride, rows, width,
    RMS: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, HAS_BIAS: tl.constexpr, ROUND: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weight gradient of rows too wide for registers: program (column block, stripe) strides over row tiles of its
    columns."""
    cols = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    stripe = tl.program_id(1)
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(stripe, tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (cols < width)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
        xhat = tl.load(stream_ptr + row * stream_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if not RMS:
            xhat = xhat - tl.load(mean_ptr + row, mask=row < rows, other=0.0)
        xhat = xhat * tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        if ROUND:
            xhat = xhat.to(dy_ptr.dtype.element_ty).to(tl.float32)
        dweight += dy * xhat
        if HAS_BIAS:
            dbias += dy
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    out = stripe.to(tl.int64) * width + flat
    if WEIGHT_GRADIENT:
        tl.store(dweight_ptr + out, tl.sum(dweight, axis=0), mask=flat < width)
    if HAS_BIAS:
        tl.store(dbias_ptr + out, tl.sum(dbias, axis=0), mask=flat < width)
