"""SwiGLU and GELU(+bias), forward and backward: the pointwise half of a feed-forward block, one pass each.

    swiglu:  h = silu(gate)·up              dgate = dh·up·σ(gate)·(1 + gate·(1 − σ(gate)))     dup = dh·silu(gate)
    gelu:    h = ½·a·(1 + erf(a/√2)), a = x + bias
    "tanh":  h = ½·a·(1 + tanh(√(2/π)(a + 0.044715·a³))), the usual approximation

gate and up may be two strided views of one GEMM output, and their gradients may be written into two views of one
buffer, so nothing is copied to split or join them. Only gate and up (or x) are saved; the sigmoid is recomputed. The
bias gradient of GELU is fp32, deterministic (persistent stripes, fixed second reduction), and is added into the
caller's main gradient when given.
"""

from __future__ import annotations

from typing import Literal

import torch

from kernels.activations_kernels import (
    gelu_backward_kernel,
    gelu_forward_kernel,
    swiglu_backward_kernel,
    swiglu_forward_kernel,
)
from kernels.direct import Constants, Launcher, direct, remembered, start
from kernels.launch import (
    KernelArgumentError,
    as_rows,
    cdiv,
    check_float,
    check_output,
    check_tensor,
    new_rows,
    striped,
    use_triton,
)
from kernels.norms import sum_partials

Tensor = torch.Tensor
Approximation = Literal["none", "tanh"]

BLOCK = 1024
"""Elements a program of the pointwise kernels."""
WARPS = 4
GELU_FORWARD_WARPS = 2

# ---------------------------------------------------------------- reference


