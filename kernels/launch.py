"""What every kernel file shares: Triton when it is installed, the choice of path, argument checks, and config tables.

A kernel file holds, in order: the reference (plain torch, the specification), the Triton kernels, the plain functions the trainer and the
calibration call, and the `torch.library.triton_op` glue. The plain functions choose the path with `use_triton`: Triton for CUDA tensors
(and for CPU tensors in Triton's interpreter), the reference everywhere else. So this package imports, trains and tests without Triton.

Two rules that a reader meets in every kernel:
- arithmetic is fp32: load in the storage type, convert at once, convert back at the store (float scalars are pinned with `tl.cast`, because
  a compiled graph passes them as fp64 and one fp64 scalar promotes a whole row);
- an index is int64 before it meets a stride, on every axis.

Launch shapes come from plain tables keyed by width, tuned by `python -m kernels.bench --tune` on the device, never by an autotuner at run
time: the same input then always runs the same code.
"""

from __future__ import annotations

import functools
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
"""True when kernels run in Triton's interpreter on CPU tensors. Read once: Triton itself reads it when `@triton.jit` runs."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Storage types the kernels take; fp64 runs through the reference."""

Launcher = Callable[[Any], Any]
"""How a kernel is launched: `direct` from plain functions, `torch.library.wrap_triton` inside a `triton_op`."""

_SHORT_PATH = HAS_TRITON and not INTERPRETED and triton.__version__.startswith("3.6.")
"""Whether `direct` may call compiled kernels itself: it relies on `CompiledKernel.run` as Triton 3.6 has it."""


class _Direct:
    """A kernel whose repeated launches skip Triton's argument binder.

    Triton binds, specialises and hashes every argument by name on each call (50–100 µs for thirty arguments). Here a launch is looked up by
    what its compilation depends on: for a tensor its type and 16-byte alignment; for an integer whether it is 1, a multiple of 16, or wide;
    the constants and options. A combination not seen before goes through Triton, which compiles it; later ones call that kernel.
    """

    __slots__ = ("compiled", "constants", "kernel")

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.constants = [p.name for p in kernel.params if p.is_constexpr]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        device = torch._C._cuda_getDevice()
        signature: list[Any] = [device]
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                address = argument.data_ptr()
                values.append(address)
                signature.append(argument.dtype)
                signature.append(address & 15)
            else:
                values.append(argument)
                if type(argument) is int:
                    wide = not -2147483648 <= argument <= 2147483647
                    signature.append((argument == 1, argument & 15 == 0, wide))
        key = (*signature, *constants.items())
        found = self.compiled.get(key)
        if found is None:
            compiled = self.kernel[grid](*arguments, **constants)
            trailing = tuple(constants[name] for name in self.constants)
            self.compiled[key] = compiled.run, compiled.function, compiled.packed_metadata, trailing
            return
        run, function, metadata, trailing = found
        y, z = (grid[1] if len(grid) > 1 else 1), (grid[2] if len(grid) > 2 else 1)
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(grid[0], y, z, stream, function, metadata, None, None, None, *values, *trailing)


_DIRECT: dict[int, _Direct] = {}


def direct(kernel: Any) -> Any:
    """The launcher of the plain functions: the short path, or the kernel itself under a compiler, in the interpreter, or on another Triton."""
    if not _SHORT_PATH or torch.compiler.is_compiling():
        return kernel
    found = _DIRECT.get(id(kernel))
    if found is None:
        found = _DIRECT[id(kernel)] = _Direct(kernel)
    return found


class KernelArgumentError(InputError, ValueError):
    """A tensor or number a kernel cannot take; the message names the argument, what it is and the accepted forms."""


def use_triton(tensor: torch.Tensor) -> bool:
    """Whether `tensor` goes to a Triton kernel: it lives on CUDA (or the interpreter runs) and its type is one the kernels store."""
    return HAS_TRITON and (tensor.is_cuda or INTERPRETED) and tensor.dtype != torch.float64


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    shape: tuple[int | None, ...] | torch.Size | None = None,
    device: torch.device | None = None,
) -> None:
    """Raises KernelArgumentError unless `tensor` has one of `dtypes`, matches `shape` (None: any size) and lives on `device`."""
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
    """`tensor` as (rows, width) with unit stride along the width: a view where one exists, a copy where not (a slower, correct path)."""
    rows = tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    return rows if rows.shape[1] <= 1 or rows.stride(1) == 1 else rows.contiguous()


def next_power_of_2(n: int) -> int:
    """Smallest power of two ≥ n (1 for n ≤ 1)."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


_PROCESSORS: dict[int, int] = {}


def processors(device: torch.device) -> int:
    """Number of streaming multiprocessors of `device`; 4 in the interpreter, so that its persistent loops are exercised."""
    if device.type != "cuda":
        return 4
    index = device.index if device.index is not None else torch.cuda.current_device()
    if index not in _PROCESSORS:
        _PROCESSORS[index] = torch.cuda.get_device_properties(index).multi_processor_count
    return _PROCESSORS[index]


def by_width(table: Sequence[tuple[int, Any]], width: int) -> Any:
    """The entry of the first row of `table` (upper width bound, config) that holds `width`; the last row holds everything above."""
    for bound, config in table:
        if width <= bound:
            return config
    return table[-1][1]
