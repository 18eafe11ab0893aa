"""What every kernel file shares: Triton when it is installed, the choice of path, argument checks, and config tables.
How a kernel is launched: `kernels/direct.py`.

An operator's file (norms.py, adamw.py, …) holds the reference (plain torch, the specification) and the plain functions
that the trainer and the calibration call; its Triton kernels stand beside them, or in *_kernels.py where they are many.
`functional.py` wraps the differentiable ones as `torch.library.triton_op`. The plain functions choose the path with
`use_triton`: Triton for CUDA tensors (and for CPU tensors in Triton's interpreter), the reference everywhere else. So
this package imports, trains and tests without Triton.

Two rules that a reader meets in every kernel:
- arithmetic is fp32: load in the storage type, convert at once, convert back at the store (float scalars are pinned
  with `tl.cast`, because a compiled graph passes them as fp64 and one fp64 scalar promotes a whole row);
- an index is int64 before it meets a stride, on every axis.

Launch shapes come from plain tables keyed by width, tuned by `python -m kernels.tune` on the device, never by an
autotuner at run time: the same input then always runs the same code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch

from program.errors import InputError

try:
    import triton
    import triton.language as tl
except ImportError:  # the base machine: the references are the implementation

    class _Missing:
        """Stands where Triton would be, so that `@triton.jit` functions can be defined (never run) without it."""

        def __getattr__(self, name: str) -> _Missing:
            return self

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return args[0] if args and callable(args[0]) else self

    triton = _Missing()
    tl = _Missing()
    HAS_TRITON = False
else:
    HAS_TRITON = True

INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET", "0") == "1"
"""True when kernels run in Triton's interpreter on CPU tensors.

Read once: Triton itself reads it when `@triton.jit` runs.
"""

_WITH_MEMORY = {torch.Tensor, torch.nn.Parameter}
"""Types whose addresses mean something; a fake tensor's do not."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Storage types the kernels take; fp64 runs through the reference."""


class KernelArgumentError(InputError, ValueError):
    """A tensor or number a kernel cannot take; the message names the argument, what it is and the accepted forms."""


def use_triton(tensor: torch.Tensor) -> bool:
    """Whether `tensor` goes to a Triton kernel: it lives on CUDA (or the interpreter runs) and its type is one the
    kernels store."""
    return HAS_TRITON and (tensor.is_cuda or INTERPRETED) and tensor.dtype != torch.float64


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    shape: tuple[int | None, ...] | torch.Size | None = None,
    device: torch.device | None = None,
    contiguous: bool = False,
) -> None:
    """Raises KernelArgumentError unless `tensor` has one of `dtypes`, matches `shape` (None: any size), lives on
    `device`, and is `contiguous` where a kernel reads it as a flat buffer."""
    if not isinstance(tensor, torch.Tensor):
        raise KernelArgumentError(f"{name} is {type(tensor).__name__}; a torch.Tensor is needed")
    if dtypes is not None and tensor.dtype not in dtypes:
        accepted = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise KernelArgumentError(f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}; accepted: {accepted}")
    if shape is not None:
        same = tensor.shape == shape
        if not same and not (
            tensor.dim() == len(shape) and all(w is None or w == g for w, g in zip(shape, tensor.shape, strict=True))
        ):
            wanted = "(" + ", ".join("any" if s is None else str(s) for s in shape) + ")"
            raise KernelArgumentError(f"{name} has shape {tuple(tensor.shape)}; accepted: {wanted}")
    if device is not None and tensor.device != device:
        raise KernelArgumentError(f"{name} is on {tensor.device}; accepted: {device}, where the first argument is")
    _check_sign(name, tensor)
    if contiguous and not tensor.is_contiguous():
        raise KernelArgumentError(f"{name} has strides {tensor.stride()}; accepted: contiguous (call .contiguous())")


def check_output(name: str, tensor: torch.Tensor) -> None:
    """Raises unless rows of `tensor` can be written: unit stride along the width, no element twice."""
    sizes, strides = tensor.shape, tensor.stride()
    if any(stride == 0 and size > 1 for size, stride in zip(sizes, strides, strict=True)) or (
        sizes and sizes[-1] > 1 and strides[-1] != 1
    ):
        raise KernelArgumentError(
            f"{name} has strides {strides}; accepted: unit stride along the width, nothing expanded"
        )