def _compute_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def swiglu_forward_reference(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up in gate's type, computed in fp32 (fp64 for fp64)."""
    compute = _compute_type(gate)
    return (torch.nn.functional.silu(gate.to(compute)) * up.to(compute)).to(gate.dtype)


def swiglu_backward_reference(dh: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """(dgate, dup)."""
    compute = _compute_type(gate)
    d, g, u = dh.to(compute), gate.to(compute), up.to(compute)
    sigma = torch.sigmoid(g)
    return (d * u * sigma * (1 + g * (1 - sigma))).to(gate.dtype), (d * g * sigma).to(up.dtype)


def gelu_forward_reference(x: Tensor, bias: Tensor | None, approximate: Approximation) -> Tensor:
    """gelu(x + bias) in x's type."""
    compute = _compute_type(x)
    a = x.to(compute) if bias is None else x.to(compute) + bias.to(compute)
    return torch.nn.functional.gelu(a, approximate=approximate).to(x.dtype)


def gelu_backward_reference(
    dh: Tensor, x: Tensor, bias: Tensor | None, approximate: Approximation
) -> tuple[Tensor, Tensor]:
    """(dx in x's type, dbias in the computing type)."""
    compute = _compute_type(x)
    a = x.to(compute) if bias is None else x.to(compute) + bias.to(compute)
    dx = torch.ops.aten.gelu_backward(dh.to(compute), a, approximate=approximate)
    return dx.to(x.dtype), dx.reshape(-1, x.shape[-1]).sum(0)


# ---------------------------------------------------------------- plain functions


def swiglu_forward(gate: Tensor, up: Tensor, *, launcher: Launcher = direct) -> Tensor:
    """silu(gate)·up, contiguous, in gate's type.

    gate and up: (…, width), same shape and type; strided rows are read in place.
    """
    _check_pair(gate, up)
    if not use_triton(gate):
        return swiglu_forward_reference(gate, up)
    flat_gate, flat_up = as_rows(gate), as_rows(up)
    rows, width = flat_gate.shape
    h = new_rows(flat_gate, gate.dtype)
    if h.numel():
        numbers = flat_gate.stride(0), flat_up.stride(0), width
        constants = {"BLOCK": BLOCK, "num_warps": WARPS}
        grid = (rows * cdiv(width, BLOCK),)
        start(launcher, swiglu_forward_kernel, grid, (flat_gate, flat_up, h), numbers, constants)
    return h if gate.dim() == 2 else h.view(gate.shape)


def swiglu_backward(
    dh: Tensor,
    gate: Tensor,
    up: Tensor,
    *,
    dgate: Tensor | None = None,
    dup: Tensor | None = None,
    h_out: Tensor | None = None,
    launcher: Launcher = direct,
) -> tuple[Tensor, Tensor]:
    """(dgate, dup): new tensors, or the given (rows, width) outputs, which may be views of one buffer.

    h_out: a contiguous tensor like gate that receives the activation, made again in the same pass for the weight
    gradient of the product after it. Inputs are not changed.
    """
    _check_pair(gate, up)
    check_tensor("dh", dh, shape=gate.shape, device=gate.device)
    _check_h_out(h_out, gate)
    for name, given in (("dgate", dgate), ("dup", dup)):
        if given is not None:
            check_output(name, given)
    if not use_triton(gate):
        a, b = swiglu_backward_reference(dh, gate, up)
        if h_out is not None:
            h_out.copy_(swiglu_forward_reference(gate, up).view(h_out.shape))
        return a if dgate is None else dgate.copy_(a.view(dgate.shape)), b if dup is None else dup.copy_(
            b.view(dup.shape)
        )
    flat_dh, flat_gate, flat_up = as_rows(dh), as_rows(gate), as_rows(up)
    rows, width = flat_gate.shape
    out_gate = _output("dgate", dgate, flat_gate, rows, width)
    out_up = _output("dup", dup, flat_up, rows, width)
    if out_gate.numel():
        tensors = flat_dh, flat_gate, flat_up, out_gate, out_up, h_out if h_out is not None else out_gate
        numbers = (
            flat_dh.stride(0), flat_gate.stride(0), flat_up.stride(0), out_gate.stride(0), out_up.stride(0), width,
        )  # fmt: skip
        constants = {"HAS_H": h_out is not None, "BLOCK": BLOCK, "num_warps": WARPS}
        start(launcher, swiglu_backward_kernel, (rows * cdiv(width, BLOCK),), tensors, numbers, constants)
    return dgate if dgate is not None else out_gate.view(gate.shape), dup if dup is not None else out_up.view(up.shape)


def gelu_forward(
    x: Tensor, bias: Tensor | None = None, *, approximate: Approximation = "tanh", launcher: Launcher = direct
) -> Tensor:
    """gelu(x + bias), contiguous, in x's type. x: (…, width); bias: (width,)."""
    _check_gelu(x, bias, approximate)
    if not use_triton(x):
        return gelu_forward_reference(x, bias, approximate)
    flat = as_rows(x)
    rows, width = flat.shape
    h = new_rows(flat, x.dtype)
    if h.numel():
        constants = {
            "HAS_BIAS": bias is not None, "TANH": approximate == "tanh", "BLOCK": BLOCK,
            "num_warps": GELU_FORWARD_WARPS,
        }  # fmt: skip
        tensors, numbers = (flat, bias if bias is not None else flat, h), (flat.stride(0), width)
        start(launcher, gelu_forward_kernel, (rows * cdiv(width, BLOCK),), tensors, numbers, constants)
    return h if x.dim() == 2 else h.view(x.shape)


def gelu_backward(
    dh: Tensor,
    x: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: Approximation = "tanh",
    bias_grad: Tensor | None = None,
    h_out: Tensor | None = None,
    launcher: Launcher = direct,
) -> tuple[Tensor, Tensor | None]:
    """(dx in x's type, dbias fp32 or None without bias).

    The bias gradient is `bias_grad` with it added when that is given. h_out: as in `swiglu_backward`.
    """
    _check_gelu(x, bias, approximate)
    check_tensor("dh", dh, shape=x.shape, device=x.device)
    _check_h_out(h_out, x)
    if bias_grad is not None:
        if bias is None:
            raise KernelArgumentError("bias_grad is given and bias is None; accepted: both, or neither")
        main = (torch.float32, torch.float64)
        check_tensor("bias_grad", bias_grad, dtypes=main, shape=x.shape[-1:], device=x.device, contiguous=True)
    if not use_triton(x):
        dx, db = gelu_backward_reference(dh, x, bias, approximate)
        if h_out is not None:
            h_out.copy_(gelu_forward_reference(x, bias, approximate).view(h_out.shape))
        return dx, None if bias is None else db if bias_grad is None else bias_grad.add_(db)
    flat_dh, flat = as_rows(dh), as_rows(x)
    rows, width = flat.shape
    dx = new_rows(flat, x.dtype)
    has_bias, has_h = bias is not None, h_out is not None
    shape = rows, width, has_h, has_bias, approximate, x.device, BLOCK, WARPS
    grid, constants = _gelu_backward_launch(launcher, *shape)
    partial = dx if bias is None else dx.new_empty((grid[1], width), dtype=torch.float32)
    tensors = flat_dh, flat, flat if bias is None else bias, dx, dx if h_out is None else h_out, partial
    numbers = flat_dh.stride(0), flat.stride(0), rows, width
    start(launcher, gelu_backward_kernel, grid, tensors, numbers, constants)
    return dx if x.dim() == 2 else dx.view(x.shape), sum_partials(partial, bias_grad, launcher) if has_bias else None


@remembered
def _gelu_backward_launch(
    rows: int,
    width: int,
    has_h: bool,
    has_bias: bool,
    approximate: Approximation,
    device: torch.device,
    block: int,
    warps: int,
) -> tuple[tuple[int, int], Constants]:
    """(grid: column blocks by stripes of rows, constants)."""
    constants = Constants(
        HAS_H=has_h, HAS_BIAS=has_bias, TANH=approximate == "tanh", ROWS=2, BLOCK=block, num_warps=warps
    )
    return striped(rows, width, block, device), constants


def _output(name: str, given: Tensor | None, like: Tensor, rows: int, width: int) -> Tensor:
    if given is None:
        return new_rows(like, like.dtype)
    if given.shape[-1] != width or given.numel() != rows * width or (width > 1 and given.stride(-1) != 1):
        raise KernelArgumentError(
            f"{name} has shape {tuple(given.shape)}, strides {given.stride()}; accepted: {rows} rows of {width} "
            "with unit stride in a row"
        )
    check_tensor(name, given, dtypes=(like.dtype,), device=like.device)
    return given if given.dim() == 2 else given.view(rows, width)


def _check_h_out(h_out: Tensor | None, like: Tensor) -> None:
    if h_out is not None:
        check_tensor("h_out", h_out, dtypes=(like.dtype,), shape=like.shape, device=like.device)
        if not h_out.is_contiguous():
            raise KernelArgumentError(f"h_out has strides {h_out.stride()}; accepted: contiguous")


def _check_pair(gate: Tensor, up: Tensor) -> None:
    check_float("gate", gate)
    check_tensor("up", up, dtypes=(gate.dtype,), shape=gate.shape, device=gate.device)


def _check_gelu(x: Tensor, bias: Tensor | None, approximate: str) -> None:
    check_float("x", x)
    if approximate not in ("none", "tanh"):
        raise KernelArgumentError(f"approximate is {approximate!r}; accepted: 'none', 'tanh'")
    if bias is not None:
        check_float("bias", bias)
        check_tensor("bias", bias, shape=(x.shape[-1],), device=x.device, contiguous=True)
