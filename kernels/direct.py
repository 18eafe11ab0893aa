"""How kernels are launched: through Triton, or past it once Triton has compiled what the launch needs.

Triton binds, specialises and hashes every argument by name on each launch, and asks the driver about every pointer:
more host time than a small kernel takes on the device. Here a launch is looked up by what its
compilation depends on: types, alignments and constants; of an integer only whether it is 1, a multiple of 16, or
wide; of a float nothing. A combination that is new there goes through Triton, which compiles it. Kernels take their
pointers first, then their numbers, then their constants. `start` looks up each launch; a `Launch` keeps what it found.

Argument checks, grid, strides and constants depend on the tensors' signature alone (shape, strides, type, device) and
on the call's flags. `checked_once` remembers by these what a function derived that checked them, mostly a `Launch`: a
repeated call costs its signature, one look-up, its allocations and the launch. Wrong arguments raise, so they are
never remembered; nor are addresses.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import torch
from torch.compiler import is_compiling

from kernels.launch import HAS_TRITON, INTERPRETED, KernelArgumentError, triton

REMEMBERED = 4096
"""Entries of one memory: launches of a kernel, signatures of a function. A memory is emptied when full."""
if hasattr(torch._C, "_cuda_getCurrentRawStream"):
    _current_device, _current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
_address = torch._C.TensorBase.data_ptr
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))

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


def checked_once(derive: Callable[..., Any]) -> Callable[..., Any]:
    """`derive(*tensors, *flags)`, called as (tensors, *flags) and remembered by the signature of the tensors, None
    among them, and by the flags. Not under a compiler, where sizes may be symbols, and for plain tensors alone: what
    `derive` returns may hold some that it made."""
    kept: dict[tuple[Any, ...], Any] = {}
    _SIGNATURES.append(kept)

    @functools.wraps(derive)
    def find(tensors: tuple[torch.Tensor | None, ...], *flags: Any) -> Any:
        if is_compiling():
            return derive(*tensors, *flags)
        try:
            key = (
                flags,
                *[
                    t if t is None else (t.shape, t.is_contiguous() or t.stride(), t.dtype, t.device, t.is_neg())
                    for t in tensors
                ],
            )
            found = kept.get(key, kept)
        except (AttributeError, TypeError, RuntimeError):  # no tensor, no strides or no hash: the checks say so
            return derive(*tensors, *flags)
        if found is kept:
            found = derive(*tensors, *flags)
            if _PLAIN.issuperset(map(type, tensors)):
                _keep(kept, key, found)
        return found

    return find


def forget() -> None:
    """Empties every memory, of signatures and of launches."""
    for kept in _SIGNATURES:
        kept.clear()
    _DIRECT.clear()


def _keep(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = value


def start(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: tuple[torch.Tensor, ...],
    numbers: tuple[Any, ...],
    constants: Mapping[str, Any],
) -> Any:
    """Launch `kernel` on (*tensors, *numbers) with `constants`, which hold num_warps too; the compiled form, where one
    was launched past Triton."""
    if SHORT and not is_compiling():
        found = _DIRECT.get(id(kernel))
        if found is None:
            found = _DIRECT[id(kernel)] = Direct(kernel)
        return found.launch(grid, tensors, numbers, constants)
    kernel[grid](*tensors, *numbers, **constants)
    return None


_UNKNOWN = object()
"""The key of a launch that has not been looked up."""


class Launch:
    """A kernel with the grid, numbers and constants that a signature gives it, called with tensors: None stands for
    one that the constants leave out, in the same places on every call.

    Numbers that change from call to call follow those of the signature: floats, which no code depends on, then
    integers. copied: positions of tensors that the kernel cannot read as they lie; it reads contiguous copies.
    """

    __slots__ = ("constants", "copied", "device", "forms", "given", "grid", "kernel", "numbers", "places")

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: tuple[Any, ...],
        constants: Mapping[str, Any],
        copied: tuple[int, ...] = (),
    ) -> None:
        self.kernel, self.constants = kernel, constants
        self.grid, self.numbers, self.copied = (*grid, 1, 1)[:3], numbers, copied
        self.forms: dict[Any, Any] = {}  # compiled forms by alignments, and what is compiled of the integers
        self.device: int | None = None  # of the forms; None until a form is known
        self.given: Any = None  # chooses the tensors that are not None
        self.places: Any = None  # spreads their addresses

    def __call__(
        self, tensors: tuple[torch.Tensor | None, ...], floats: tuple[float, ...] = (), integers: tuple[int, ...] = ()
    ) -> None:
        if self.device is None:
            self._by_arguments(tensors, floats, integers)
            return
        addresses, low = list(map(_address, tensors if self.given is None else self.given(tensors))), 0
        for address in addresses:
            low |= address
        key: Any = tuple([a & 15 for a in addresses]) if low & 15 else None
        if integers:
            key = key, *map(_specialisation, integers)
        found, device = self.forms.get(key), _current_device()
        if found is None or device != self.device or 0 in addresses:
            self._by_arguments(tensors, floats, integers, key)
            return
        if self.places is not None:
            addresses = self.places(addresses)
        run, head, trailing = found
        run(*self.grid, _current_stream(device), *head, *addresses, *self.numbers, *floats, *integers, *trailing)

    def _by_arguments(self, tensors: tuple[Any, ...], floats: Any, integers: Any, key: Any = _UNKNOWN) -> None:
        """The launch by `start`, whose form is kept for the next call with this key."""
        if 0 in self.grid:
            return
        every = [tensors[0] if t is None else t.contiguous() if i in self.copied else t for i, t in enumerate(tensors)]
        numbers = *self.numbers, *floats, *integers
        found = start(self.kernel, self.grid, tuple(every), numbers, self.constants)
        if found is None or self.copied:
            return
        if self.device is None:
            there = [i for i, t in enumerate(tensors) if t is not None]
            if len(there) < len(tensors):
                self.given = itemgetter(*there)
                self.places = itemgetter(*[there.index(i) if i in there else 0 for i in range(len(tensors))])
            own = every[0].get_device()
            self.device = own if own >= 0 else _current_device()  # last: another thread may be in a call
        if key is not _UNKNOWN:
            _keep(self.forms, key, found)


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
    ) -> Any:
        """The compiled form that was launched; None when Triton compiled and launched it."""
        device = _current_device()
        if device != tensors[0].get_device() >= 0:  # a launch goes to the current device: make it the tensors'
            with torch.cuda.device(tensors[0].device):
                return self.launch(grid, tensors, numbers, constants)
        addresses, low = list(map(_address, tensors)), 0
        for address in addresses:
            low |= address
        alignment = tuple([a & 15 for a in addresses]) if low & 15 else None
        key = (device, alignment, tuple(constants.values()), numbers, *[t.dtype for t in tensors])
        found = self.repeated.get(key)
        if found is None or 0 in addresses:
            _check_real(tensors)
        if found is None:
            found = self._find(key, grid, tensors, numbers, constants)
            if found is None:
                return None
            _keep(self.repeated, key, found)
        run, head, trailing = found
        run(*(*grid, 1, 1)[:3], _current_stream(device), *head, *addresses, *numbers, *trailing)
        return found

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
        coarse = (*key[:3], *map(_specialisation, numbers), *key[4:])
        found = self.compiled.get(coarse)
        if found is not None:
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
_SIGNATURES: list[dict[tuple[Any, ...], Any]] = []
