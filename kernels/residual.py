"""The residual stream outside a norm: residual + dropout(z + bias) in one pass, its backward, and a row-bias gradient.

    forward:   out = residual + mask·(z + bias)/(1 − p)          in residual's type
    backward:  dz = mask·d/(1 − p);  bias gradient += Σ over rows of dz, fp32

The mask is `kernels/random.py`'s, by the global token of each row, which comes as a tensor (a rank's rows may be any
tokens), and the global column of each element, which must follow one another. Bias gradients are deterministic: stripes
of rows keep partial sums, and a second kernel adds them in a fixed order. The specification is
`kernels/reference_layer.py`'s `add`, `add_backward` and `bias_grad`.
"""

from __future__ import annotations

import torch

from kernels.direct import Constants, Launcher, direct, remembered, start
from kernels.launch import (
    FLOATS,
    KernelArgumentError,
    as_rows,
    cdiv,
    check_float,
    check_tensor,
    new_rows,
    striped,
    tl,
    triton,
    use_triton,
)
from kernels.norms import sum_partials
from kernels.random import keep_tile
from kernels.reference_layer import Mask, add, add_backward

Tensor = torch.Tensor
BLOCK = 1024
"""Columns of a program."""
WARPS = 4
ROWS = 4
"""Rows of a tile of the backward: so many hashes in flight."""
_ANY_FLOAT = (*FLOATS, torch.float64)

# ---------------------------------------------------------------- Triton


@triton.jit(do_not_specialize=["key_low", "key_high", "element_first"])
def residual_forward_kernel(
    residual_ptr, z_ptr, bias_ptr, token_ptr, out_ptr,
    residual_stride, z_stride, width, p, keep_scale, key_low, key_high, element_first,
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
        keep = keep_tile(tl.load(token_ptr + row), cols + element_first, key_low, key_high, p)
        s = tl.where(keep, s * tl.cast(keep_scale, tl.float32), 0.0)
    tl.store(out_ptr + row * width + cols, (r + s).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["key_low", "key_high", "element_first"])
def residual_backward_kernel(
    d_ptr, token_ptr, dz_ptr, partial_ptr, d_stride, rows, width, p, keep_scale, key_low, key_high, element_first,
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
            keep = keep_tile(token, cols + element_first, key_low, key_high, p)
            dz = tl.where(keep, dz * tl.cast(keep_scale, tl.float32), 0.0)
            tl.store(dz_ptr + row * width + cols, dz.to(dz_ptr.dtype.element_ty), mask=inside)
        total += dz
    if HAS_BIAS:
        tl.store(partial_ptr + tl.cast(stripe, tl.int64) * width + flat, tl.sum(total, axis=0), mask=flat < width)


# ---------------------------------------------------------------- plain functions


def residual_forward(
    residual: Tensor, z: Tensor, bias: Tensor | None = None, mask: Mask | None = None, *, launcher: Launcher = direct
) -> Tensor:
    """residual + dropout(z + bias), contiguous, in residual's type. residual, z (rows, width); bias (width,);
    mask.tokens (rows, 1) int64; a mask whose columns do not follow one another goes to the reference."""
    _check(residual, z, bias, mask, launcher)
    if not use_triton(residual) or (bias is None and mask is None) or not _in_order(mask):
        return add(residual, z, bias, mask)
    flat, branch = as_rows(residual), as_rows(z)
    rows, width = flat.shape
    out = new_rows(flat, residual.dtype)
    if out.numel():
        tokens, random = _mask_arguments(mask, z)
        tensors = flat, branch, z if bias is None else bias, tokens, out
        constants = {"HAS_BIAS": bias is not None, "HAS_DROPOUT": mask is not None, "BLOCK": BLOCK, "num_warps": WARPS}
        grid = (rows * cdiv(width, BLOCK),)
        numbers = flat.stride(0), branch.stride(0), width, *random
        start(launcher, residual_forward_kernel, grid, tensors, numbers, constants)
    return out


def residual_backward(
    d: Tensor, bias_grad: Tensor | None = None, mask: Mask | None = None, *, launcher: Launcher = direct
) -> Tensor:
    """dz: d itself without a mask. d (rows, width); the bias gradient is added into fp32 `bias_grad` (width,)."""
    _check(d, d, None, mask, launcher)
    if bias_grad is not None:
        main = (torch.float32, torch.float64)
        check_tensor("bias_grad", bias_grad, dtypes=main, shape=d.shape[1:], device=d.device, contiguous=True)
    if not use_triton(d) or (bias_grad is None and mask is None) or not _in_order(mask):
        return add_backward(d, bias_grad, mask)
    flat = as_rows(d)
    rows, width = flat.shape
    dz = flat if mask is None else new_rows(flat, d.dtype)
    shape = rows, width, bias_grad is not None, mask is not None, d.device, BLOCK, WARPS
    grid, constants = _backward_launch(launcher, *shape)
    partial = dz if bias_grad is None else d.new_empty((grid[1], width), dtype=torch.float32)
    tokens, random = _mask_arguments(mask, d)
    tensors, numbers = (flat, tokens, dz, partial), (flat.stride(0), rows, width, *random)
    start(launcher, residual_backward_kernel, grid, tensors, numbers, constants)
    if bias_grad is not None:
        sum_partials(partial, bias_grad, launcher)
    return d if mask is None else dz


@remembered
def _backward_launch(
    rows: int, width: int, has_bias: bool, has_dropout: bool, device: torch.device, block: int, warps: int
) -> tuple[tuple[int, int], Constants]:
    """(grid: column blocks by stripes of rows, constants)."""
    constants = Constants(HAS_BIAS=has_bias, HAS_DROPOUT=has_dropout, ROWS=ROWS, BLOCK=block, num_warps=warps)
    return striped(rows, width, block, device), constants


def _in_order(mask: Mask | None) -> bool:
    return mask is None or mask.first_element is not None


def _mask_arguments(mask: Mask | None, unused: Tensor) -> tuple[Tensor, tuple[float, float, int, int, int]]:
    """(tokens, what a kernel takes of the dropout)."""
    if mask is None:
        return unused, (0.0, 1.0, 0, 0, 0)
    p, scale, low, high, *_ = mask.dropout.numbers
    return mask.tokens.reshape(-1).contiguous(), (p, scale, low, high, mask.first_element or 0)


def _check(residual: Tensor, z: Tensor, bias: Tensor | None, mask: Mask | None, launcher: Launcher) -> None:
    check_float("residual", residual)
    check_tensor("residual", residual, shape=(None, None))
    rows, width = residual.shape
    check_tensor("z", z, dtypes=_ANY_FLOAT, shape=(rows, width), device=residual.device)
    if bias is not None:
        check_tensor("bias", bias, dtypes=_ANY_FLOAT, shape=(width,), device=residual.device, contiguous=True)
    if mask is not None:
        check_tensor("mask.tokens", mask.tokens, dtypes=(torch.int64,), shape=(rows, 1), device=residual.device)
        first, elements = mask.first_element, mask.elements
        seen = launcher is direct and elements.device.type == "cpu"  # no synchronisation, no graph that cannot look
        if seen and width and first is not None and int(elements[0]) != first:
            raise KernelArgumentError(f"mask.first_element is {first} and mask.elements begins with {int(elements[0])}")
