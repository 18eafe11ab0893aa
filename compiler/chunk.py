"""Emits the units of one chunk into a block: their steps in order, each name turned into the buffer behind it.

`Scope` maps a unit's tensor names to buffers; `w:`, `g:`, `s:` and `c:` names are rank-wide (`StageNames`), or
partitioned (`Partitioned`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from compiler.block_builder import BlockBuilder
from compiler.recompute import SAVED, UnitPlan
from compiler.slot_allocator import SlotAllocator
from compiler.units import step as around
from program import Buffer, Comm, Phase, Stream, numel, rank_wide
from program.declared import SHARE, Value, Values
from program.lines import Body, Lines, Move, Part, Unit

Scope = dict[str, int]
FLAT = (("tp", SHARE),)


@dataclass(frozen=True, slots=True)
class StageNames:
    """Rank-wide buffers by symbolic name, and the bucket of every parameter."""

    weights: dict[str, int]
    gradients: dict[str, int]
    loss: int
    tables: dict[str, int]
    bucket_of: dict[str, int]

    def ref(self, name: str) -> int:
        """Reference of a `w:`, `g:`, `s:` or `c:` name."""
        kind, _, rest = name.partition(":")
        if kind == "s":
            return rank_wide(self.loss)
        if kind == "c":
            return rank_wide(self.tables[name])
        return rank_wide(self.weights[rest] if kind == "w" else self.gradients[rest])


class Partitioned(Protocol):
    """Where parameters are that no rank holds whole (`compiler.shards.BlockShards`)."""

    after: tuple[int, ...]

    def ref(self, unit: int, name: str) -> int | None:
        """The buffer behind a `w:` or `g:` name while a unit computes; None when the rank holds it whole."""


class ChunkCompiler:
    """Emits units into a builder. One instance a block; `after_grad(param name, phase)` is called after the
    instruction that makes the chunk's contribution to a parameter's gradient."""

    def __init__(
        self,
        builder: BlockBuilder,
        names: StageNames,
        allocator: SlotAllocator,
        wait_weights: dict[int, int] | None = None,
        serial: bool = False,
    ) -> None:
        """`serial`: a collective begins when all compute before it has ended, not when its own input is there."""
        self.builder = builder
        self.names = names
        self.allocator = allocator
        self.first_waits = dict(wait_weights or {})  # bucket -> in-port of its all-gather
        self.serial = serial
        self.after_grad: Callable[[str, Phase], None] | None = None
        self.shards: Partitioned | None = None
        self._unit = -1
        self._latest: int | None = None  # the last compute instruction
        self._entry: tuple[int, int] | None = None  # (port, buffer) freed by the first compute instruction
        allocator.start_block()

    def free_on_entry(self, name: str, stream: Stream, spec: Buffer) -> None:
        """The payload of a send two calls ago: the first compute instruction waits for the send and frees it."""
        buffer = self.builder.take(name, stream, spec)
        self._entry = (self.builder.port_of(buffer), buffer)

    def compute(
        self, phase: Phase, kind: str, number: int, piece: str, reads: tuple[int, ...], writes: tuple[int, ...],
        lines: Body, after: tuple[int, ...] = (), values: Values | None = None,
    ) -> int:  # fmt: skip
        """Emit a compute instruction; the first of the block frees what was to be freed on entry."""
        entry, self._entry = self._entry, None
        if entry is not None:
            after = (*after, -1 - entry[0])
        index = self.builder.emit(
            phase, kind, number, piece, "compute", reads, writes, lines, after=after, values=values
        )
        self._latest = index
        if entry is not None:
            self.builder.discard(entry[1], index)
        return index

    def ref(self, scope: Scope, unit: Unit, name: str) -> int:
        """Buffer behind a name, made on first use."""
        if ":" in name:
            found = None if self.shards is None else self.shards.ref(self._unit, name)
            return self.names.ref(name) if found is None else found
        if name not in scope:
            scope[name] = self.builder.buffer(self._buffer(unit, name))
        return scope[name]

    def _buffer(self, unit: Unit, name: str) -> Buffer:
        spec = unit.tensors[name]
        slot = self.allocator.slot(name, spec) if spec.gathered else None
        return Buffer(spec.shape, spec.dtype, spec.pool, name, slot)

    def steps(self, plan: UnitPlan, steps: tuple[Part, ...], scope: Scope, recompute: bool = False) -> None:
        """Emit a unit's steps in order."""
        self._unit = plan.number
        for step in steps:
            phase: Phase = "R" if recompute else step.phase
            reads = tuple(self.ref(scope, plan.unit, n) for n in step.reads)
            writes = tuple(self.ref(scope, plan.unit, n) for n in step.writes)
            if isinstance(step, Move):
                comm = Comm(step.op, "tp", step.bytes, step.dtype, "tp", step.reduce)
                after = (self._latest,) if self.serial and self._latest is not None else ()
                self.builder.emit(
                    phase, step.kind, plan.number, step.piece, "tp", reads, writes, comm=comm, after=after, priority=2,
                    values=step.values,
                )  # fmt: skip
                continue
            self._work(step, plan.number, phase, reads, writes)

    def _work(self, step: Lines, number: int, phase: Phase, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        params = [n[2:] for n in step.reads if n.startswith("w:")]
        buckets = dict.fromkeys(self.names.bucket_of[p] for p in params)
        after = tuple(-1 - self.first_waits.pop(b) for b in buckets if b in self.first_waits)
        if self.shards is not None:
            after, self.shards.after = (*after, *self.shards.after), ()
        self.compute(phase, step.kind, number, step.piece, reads, writes, step.body, after, step.values)
        if self.after_grad is not None:
            for name in dict.fromkeys(n[2:] for n in step.writes if n.startswith("g:")):
                self.after_grad(name, phase)

    def share(self, plan: UnitPlan, scope: Scope) -> None:
        """Keep this rank's share of the unit's input; the input itself goes when the unit has read it."""
        spec = plan.unit.tensors[SAVED]
        scope[SAVED] = self.builder.buffer(Buffer(spec.shape, spec.dtype, spec.pool, SAVED))
        whole = plan.unit.tensors[plan.unit.source]
        body = around.share(whole.shape, numel(whole.shape) // numel(spec.shape), spec.dtype)
        values = Values((Value("in"),), (Value("in", FLAT),))
        reads, writes = (scope[plan.unit.source],), (scope[SAVED],)
        self.compute("R", "SHARE", plan.number, SAVED, reads, writes, body, values=values)

    def unshare(self, plan: UnitPlan, scope: Scope) -> None:
        """Gather the unit's input again, for its recompute and its backward."""
        whole = plan.unit.tensors[plan.unit.source]
        slot = self.allocator.slot(f"{SAVED}.g", whole)
        scope[plan.unit.source] = self.builder.buffer(Buffer(whole.shape, whole.dtype, "gather", SAVED, slot))
        comm = Comm("all_gather", "tp", whole.bytes, whole.dtype, "tp")
        reads, writes = (scope[SAVED],), (scope[plan.unit.source],)
        values = Values((Value("in", FLAT),), (Value("in"),))
        self.builder.emit("R", "AG", plan.number, SAVED, "tp", reads, writes, comm=comm, priority=2, values=values)

    def load(self, unit: Unit, number: int, name: str) -> int:
        """Token ids (or targets) of the micro-batch."""
        spec = unit.tensors[name]
        buffer = self.builder.buffer(Buffer(spec.shape, spec.dtype, spec.pool, name))
        body = around.load(spec.shape, int(name == "targets"))
        self.compute("F", "LOAD", number, name, (), (buffer,), body, values=Values((), (Value(name),)))
        return buffer
