"""Differential snapshots: XOR against the last full one, bytes of equal significance together.

    delta_i = new_i ⊕ base_i (bits)        planes[b, i] = byte b of delta_i, least significant first

Between two steps most weights keep their sign, exponent and leading mantissa bits, so the high planes of the XOR are
nearly all zero and a general compressor shrinks them to almost nothing, which it cannot do while they are interleaved
with the noisy low bytes. Exact: unpacking returns the very bits, NaN payloads included. One read of both tensors and
one write.
"""

from __future__ import annotations

import torch

from kernels.direct import start
from kernels.launch import HAS_TRITON, INTERPRETED, KernelArgumentError, cdiv, check_tensor, tl, triton
from kernels.written import written

Tensor = torch.Tensor

BLOCK = 4096
_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# ---------------------------------------------------------------- reference


def delta_pack_reference(new: Tensor, base: Tensor) -> Tensor:
    """uint8 (item bytes, n)."""
    delta = _bits(new) ^ _bits(base)
    return delta.view(torch.uint8).view(new.numel(), new.dtype.itemsize).t().contiguous()


def delta_unpack_reference(planes: Tensor, base: Tensor) -> Tensor:
    delta = planes.t().contiguous().view(_WORD[base.dtype.itemsize]).view(-1)
    return (delta ^ _bits(base)).view(base.dtype).view(base.shape)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(_WORD[tensor.dtype.itemsize])


# ---------------------------------------------------------------- Triton


@triton.jit
def delta_pack_kernel(new_ptr, base_ptr, planes_ptr, n, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    delta = tl.load(new_ptr + i, mask=inside, other=0) ^ tl.load(base_ptr + i, mask=inside, other=0)
    for plane in tl.static_range(PLANES):
        tl.store(
            planes_ptr + tl.cast(n, tl.int64) * plane + i, ((delta >> (8 * plane)) & 0xFF).to(tl.uint8), mask=inside
        )


@triton.jit
def delta_unpack_kernel(planes_ptr, base_ptr, out_ptr, n, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    word = tl.load(base_ptr + i, mask=inside, other=0)
    delta = tl.zeros_like(word)
    for plane in tl.static_range(PLANES):
        byte = tl.load(planes_ptr + tl.cast(n, tl.int64) * plane + i, mask=inside, other=0)
        delta = delta | (byte.to(word.dtype) << (8 * plane))
    tl.store(out_ptr + i, word ^ delta, mask=inside)


# ---------------------------------------------------------------- plain functions


def delta_pack(new: Tensor, base: Tensor) -> Tensor:
    """Byte planes uint8 (item bytes, n) of new ⊕ base.

    Both contiguous, of one type and shape, items of 1, 2, 4 or 8 bytes.
    """
    _check("new", new, "base", base)
    if not _on_triton(new):
        return delta_pack_reference(new, base)
    n, planes = new.numel(), new.dtype.itemsize
    out = torch.empty((planes, n), dtype=torch.uint8, device=new.device)
    if n:
        constants = {"PLANES": planes, "BLOCK": BLOCK, "num_warps": 8}
        start(delta_pack_kernel, (cdiv(n, BLOCK),), (_bits(new), _bits(base), out), (n,), constants)
    return out


def delta_unpack(planes: Tensor, base: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The tensor that `delta_pack` saw as `new`, from its planes and the same base.

    Into `out` (may be base itself) when given.
    """
    check_tensor("base", base)
    check_tensor("planes", planes, dtypes=(torch.uint8,), shape=(base.dtype.itemsize, base.numel()), device=base.device)
    out = torch.empty_like(base) if out is None else out
    _check("out", out, "base", base)
    if not planes.is_contiguous():
        raise KernelArgumentError(f"planes has strides {planes.stride()}; accepted: contiguous")
    if not _on_triton(base):
        return out.copy_(delta_unpack_reference(planes, base))
    n = base.numel()
    if n:
        constants = {"PLANES": base.dtype.itemsize, "BLOCK": BLOCK, "num_warps": 8}
        start(delta_unpack_kernel, (cdiv(n, BLOCK),), (planes, _bits(base), _bits(out)), (n,), constants)
        written(out)
    return out


def _on_triton(tensor: Tensor) -> bool:
    return HAS_TRITON and (tensor.is_cuda or INTERPRETED)


def _check(name: str, tensor: Tensor, base_name: str, base: Tensor) -> None:
    check_tensor(base_name, base)
    if base.dtype.itemsize not in _WORD or base.dtype.is_complex:
        raise KernelArgumentError(f"{base_name} has dtype {base.dtype}; accepted: real types of 1, 2, 4 or 8 bytes")
    check_tensor(name, tensor, dtypes=(base.dtype,), shape=base.shape, device=base.device)
    for label, t in ((name, tensor), (base_name, base)):
        if not t.is_contiguous():
            raise KernelArgumentError(f"{label} has strides {t.stride()}; accepted: contiguous")
