"""One-bit compression with error feedback, for 1-bit Adam (Tang et al. 2021).

    c = x + error        scale = mean |c| over each chunk        bit = (c ≥ 0)        error ← c − (±scale)

Bits are packed eight a byte, least significant first. What the rounding loses goes back in at the next step, so the
compressed sum over steps tracks the true one. `onebit_unpack` returns the mean over workers of ±scale. n is a
multiple of the chunk and the chunk of 8 (flat buffers are padded, see the plan's buckets). The scale is reduced in
fp32 over fixed partial sums: the same bits on every run.
"""

from __future__ import annotations

import torch

from kernels.direct import start
from kernels.launch import FLOATS, KernelArgumentError, cdiv, check_float, check_tensor, tl, triton, use_triton
from kernels.written import written

Tensor = torch.Tensor

BLOCK = 4096
"""Elements a program; a divisor or multiple of nothing in particular, the last block of a chunk is masked."""

# ---------------------------------------------------------------- reference


def onebit_pack_reference(x: Tensor, error: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """(bits uint8 (n/8,), scale (n/chunk,)); writes error."""
    c = x.to(error.dtype) + error
    scale = c.view(-1, chunk).abs().mean(1)
    positive = c >= 0
    signed = torch.where(positive.view(-1, chunk), scale[:, None], -scale[:, None]).reshape(-1)
    error.copy_(c - signed)
    shift = torch.arange(8, dtype=torch.int32, device=x.device)
    return (positive.view(-1, 8).to(torch.int32) << shift).sum(1).to(torch.uint8), scale


def onebit_unpack_reference(bits: Tensor, scale: Tensor, chunk: int) -> Tensor:
    """Mean over the workers (first axis) of ±scale, (n,)."""
    workers = bits.shape[0]
    shift = torch.arange(8, dtype=torch.int32, device=bits.device)
    positive = ((bits.to(torch.int32)[:, :, None] >> shift) & 1).view(workers, -1, chunk).bool()
    return torch.where(positive, scale[:, :, None], -scale[:, :, None]).view(workers, -1).sum(0) / workers


# ---------------------------------------------------------------- Triton


@triton.jit
def abs_sum_kernel(x_ptr, error_ptr, partial_ptr, chunk, blocks, BLOCK: tl.constexpr):
    """partial[chunk, block] = Σ |x + error|."""
    which = tl.program_id(0).to(tl.int64)
    lane = (which % blocks) * BLOCK + tl.arange(0, BLOCK)
    offset = (which // blocks) * chunk + lane
    inside = lane < chunk
    c = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32) + tl.load(
        error_ptr + offset, mask=inside, other=0.0
    )
    tl.store(partial_ptr + which, tl.sum(tl.abs(c), axis=0))


@triton.jit
def pack_kernel(x_ptr, error_ptr, scale_ptr, bits_ptr, chunk, blocks, BYTES: tl.constexpr):
    which = tl.program_id(0).to(tl.int64)
    in_chunk = (which % blocks) * BYTES + tl.arange(0, BYTES)
    lane = in_chunk[:, None] * 8 + tl.arange(0, 8)[None, :]
    offset = (which // blocks) * chunk + lane
    inside = lane < chunk
    c = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32) + tl.load(
        error_ptr + offset, mask=inside, other=0.0
    )
    scale = tl.load(scale_ptr + which // blocks)
    positive = c >= 0.0
    tl.store(error_ptr + offset, c - tl.where(positive, scale, -scale), mask=inside)
    packed = tl.sum(positive.to(tl.int32) << tl.arange(0, 8)[None, :], axis=1)
    tl.store(bits_ptr + (which // blocks) * (chunk // 8) + in_chunk, packed.to(tl.uint8), mask=in_chunk * 8 < chunk)


@triton.jit
def unpack_kernel(bits_ptr, scale_ptr, out_ptr, workers, n, chunk, chunks, blocks, BYTES: tl.constexpr):
    which = tl.program_id(0).to(tl.int64)
    here = which // blocks
    in_chunk = (which % blocks) * BYTES + tl.arange(0, BYTES)
    live = in_chunk * 8 < chunk
    total = tl.zeros([BYTES, 8], tl.float32)
    for worker in range(workers):
        w = tl.cast(worker, tl.int64)
        bits = tl.load(bits_ptr + w * (n // 8) + here * (chunk // 8) + in_chunk, mask=live, other=0).to(tl.int32)
        scale = tl.load(scale_ptr + w * chunks + here)
        positive = (bits[:, None] >> tl.arange(0, 8)[None, :]) & 1
        total += scale * (2 * positive - 1).to(tl.float32)
    offset = here * chunk + in_chunk[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out_ptr + offset, (total / tl.cast(workers, tl.float32)).to(out_ptr.dtype.element_ty), mask=live[:, None])


# ---------------------------------------------------------------- plain functions


def onebit_pack(x: Tensor, error: Tensor, *, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """(bits uint8 (n/8,), scale fp32 (n/chunk,)) of x + error.

    `error` (n,) fp32 is replaced by what was lost. chunk: None is n.
    """
    check_float("x", x)
    check_tensor("x", x, shape=(None,))
    n = x.numel()
    chunk = n if chunk is None else chunk
    if n == 0 or chunk <= 0 or chunk % 8 or n % chunk:
        raise KernelArgumentError(
            f"x has {n} elements in chunks of {chunk}; accepted: chunk a multiple of 8, x a positive multiple of chunk"
        )
    check_tensor("error", error, dtypes=(torch.float32, torch.float64), shape=(n,), device=x.device)
    _contiguous(x=x, error=error)
    if not use_triton(error):
        return onebit_pack_reference(x, error, chunk)
    chunks, blocks = n // chunk, cdiv(chunk, BLOCK)
    partial = torch.empty((chunks, blocks), dtype=torch.float32, device=x.device)
    grid, numbers = (chunks * blocks,), (chunk, blocks)
    start(abs_sum_kernel, grid, (x, error, partial), numbers, {"BLOCK": BLOCK, "num_warps": 8})
    scale = partial.sum(1) / chunk
    bits = torch.empty(n // 8, dtype=torch.uint8, device=x.device)
    start(pack_kernel, grid, (x, error, scale, bits), numbers, {"BYTES": BLOCK // 8, "num_warps": 8})
    written(error)
    return bits, scale


def onebit_unpack(
    bits: Tensor,
    scale: Tensor,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Mean over workers: bits uint8 (workers, n/8), scale fp32 (workers, n/chunk) → (n,) of `dtype`."""
    check_tensor("bits", bits, dtypes=(torch.uint8,), shape=(None, None))
    workers, n = bits.shape[0], bits.shape[1] * 8
    chunk = n if chunk is None else chunk
    if n == 0 or workers == 0 or chunk <= 0 or chunk % 8 or n % chunk:
        raise KernelArgumentError(
            f"bits hold {n} elements of {workers} workers in chunks of {chunk}; "
            "accepted: chunk a multiple of 8 dividing n"
        )
    check_tensor("scale", scale, dtypes=(torch.float32, torch.float64), shape=(workers, n // chunk), device=bits.device)
    _contiguous(bits=bits, scale=scale)
    if not dtype.is_floating_point:
        raise KernelArgumentError(f"dtype is {dtype}; accepted: floating-point types")
    if not use_triton(scale) or dtype not in FLOATS:
        return onebit_unpack_reference(bits, scale, chunk).to(dtype)
    out = torch.empty(n, dtype=dtype, device=bits.device)
    blocks = cdiv(chunk, BLOCK)
    numbers = workers, n, chunk, n // chunk, blocks
    constants = {"BYTES": BLOCK // 8, "num_warps": 8}
    start(unpack_kernel, (n // chunk * blocks,), (bits, scale, out), numbers, constants)
    return out


def _contiguous(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise KernelArgumentError(f"{name} has strides {tensor.stride()}; accepted: contiguous")
