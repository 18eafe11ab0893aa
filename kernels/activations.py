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

import torch

from kernels.activations_kernels import (
    gelu_backward_kernel,
    gelu_forward_kernel,
    swiglu_backward_kernel,
    swiglu_forward_kernel,
)
from kernels.activations_reference import (
    Approximation,
    gelu_backward_reference,
    gelu_forward_reference,
    swiglu_backward_reference,
    swiglu_forward_reference,
)
from kernels.direct import Launch, checked_once
from kernels.launch import (
    KernelArgumentError,
    cdiv,
    check_apart,
    check_float,
    check_output,
    check_tensor,
    new_like,
    row_strides,
    rows_and_width,
    striped,
    use_triton,
)
from kernels.partials import PartialSum
from kernels.written import written

Tensor = torch.Tensor

BLOCK = 1024
"""Elements a program of the pointwise kernels."""
WARPS = 4
GELU_FORWARD_WARPS = 2

# ---------------------------------------------------------------- plain functions


def swiglu_forward(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up, contiguous, in gate's type.

    gate and up: (…, width), same shape and type; strided rows are read in place.
    """
    launch = _swiglu_forward((gate, up), BLOCK, WARPS)
    if launch is None:
        return swiglu_forward_reference(gate, up)
    h = new_like(gate)
    launch((gate, up, h))
    return h


@checked_once
def _swiglu_forward(gate: Tensor, up: Tensor, block: int, warps: int) -> Launch | None:
    _check_pair(gate, up)
    if not use_triton(gate):
        return None
    strides, copied = row_strides(gate, up)
    rows, width = rows_and_width(gate)
    constants = {"BLOCK": block, "num_warps": warps}
    grid = (rows * cdiv(width, block),)
    return Launch(swiglu_forward_kernel, grid, (*strides, width), constants, copied)


def swiglu_backward(
    dh: Tensor,
    gate: Tensor,
    up: Tensor,
    *,
    dgate: Tensor | None = None,
    dup: Tensor | None = None,
    h_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(dgate, dup): new tensors, or the given (rows, width) outputs, which may be views of one buffer.

    h_out: a contiguous tensor like gate that receives the activation, made again in the same pass for the weight
    gradient of the product after it. Inputs are not changed.
    """
    launch = _swiglu_backward((dh, gate, up, dgate, dup, h_out), BLOCK, WARPS)
    _check_places(gate, up, dgate, dup)
    if launch is None:
        a, b = swiglu_backward_reference(dh, gate, up)
        if h_out is not None:
            h_out.copy_(swiglu_forward_reference(gate, up).view(h_out.shape))
        return a if dgate is None else dgate.copy_(a.view(dgate.shape)), b if dup is None else dup.copy_(
            b.view(dup.shape)
        )
    given = [t for t in (dgate, dup, h_out) if t is not None]
    dgate = new_like(gate) if dgate is None else dgate
    dup = new_like(up) if dup is None else dup
    launch((dh, gate, up, dgate, dup, h_out))
    if given:
        written(*given)
    return dgate, dup


def _check_places(gate: Tensor, up: Tensor, dgate: Tensor | None, dup: Tensor | None) -> None:
    """Where the given outputs lie: addresses, so checked on every call."""
    if dgate is not None:
        check_apart("dgate", dgate, "gate", gate)
    if dup is not None:
        check_apart("dup", dup, "up", up)
        if dgate is not None and dgate.data_ptr() == dup.data_ptr() and dup.numel():
            raise KernelArgumentError("dgate and dup begin at one address; accepted: memory of their own")


@checked_once
def _swiglu_backward(
    dh: Tensor,
    gate: Tensor,
    up: Tensor,
    dgate: Tensor | None,
    dup: Tensor | None,
    h_out: Tensor | None,
    block: int,
    warps: int,
) -> Launch | None:
    _check_pair(gate, up)
    check_float("dh", dh)
    check_tensor("dh", dh, shape=gate.shape, device=gate.device)
    _check_h_out(h_out, gate)
    for name, given in (("dgate", dgate), ("dup", dup)):
        if given is not None:
            check_output(name, given)
    if not use_triton(gate):
        return None
    strides, copied = row_strides(dh, gate, up)
    rows, width = rows_and_width(gate)
    outputs = _output_stride("dgate", dgate, gate, rows, width), _output_stride("dup", dup, up, rows, width)
    constants = {"HAS_H": h_out is not None, "BLOCK": block, "num_warps": warps}
    grid = (rows * cdiv(width, block),)
    return Launch(swiglu_backward_kernel, grid, (*strides, *outputs, width), constants, copied)


def gelu_forward(x: Tensor, bias: Tensor | None = None, *, approximate: Approximation = "tanh") -> Tensor:
    """gelu(x + bias), contiguous, in x's type. x: (…, width); bias: (width,)."""
    launch = _gelu_forward((x, bias), approximate, BLOCK, GELU_FORWARD_WARPS)
    if launch is None:
        return gelu_forward_reference(x, bias, approximate)
    h = new_like(x)
    launch((x, bias, h))
    return h


@checked_once
def _gelu_forward(x: Tensor, bias: Tensor | None, approximate: Approximation, block: int, warps: int) -> Launch | None:
    _check_gelu(x, bias, approximate)
    if not use_triton(x):
        return None
    strides, copied = row_strides(x)
    rows, width = rows_and_width(x)
    constants = {
        "HAS_BIAS": bias is not None, "TANH": approximate == "tanh", "BLOCK": block, "num_warps": warps,
    }  # fmt: skip
    grid = (rows * cdiv(width, block),)
    return Launch(gelu_forward_kernel, grid, (*strides, width), constants, copied)


def gelu_backward(
    dh: Tensor,
    x: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: Approximation = "tanh",
    bias_grad: Tensor | None = None,
    h_out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(dx in x's type, dbias fp32 or None without bias).

    The bias gradient is `bias_grad` with it added when that is given. h_out: as in `swiglu_backward`.
    """
    found = _gelu_backward((dh, x, bias, bias_grad, h_out), approximate, BLOCK, WARPS)
    if found is None:
        dx, db = gelu_backward_reference(dh, x, bias, approximate)
        if h_out is not None:
            h_out.copy_(gelu_forward_reference(x, bias, approximate).view(h_out.shape))
        return dx, None if bias is None else db if bias_grad is None else bias_grad.add_(db)
    launch, bias_sum = found
    dx = new_like(x)
    partial = None if bias is None else bias_sum.partials(dx)
    launch((dh, x, bias, dx, h_out, partial))
    if h_out is not None:
        written(h_out)
    return dx, None if bias is None else bias_sum(partial, bias_grad)


@checked_once
def _gelu_backward(
    dh: Tensor,
    x: Tensor,
    bias: Tensor | None,
    bias_grad: Tensor | None,
    h_out: Tensor | None,
    approximate: Approximation,
    block: int,
    warps: int,
) -> tuple[Launch, PartialSum] | None:
    """The launch (column blocks by stripes of rows), and the sum over its stripes."""
    _check_gelu(x, bias, approximate)
    check_float("dh", dh)
    check_tensor("dh", dh, shape=x.shape, device=x.device)
    _check_h_out(h_out, x)
    if bias_grad is not None:
        if bias is None:
            raise KernelArgumentError("bias_grad is given and bias is None; accepted: both, or neither")
        main = (torch.float32, torch.float64)
        check_tensor("bias_grad", bias_grad, dtypes=main, shape=x.shape[-1:], device=x.device, contiguous=True)
    if not use_triton(x):
        return None
    strides, copied = row_strides(dh, x)
    rows, width = rows_and_width(x)
    grid = striped(rows, width, block, x.device)
    constants = {
        "HAS_H": h_out is not None, "HAS_BIAS": bias is not None, "TANH": approximate == "tanh", "ROWS": 2,
        "BLOCK": block, "num_warps": warps,
    }  # fmt: skip
    launch = Launch(gelu_backward_kernel, grid, (*strides, rows, width), constants, copied)
    return launch, PartialSum(grid[1], width, bias_grad)


def _output_stride(name: str, given: Tensor | None, like: Tensor, rows: int, width: int) -> int:
    """Elements from row to row of an output: of a given one, checked, or of a new one."""
    if given is None:
        return width
    if given.shape[-1] != width or given.numel() != rows * width or (width > 1 and given.stride(-1) != 1):
        raise KernelArgumentError(
            f"{name} has shape {tuple(given.shape)}, strides {given.stride()}; accepted: {rows} rows of {width} "
            "with unit stride in a row"
        )
    check_tensor(name, given, dtypes=(like.dtype,), device=like.device)
    return given.stride(0) if given.dim() == 2 else given.view(rows, width).stride(0)


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