def check_float(name: str, tensor: torch.Tensor) -> None:
    """Raises unless `tensor` is a floating-point tensor (fp64 included: the reference takes it)."""
    if not isinstance(tensor, torch.Tensor):
        raise KernelArgumentError(f"{name} is {type(tensor).__name__}; a torch.Tensor is needed")
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise KernelArgumentError(f"{name} has dtype {kind}; accepted: float32, bfloat16, float16, float64")
    _check_sign(name, tensor)


def _check_sign(name: str, tensor: torch.Tensor) -> None:
    """Memory holds the opposite of a lazily negated view, the imaginary part of a conjugate, say."""
    if tensor.is_neg():
        raise KernelArgumentError(f"{name} is lazily negated; accepted: call .resolve_neg() on it")


def check_apart(name: str, out: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Raises where `out` lies over a part of `other` without lying exactly over it: what is read would have been
    written already."""
    if not {type(out), type(other)} <= _WITH_MEMORY:
        return
    if out.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return
    (first, end), (other_first, other_end) = _extent(out), _extent(other)
    same = out.stride() == other.stride()
    if first >= other_end or other_first >= end:
        return
    if same and (first == other_first or _between(out, first - other_first)):
        return
    raise KernelArgumentError(
        f"{name} overlaps {other_name} and is not the same view of it; accepted: {other_name} itself, or memory of "
        "its own"
    )


def _between(tensor: torch.Tensor, shift_bytes: int) -> bool:
    """Whether a view like `tensor`, shifted, falls into the gaps between its rows: columns of one buffer, say."""
    gap, run, strides = 0, 1, tensor.stride()
    for size, stride in zip(reversed(tensor.shape), reversed(strides), strict=True):
        if size > 1 and stride == run and not gap:
            run *= size
        elif size > 1:
            gap = math.gcd(gap, stride)
    shift = shift_bytes // tensor.itemsize % gap if gap else 0
    return run <= shift <= gap - run


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte and of the one after the last."""
    first = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.itemsize if tensor.numel() else first


def row_stride(tensor: torch.Tensor) -> int | None:
    """Elements from one row of `tensor`, read as (rows, width), to the next; None where rows do not lie so, or not
    with unit stride along the width: a copy is needed (a slower, correct path). Raises KernelArgumentError for a
    scalar or an empty width."""
    if tensor.dim() == 0 or tensor.shape[-1] == 0:
        raise KernelArgumentError(
            f"a tensor of shape {tuple(tensor.shape)} has no rows; accepted: (…, width), width ≥ 1"
        )
    *sizes, width = tensor.shape
    *strides, unit = tensor.stride()
    if width > 1 and unit != 1:
        return None
    if len(sizes) == 1:
        return strides[0]
    if tensor.is_contiguous():
        return width
    first = following = None
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if following is not None and stride != following:
            return None
        first, following = stride if first is None else first, stride * size
    return width if first is None else first


def row_strides(*tensors: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`row_stride` of each tensor, as it will be, and the positions of those to be copied for it."""
    found = [row_stride(tensor) for tensor in tensors]
    copied = tuple(i for i, stride in enumerate(found) if stride is None)
    strides = [t.shape[-1] if stride is None else stride for t, stride in zip(tensors, found, strict=True)]
    return tuple(strides), copied


def rows_and_width(tensor: torch.Tensor) -> tuple[int, int]:
    """Of `tensor` read as (rows, width)."""
    width = tensor.shape[-1]
    return tensor.numel() // width, width


def new_like(like: torch.Tensor) -> torch.Tensor:
    """An uninitialised contiguous tensor of the shape, type and device of `like`."""
    if like.is_contiguous():
        return torch.empty_like(like)  # half the host time of naming shape and device
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def next_power_of_2(n: int) -> int:
    """Smallest power of two ≥ n (1 for n ≤ 1)."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def striped(rows: int, width: int, block: int, device: torch.device) -> tuple[int, int]:
    """Grid of a kernel that sums over rows: (column blocks, stripes of rows), about eight programs a multiprocessor."""
    columns = max(1, cdiv(width, block))
    return columns, max(1, min(cdiv(rows, 4), cdiv(processors(device) * 8, columns)))


_PROCESSORS: dict[torch.device, int] = {}


def processors(device: torch.device) -> int:
    """Number of streaming multiprocessors of `device`.

    4 in the interpreter, so that its persistent loops are exercised.
    """
    found = _PROCESSORS.get(device)
    if found is None:
        found = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
        _PROCESSORS[device] = found
    return found


def by_width(table: Sequence[tuple[int, Any]], width: int) -> Any:
    """The entry of the first row of `table` (upper width bound, config) that holds `width`.

    The last row holds everything above.
    """
    for bound, config in table:
        if width <= bound:
            return config
    return table[-1][1]
