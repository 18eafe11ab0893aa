"""How kernels are launched: through Triton, or past it once Triton has compiled what the launch needs.

Triton binds, specialises and hashes every argument by name on each launch, and asks the driver about every pointer:
more host time than a small kernel takes on the device. `start` with the launcher `direct` looks a launch up twice
instead. First by its very numbers, types, alignments and constants, as a training step repeats them. Failing that, by
what its compilation depends on: of an integer only whether it is 1, a multiple of 16, or wide; of a float nothing. A
combination that is new there too goes through Triton, which compiles it. Kernels take their pointers first, then
their numbers, then their constants.

`remembered` keeps what a call derives from its shapes alone (grid, constants); its `Constants` are then one object a
launch, which is looked up by identity.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels.launch import HAS_TRITON, INTERPRETED, KernelArgumentError, triton

Launcher = Callable[[Any], Any]
"""How a kernel is launched: `direct` from plain functions, `torch.library.wrap_triton` inside a `triton_op`."""

REMEMBERED = 4096
"""Launches (for each kernel) and derived shapes (for each function) remembered; a memory is emptied when full."""
if hasattr(torch._C, "_cuda_getCurrentRawStream"):
    _current_device, _current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
_address = torch._C.TensorBase.data_ptr

SHORT = (
    os.environ.get("WINDTUNNEL_SHORT_LAUNCH", "1") != "0"
    and HAS_TRITON
    and not INTERPRETED
    and triton.__version__.startswith("3.6.")
    and hasattr(torch._C, "_cuda_getCurrentRawStream")
)
"""Whether compiled kernels are called past Triton: that relies on `CompiledKernel` and its launcher as Triton 3.6 has
them.

WINDTUNNEL_SHORT_LAUNCH=0 switches it off.
"""


class Constants(dict[str, Any]):
    """The constants of a remembered launch: equal only to itself, so that a lookup costs no comparison."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__


def remembered(derive: Callable[..., Any]) -> Callable[..., Any]:
    """`derive(*key)`, kept by its arguments; called with launcher first, and kept for `direct` alone (under a compiler
    sizes may be symbols)."""
    kept: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(derive)
    def find(launcher: Launcher, *key: Any) -> Any:
        if launcher is not direct:
            return derive(*key)
        found = kept.get(key)
        if found is None:
            if len(kept) >= REMEMBERED:
                kept.clear()
            found = kept[key] = derive(*key)
        return found

    return find


def direct(kernel: Any) -> Any:
    """The launcher of the plain functions: `start` takes the short path where there is one."""
    return kernel


def start(
    launcher: Launcher,
    kernel: Any,
    grid: tuple[int, ...],
    tensors: tuple[torch.Tensor, ...],
    numbers: tuple[Any, ...],
    constants: Mapping[str, Any],
) -> None:
    """Launch `kernel` on (*tensors, *numbers) with `constants`, which hold num_warps too."""
    if SHORT and launcher is direct and not torch.compiler.is_compiling():
        found = _DIRECT.get(id(kernel))
        if found is None:
            found = _DIRECT[id(kernel)] = Direct(kernel)
        found.launch(grid, tensors, numbers, constants)
    else:
        launcher(kernel)[grid](*tensors, *numbers, **constants)


class Direct:
    """One kernel's compiled forms and remembered launches; see the module."""

    __slots__ = ("compiled", "constants", "kernel", "pointers", "repeated")

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.repeated: dict[tuple[Any, ...], Any] = {}
        self.constants = [p.name for p in kernel.params if p.is_constexpr]
        names = [p.name for p in kernel.params]
        self.pointers = sum(name.endswith("_ptr") for name in names)
        assert all(name.endswith("_ptr") for name in names[: self.pointers]), f"{names}: pointers come first"

    def launch(
        self,
        grid: tuple[int, ...],
        tensors: tuple[torch.Tensor, ...],
        numbers: tuple[Any, ...],
        constants: Mapping[str, Any],
    ) -> None:
        device = _current_device()
        if device != tensors[0].get_device() >= 0:  # a launch goes to the current device: make it the tensors'
            with torch.cuda.device(tensors[0].device):
                return self.launch(grid, tensors, numbers, constants)
        addresses = list(map(_address, tensors))
        low = 0
        for address in addresses:
            low |= address
        alignment = tuple([a & 15 for a in addresses]) if low & 15 else None
        same: Any = constants if constants.__class__ is Constants else tuple(constants.values())
        key = (device, alignment, same, numbers, *[t.dtype for t in tensors])
        found = self.repeated.get(key)
        if found is None:
            _check_real(tensors)
            found = self._find(key, grid, tensors, numbers, constants)
            if found is None:
                return None
        run, head, trailing = found
        y = grid[1] if len(grid) > 1 else 1
        run(grid[0], y, 1, _current_stream(device), *head, *addresses, *numbers, *trailing)
        return None

    def _find(
        self,
        key: tuple[Any, ...],
        grid: tuple[int, ...],
        tensors: tuple[torch.Tensor, ...],
        numbers: tuple[Any, ...],
        constants: Mapping[str, Any],
    ) -> Any:
        """The compiled kernel of the launch; None when Triton has just compiled and launched it."""
        assert len(tensors) == self.pointers
        values = tuple(constants.values())
        coarse = (*key[:2], values, *map(_specialisation, numbers), *key[4:])
        found = self.compiled.get(coarse)
        if found is not None:
            if len(self.repeated) >= REMEMBERED:
                self.repeated.clear()
            self.repeated[key] = found
            return found
        compiled = self.kernel[grid](*tensors, *numbers, **constants)
        trailing = tuple(constants[name] for name in self.constants)
        self.compiled[coarse] = *_entry(compiled), trailing
        return None


def _check_real(tensors: tuple[torch.Tensor, ...]) -> None:
    """Raises KernelArgumentError for tensors without memory (fake ones) or off the first one's device."""
    for index, tensor in enumerate(tensors):
        if tensor.device != tensors[0].device:
            raise KernelArgumentError(f"argument {index} is on {tensor.device}; accepted: {tensors[0].device}")
        if tensor.numel() and not tensor.data_ptr():
            raise KernelArgumentError(
                f"argument {index} holds no memory (a fake tensor); plain functions run on real ones"
            )


def _entry(compiled: Any) -> tuple[Any, tuple[Any, ...]]:
    """(what launches a compiled kernel, what it wants between the stream and the addresses): Triton's C function where
    the kernel needs no scratch memory, else the Python around it, which allocates that."""
    run = compiled.run
    hooks = (compiled.packed_metadata, None, None, None)
    if getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1):
        return run, (compiled.function, *hooks)
    scratch = (None, None)
    return run.launch, (compiled.function, run.launch_cooperative_grid, run.launch_pdl, *scratch, *hooks)


def _specialisation(number: Any) -> Any:
    """What Triton compiles a number by."""
    if number.__class__ is not int:
        return None
    return number == 1, number & 15 == 0, not -2147483648 <= number <= 2147483647


_DIRECT: dict[int, Direct] = {}
