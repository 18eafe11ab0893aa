"""Triton kernels of SwiGLU and GELU; `kernels/activations.py` has the formulas, the references and the callers."""

from __future__ import annotations

from kernels.launch import tl, triton


@triton.jit
def swiglu_forward_kernel(gate_ptr, up_ptr, h_ptr, gate_stride, up_stride, width, BLOCK: tl.constexpr):
    tiles = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    cols = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    gate = tl.load(gate_ptr + row * gate_stride + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + cols, mask=inside, other=0.0).to(tl.float32)
    h = gate * tl.sigmoid(gate) * up
    tl.store(h_ptr + row * width + cols, h.to(h_ptr.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_backward_kernel(
    dh_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    h_ptr,
    dh_stride,
    gate_stride,
    up_stride,
    dgate_stride,
    dup_stride,
    width,
    HAS_H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradients, and when HAS_H the activation again."""
    tiles = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    cols = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    dh = tl.load(dh_ptr + row * dh_stride + cols, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + cols, mask=inside, other=0.0).to(tl.float32)
    sigma = tl.sigmoid(gate)
    dgate = dh * up * sigma * (1.0 + gate * (1.0 - sigma))
    tl.store(dgate_ptr + row * dgate_stride + cols, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
    tl.store(dup_ptr + row * dup_stride + cols, (dh * gate * sigma).to(dup_ptr.dtype.element_ty), mask=inside)
    if HAS_H:
        tl.store(h_ptr + row * width + cols, (gate * sigma * up).to(h_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _logistic(z, stored: tl.constexpr):
    """(σ(z), 1 − σ(z)), the second without cancellation.

    For 16-bit results by 1/x = rsqrt(x)²: 2⁻²¹ of relative error, half the instructions of a division.
    """
    t = tl.exp2(tl.minimum(-1.4426950408889634 * z, 100.0))  # finite, so that t·σ is
    if stored == tl.float32:
        sigma = 1.0 / (1.0 + t)
    else:
        root = tl.math.rsqrt(1.0 + t)
        sigma = root * root
    return sigma, t * sigma


@triton.jit
def gelu_forward_kernel(
    x_ptr, bias_ptr, h_ptr, x_stride, width, HAS_BIAS: tl.constexpr, TANH: tl.constexpr, BLOCK: tl.constexpr
):
    tiles = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    cols = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    a = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        a += tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    if TANH:
        sigma, _ = _logistic(a * (1.5957691216057308 + 0.07135481282553472 * (a * a)), h_ptr.dtype.element_ty)
        h = a * sigma  # ½(1 + tanh z) = σ(2z)
    else:
        h = 0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476))
    tl.store(h_ptr + row * width + cols, h.to(h_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gelu_backward_kernel(
    dh_ptr, x_ptr, bias_ptr, dx_ptr, h_ptr, partial_ptr, dh_stride, x_stride, rows, width,
    HAS_H: tl.constexpr, HAS_BIAS: tl.constexpr, TANH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (column block, stripe): its columns over row tiles stripe, stripe + stripes, ….

    One partial bias gradient a stripe; when HAS_H the activation is written again.
    """
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    cols = flat[None, :]
    stripe = tl.program_id(1)
    dbias = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(stripe, tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (cols < width)
        dh = tl.load(dh_ptr + row * dh_stride + cols, mask=inside, other=0.0).to(tl.float32)
        a = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if HAS_BIAS:
            a += tl.load(bias_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
        if TANH:
            square = a * a
            sigma, rest = _logistic(a * (1.5957691216057308 + 0.07135481282553472 * square), dx_ptr.dtype.element_ty)
            h = a * sigma
            slope = sigma + h * rest * (1.5957691216057308 + 0.21406443847660416 * square)
        else:
            half = 0.5 * (1.0 + tl.erf(a * 0.7071067811865476))
            h = a * half
            slope = half + a * 0.3989422804014327 * tl.exp(-0.5 * a * a)
        dx = dh * slope
        tl.store(dx_ptr + row * width + cols, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if HAS_H:
            tl.store(h_ptr + row * width + cols, h.to(h_ptr.dtype.element_ty), mask=inside)
        dbias += dx
    if HAS_BIAS:
        tl.store(partial_ptr + tl.cast(stripe, tl.int64) * width + flat, tl.sum(dbias, axis=0), mask=flat < width)
