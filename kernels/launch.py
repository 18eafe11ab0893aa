"""What every kernel file shares: Triton when it is installed, the choice of path, argument checks, and config tables.

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

import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plan.errors import InputError

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

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Storage types the kernels take; fp64 runs through the reference."""

Launcher = Callable[[Any], Any]
"""How a kernel is launched: `direct` from plain functions, `torch.library.wrap_triton` inside a `triton_op`."""

_or = operator.or_
REPEATED_LAUNCHES = 4096
"""Launches remembered exactly, for each kernel; the memory is emptied when full."""
if hasattr(torch._C, "_cuda_getCurrentRawStream"):
    _current_device, _current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

_SHORT_PATH = (
    os.environ.get("WINDTUNNEL_SHORT_LAUNCH", "0") == "1"
    and HAS_TRITON
    and not INTERPRETED
    and triton.__version__.startswith("3.6.")
    and hasattr(torch._C, "_cuda_getCurrentRawStream")
)
"""Whether `direct` may call compiled kernels itself: it relies on `CompiledKernel.run` as Triton 3.6 has it.

Asked for by WINDTUNNEL_SHORT_LAUNCH=1 until this form of it has run on a GPU: so far a stand-in launcher tested it.
"""


class _Direct:
    """A kernel whose repeated launches skip Triton's argument binder.

    Triton binds, specialises and hashes every argument by name on each call, and asks the driver about every pointer.
    Here a launch is looked up twice. First by the very numbers, types, alignments and constants of the call, as a
    training step repeats them. Failing that, by what its compilation depends on: of an integer only whether it is 1,
    a multiple of 16, or wide; of a float nothing. A combination that is new there too goes through Triton, which
    compiles it. Kernels take their pointers first, then their numbers, and are launched from one place each, so that
    their constants come in one order.
    """

    __slots__ = ("compiled", "constants", "kernel", "pointers", "repeated")

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.repeated: dict[tuple[Any, ...], Any] = {}
        self.constants = [p.name for p in kernel.params if p.is_constexpr]
        names = [p.name for p in kernel.params]
        self.pointers = sum(name.endswith("_ptr") for name in names)
        assert all(name.endswith("_ptr") for name in names[: self.pointers]), f"{names}: pointers come first"

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        device = _current_device()
        tensors, numbers = arguments[: self.pointers], arguments[self.pointers :]
        addresses = [t.data_ptr() for t in tensors]
        alignment = tuple([a & 15 for a in addresses]) if functools.reduce(_or, addresses) & 15 else None
        key = (device, alignment, *[t.dtype for t in tensors], *constants.values(), *numbers)
        found = self.repeated.get(key)
        if found is None:
            found = self._find(key, grid, arguments, constants)
            if found is None:
                return
        run, function, metadata, trailing = found
        y = grid[1] if len(grid) > 1 else 1
        run(
            grid[0],
            y,
            1,
            _current_stream(device),
            function,
            metadata,
            None,
            None,
            None,
            *addresses,
            *numbers,
            *trailing,
        )

    def _find(
        self, key: tuple[Any, ...], grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> Any:
        """The compiled kernel of the call; None when Triton has just compiled and launched it."""
        numbers = len(arguments) - self.pointers
        coarse = key[:-numbers] + tuple(_specialisation(number) for number in key[-numbers:])
        found = self.compiled.get(coarse)
        if found is not None:
            if len(self.repeated) >= REPEATED_LAUNCHES:
                self.repeated.clear()
            self.repeated[key] = found
            return found
        compiled = self.kernel[grid](*arguments, **constants)
        trailing = tuple(constants[name] for name in self.constants)
        self.compiled[coarse] = compiled.run, compiled.function, compiled.packed_metadata, trailing
        return None


def _specialisation(number: Any) -> Any:
    """What Triton compiles a number by."""
    if number.__class__ is not int:
        return None
    return number == 1, number & 15 == 0, not -2147483648 <= number <= 2147483647


_DIRECT: dict[int, _Direct] = {}


def direct(kernel: Any) -> Any:
    """The launcher of the plain functions: the short path, or the kernel itself under a compiler, in the
    interpreter, or on another Triton."""
    if not _SHORT_PATH or torch.compiler.is_compiling():
        return kernel
    found = _DIRECT.get(id(kernel))
    if found is None:
        found = _DIRECT[id(kernel)] = _Direct(kernel)
    return found


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
) -> None:
    """Raises KernelArgumentError unless `tensor` has one of `dtypes`, matches `shape` (None: any size) and lives on
    `device`."""
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


def check_float(name: str, tensor: torch.Tensor) -> None:
    """Raises unless `tensor` is floating point (fp64 included: the reference takes it)."""
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise KernelArgumentError(f"{name} has dtype {kind}; accepted: float32, bfloat16, float16, float64")


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as (rows, width) with unit stride along the width: a view where one exists, a copy where not (a
    slower, correct path)."""
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    return rows if rows.shape[1] <= 1 or rows.stride(1) == 1 else rows.contiguous()


def new_rows(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised contiguous tensor of the shape and device of `like`."""
    if like.dtype is dtype and like.is_contiguous():
        return torch.empty_like(like)  # half the host time of naming shape and device
    return torch.empty(like.shape, dtype=dtype, device=like.device)


def next_power_of_2(n: int) -> int:
    """Smallest power of two ≥ n (1 for n ≤ 1)."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


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
