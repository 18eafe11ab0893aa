"""The residual stream outside a norm: residual + dropout(z + bias) in one pass, its backward, and a row-bias gradient.

    forward:   out = residual + mask·(z + bias)/(1 − p)          in residual's type
    backward:  dz = mask·d/(1 − p);  bias gradient += Σ over rows of dz, fp32

The mask is `kernels/random.py`'s, by the global token of each row, which comes as a tensor (a rank's rows may be any
tokens), and the global column of each element, which must follow one another. Bias gradients are deterministic: stripes
of rows keep partial sums, and a second kernel adds them in a fixed order. The specification is
`kernels/reference_layer.py`'s `add`, `add_backward` and `bias_grad`.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.direct import Launch, checked_once
from kernels.launch import (
    FLOATS,
    KernelArgumentError,
    cdiv,
    check_float,
    check_tensor,
    new_like,
    row_strides,
    striped,
    tl,
    triton,
    use_triton,
)
from kernels.partials import PartialSum
from kernels.random import keep_tile, key_of
from kernels.reference_layer import Mask, add, add_backward

Tensor = torch.Tensor
BLOCK = 1024
"""Columns of a program."""
WARPS = 4
ROWS = 4
"""Rows of a tile of the backward: so many hashes in flight."""
_ANY_FLOAT = (*FLOATS, torch.float64)

# ---------------------------------------------------------------- Triton


@triton.jit(do_not_specialize=["element_first"])
def residual_forward_kernel(
    residual_ptr, z_ptr, bias_ptr, token_ptr, key_ptr, out_ptr,
    residual_stride, z_stride, width, p, keep_scale, element_first,
    HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (row, column block), flattened."""
    blocks = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    cols = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = cols < width
    s = tl.load(z_ptr + row * z_stride + cols, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(residual_ptr + row * residual_stride + cols, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        s += tl.load(bias_ptr + cols, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if HAS_DROPOUT:
        low, high = tl.load(key_ptr), tl.load(key_ptr + 1)
        keep = keep_tile(tl.load(token_ptr + row), cols + element_first, low, high, p)
        s = tl.where(keep, s * tl.cast(keep_scale, tl.float32), 0.0)
    tl.store(out_ptr + row * width + cols, (r + s).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["element_first"])
def residual_backward_kernel(
    d_ptr, token_ptr, key_ptr, dz_ptr, partial_ptr, d_stride, rows, width, p, keep_scale, element_first,
    HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (column block, stripe): its columns over row tiles stripe, stripe + stripes, …; dz where there is a
    mask, one partial bias gradient a stripe."""
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    cols = flat[None, :]
    stripe = tl.program_id(1)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for tile in range(stripe, tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (cols < width)
        dz = tl.load(d_ptr + row * d_stride + cols, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROPOUT:
            token = tl.load(token_ptr + row, mask=row < rows, other=0)
            keep = keep_tile(token, cols + element_first, tl.load(key_ptr), tl.load(key_ptr + 1), p)
            dz = tl.where(keep, dz * tl.cast(keep_scale, tl.float32), 0.0)
            tl.store(dz_ptr + row * width + cols, dz.to(dz_ptr.dtype.element_ty), mask=inside)
        total += dz
    if HAS_BIAS:
        tl.store(partial_ptr + tl.cast(stripe, tl.int64) * width + flat, tl.sum(total, axis=0), mask=flat < width)


# ---------------------------------------------------------------- plain functions


def residual_forward(residual: Tensor, z: Tensor, bias: Tensor | None = None, mask: Mask | None = None) -> Tensor:
    """residual + dropout(z + bias), contiguous, in residual's type. residual, z (rows, width); bias (width,);
    mask.tokens (rows, 1) int64; a mask whose columns do not follow one another goes to the reference."""
    tokens, has_mask, in_order = _mask_signature(mask)
    launch = _forward((residual, z, bias, tokens), has_mask, in_order, BLOCK, WARPS)
    _check_first(mask, residual.shape[1])
    if launch is None:
        return add(residual, z, bias, mask)
    out = new_like(residual)
    launch((residual, z, bias, tokens, _key(mask), out), *_random(mask))
    return out


@checked_once
def _forward(
    residual: Tensor, z: Tensor, bias: Tensor | None, tokens: Tensor | None,
    has_mask: bool, in_order: bool, block: int, warps: int,
) -> Launch | None:  # fmt: skip
    _check(residual, z, bias, tokens, has_mask)
    if not use_triton(residual) or (bias is None and not has_mask) or not in_order:
        return None
    strides, copied = row_strides(residual, z)
    rows, width = residual.shape
    constants = {"HAS_BIAS": bias is not None, "HAS_DROPOUT": has_mask, "BLOCK": block, "num_warps": warps}
    if tokens is not None and not tokens.is_contiguous():
        copied = *copied, 3
    numbers = *strides, width, *(() if has_mask else _NO_RANDOM)
    return Launch(residual_forward_kernel, (rows * cdiv(width, block),), numbers, constants, copied)


def residual_backward(d: Tensor, bias_grad: Tensor | None = None, mask: Mask | None = None) -> Tensor:
    """dz: d itself without a mask. d (rows, width); the bias gradient is added into fp32 `bias_grad` (width,)."""
    tokens, has_mask, in_order = _mask_signature(mask)
    found = _backward((d, bias_grad, tokens), has_mask, in_order, BLOCK, WARPS)
    _check_first(mask, d.shape[1])
    if found is None:
        return add_backward(d, bias_grad, mask)
    launch, bias_sum = found
    dz = None if mask is None else new_like(d)
    partial = None if bias_grad is None else bias_sum.partials(d)
    launch((d, tokens, _key(mask), dz, partial), *_random(mask))
    if bias_grad is not None:
        bias_sum(partial, bias_grad)
    return d if dz is None else dz


@checked_once
def _backward(
    d: Tensor, bias_grad: Tensor | None, tokens: Tensor | None,
    has_mask: bool, in_order: bool, block: int, warps: int,
) -> tuple[Launch, PartialSum] | None:  # fmt: skip
    """The launch, and the sum over its stripes."""
    _check(d, d, None, tokens, has_mask)
    if bias_grad is not None:
        main = (torch.float32, torch.float64)
        check_tensor("bias_grad", bias_grad, dtypes=main, shape=d.shape[1:], device=d.device, contiguous=True)
    if not use_triton(d) or (bias_grad is None and not has_mask) or not in_order:
        return None
    strides, copied = row_strides(d)
    rows, width = d.shape
    shape = rows, width, bias_grad is not None, has_mask, d.device, block, warps
    grid, constants = _backward_form(*shape)
    if tokens is not None and not tokens.is_contiguous():
        copied = *copied, 1
    numbers = *strides, rows, width, *(() if has_mask else _NO_RANDOM)
    launch = Launch(residual_backward_kernel, grid, numbers, constants, copied)
    return launch, PartialSum(grid[1], width, bias_grad)


def _backward_form(
    rows: int, width: int, has_bias: bool, has_dropout: bool, device: torch.device, block: int, warps: int
) -> tuple[tuple[int, int], dict[str, Any]]:
    """(grid: column blocks by stripes of rows, constants)."""
    constants = {"HAS_BIAS": has_bias, "HAS_DROPOUT": has_dropout, "ROWS": ROWS, "BLOCK": block, "num_warps": warps}
    return striped(rows, width, block, device), constants


_NO_RANDOM = 0.0, 1.0, 0
"""What the kernels take of the dropout where there is none: p, keep_scale, element_first."""


def _random(mask: Mask | None) -> tuple[tuple[float, ...], tuple[int, ...]] | tuple[()]:
    """The same of a mask: floats, and integers."""
    if mask is None:
        return ()
    return (mask.dropout.p, mask.dropout.scale), (mask.first_element or 0,)


def _key(mask: Mask | None) -> Tensor | None:
    """The stream key on the device, where the kernel reads it: it may be another at the next replay of a graph."""
    return None if mask is None else key_of(mask.dropout, mask.tokens.device)


def _mask_signature(mask: Mask | None) -> tuple[Tensor | None, bool, bool]:
    """(tokens, whether there is a mask, whether its columns follow one another)."""
    return (None, False, True) if mask is None else (mask.tokens, True, mask.first_element is not None)


def _check(residual: Tensor, z: Tensor, bias: Tensor | None, tokens: Any, has_mask: bool) -> None:
    check_float("residual", residual)
    check_tensor("residual", residual, shape=(None, None))
    rows, width = residual.shape
    check_tensor("z", z, dtypes=_ANY_FLOAT, shape=(rows, width), device=residual.device)
    if bias is not None:
        check_tensor("bias", bias, dtypes=_ANY_FLOAT, shape=(width,), device=residual.device, contiguous=True)
    if has_mask:
        check_tensor("mask.tokens", tokens, dtypes=(torch.int64,), shape=(rows, 1), device=residual.device)


def _check_first(mask: Mask | None, width: int) -> None:
    """What concerns the mask's columns. Values are read on each call, where that costs no synchronisation (and no graph
    that cannot look)."""
    if mask is None or mask.first_element is None:
        return
    first, elements = mask.first_element, mask.elements.reshape(-1)
    if elements.shape[0] != width:
        raise KernelArgumentError(f"mask.elements holds {elements.shape[0]} columns; accepted: {width}, as z has")
    if elements.device.type != "cpu" or not width:
        return
    if int(elements[0]) != first:
        raise KernelArgumentError(f"mask.first_element is {first} and mask.elements begins with {int(elements[0])}")
    if not torch.equal(elements, torch.arange(first, first + width, dtype=elements.dtype)):
        raise KernelArgumentError(
            "mask.elements do not follow one another and mask.first_element is given; accepted: None for such a mask"
        )
