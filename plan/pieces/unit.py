"""What a piece is made of: named tensors, compute steps, collectives, and the unit that holds them in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from plan.program import DTYPE_BYTES, CommOp, KernelCall, Phase, Pool, Reduce, numel


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype and pool of a named tensor; `gathered`: a communication stream writes it into a slot."""

    shape: tuple[int, ...]
    dtype: str
    pool: Pool = "act"
    gathered: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return numel(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Work:
    """A compute instruction of a unit."""

    phase: Phase
    kind: str
    piece: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    body: tuple[KernelCall, ...]
    transient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A tensor-parallel collective of a unit; in place when `reads` == `writes`."""

    phase: Phase
    kind: str
    piece: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    op: CommOp
    bytes: int
    dtype: str
    reduce: Reduce = ""


Step = Work | Move


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit's work, forward and backward, in order, and the tensors it names."""

    number: int
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    tensors: dict[str, TensorSpec] = field(hash=False)
    source: str = "x"
    output: str = "x2"


def saved_names(unit: Unit) -> tuple[str, ...]:
    """Activations that backward reads and forward made or was given, in order of making: what a unit keeps."""
    made = [unit.source, *(n for s in unit.forward for n in (*s.reads, *s.writes))]
    wanted = set(_plain(n for s in unit.backward for n in s.reads))
    return tuple(dict.fromkeys(n for n in _plain(made) if n in wanted and not unit.tensors[n].gathered))


def _plain(names: Iterable[str]) -> Iterable[str]:
    return (n for n in names if ":" not in n)
