"""Compiles the forward and backward blocks of one chunk of a stage from the pieces of its units.

A forward block takes the chunk's input from a receive (or loads tokens), and hands over its output and everything
backward reads. A backward block takes those, runs recompute instructions (phase R) where the plan asks, and hands the
gradient of the chunk's input to a send. `Scope` maps a unit's tensor names to buffers; `w:`, `g:` and `s:` names are
rank-wide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from plan.compile.builder import BlockBuilder
from plan.pieces import Move, Step, TensorSpec, Unit, Work, saved_names
from plan.program import Block, Buffer, Comm, KernelCall, Phase, Stream, numel, rank_wide


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """A unit with what of it is kept for backward, and the forward steps backward repeats."""

    unit: Unit
    number: int
    kept: tuple[str, ...]
    repeated: tuple[Step, ...]
    shared: bool = False  # of what is kept each tensor-parallel rank keeps its share


SAVED = "saved"


def share_saved(plan: UnitPlan, ranks: int) -> UnitPlan:
    """The input of a recomputed unit, flat and cut over the tensor-parallel ranks that all hold it: each keeps its
    share (DeepSpeed's `partition_activations`, Megatron-LM's `--distribute-saved-activations`)."""
    whole = plan.unit.tensors[plan.unit.source]
    share = TensorSpec((numel(whole.shape) // ranks,), whole.dtype)
    unit = replace(plan.unit, tensors={**plan.unit.tensors, SAVED: share})
    return UnitPlan(unit, plan.number, (SAVED,), plan.repeated, shared=True)


def unit_plan(unit: Unit, number: int, recompute: str, whole: bool = False) -> UnitPlan:
    """`recompute`: none | selective (keep all but the attention's result) | full (keep the input only). `whole`: what
    is recomputed in full runs to its end, as under autograd's checkpointing, what backward does not need included."""
    saved = saved_names(unit)
    kept = saved
    if recompute == "full":
        kept = (unit.source,)
        if whole:
            return UnitPlan(unit, number, kept, unit.forward)
    elif recompute == "selective":
        kept = tuple(n for n in saved if n not in ("o", "lse", "mask.p", "dropped"))
    missing = {n for n in saved if n not in kept}
    return UnitPlan(unit, number, kept, _slice(unit, missing, set(kept)))


def _slice(unit: Unit, missing: set[str], kept: set[str]) -> tuple[Step, ...]:
    """The forward steps needed to make `missing` again from `kept` (a unit's last sum is not among them)."""
    wanted, steps = set(missing), []
    for step in reversed(unit.forward):
        if not wanted.intersection(step.writes):
            continue
        steps.append(step)
        if set(step.writes).isdisjoint(step.reads):
            wanted -= set(step.writes)
        wanted |= {n for n in step.reads if ":" not in n and n not in kept}
    return tuple(reversed(steps))


@dataclass(slots=True)
class Rings:
    """Fixed slots of a stage and the largest tenant of each; successive tenants of a family alternate between two."""

    sizes: dict[str, TensorSpec] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)

    def start_block(self) -> None:
        """Every block starts on the first slot: blocks are position-independent."""
        self._next = {}

    def slot(self, name: str, spec: TensorSpec) -> str:
        """The slot of the next tenant: names differ by digits and end in f (gathered), g (gathered again) or r
        (reduced).
        """
        stem = "".join(c for c in name[:-1] if not c.isdigit())
        family = f"{stem}.{'scatter' if name[-1] == 'r' else 'gather'}"
        turn = self._next.get(family, 0)
        self._next[family] = (turn + 1) % 2
        return self.claim(f"{family}.{turn}", spec)

    def claim(self, slot: str, spec: TensorSpec) -> str:
        """Note a tenant of a named slot."""
        held = self.sizes.get(slot)
        if held is None or spec.bytes > held.bytes:
            self.sizes[slot] = spec
        return slot

    def buffers(self) -> list[Buffer]:
        """The slots as rank-wide buffers."""
        return [
            Buffer(s.shape, s.dtype, "comm" if n.startswith("recv") else "gather", n, n) for n, s in self.sizes.items()
        ]


@dataclass(frozen=True, slots=True)
class StageNames:
    """Rank-wide buffers by symbolic name, and the bucket of every parameter."""

    weights: dict[str, int]
    gradients: dict[str, int]
    loss: int
    bucket_of: dict[str, int]

    def ref(self, name: str) -> int:
        """Reference of a `w:`, `g:` or `s:` name."""
        kind, _, rest = name.partition(":")
        if kind == "s":
            return rank_wide(self.loss)
        return rank_wide(self.weights[rest] if kind == "w" else self.gradients[rest])


class Partitioned(Protocol):
    """Where parameters are that no rank holds whole (`plan.compile.shards.BlockShards`)."""

    after: tuple[int, ...]

    def ref(self, unit: int, name: str) -> int | None:
        """The buffer behind a `w:` or `g:` name while a unit computes; None when the rank holds it whole."""


class ChunkCompiler:
    """Emits units into a builder. One instance a block; `after_grad(param name, builder)` is called after the
    instruction that makes the chunk's contribution to a parameter's gradient."""

    def __init__(
        self,
        builder: BlockBuilder,
        names: StageNames,
        rings: Rings,
        wait_weights: dict[int, int] | None = None,
        serial: bool = False,
    ) -> None:
        """`serial`: a collective begins when all compute before it has ended, not when its own input is there."""
        self.builder = builder
        self.names = names
        self.rings = rings
        self.first_waits = dict(wait_weights or {})  # bucket -> in-port of its all-gather
        self.serial = serial
        self.after_grad: Callable[[str], None] | None = None
        self.shards: Partitioned | None = None
        self._unit = -1
        self._latest: int | None = None  # the last compute instruction
        self._entry: tuple[int, int] | None = None  # (port, buffer) freed by the first compute instruction
        rings.start_block()

    def free_on_entry(self, name: str, stream: Stream, spec: Buffer) -> None:
        """The payload of a send two calls ago: the first compute instruction waits for the send and frees it."""
        buffer = self.builder.take(name, stream, spec)
        self._entry = (self.builder.port_of(buffer), buffer)

    def compute(
        self, phase: Phase, kind: str, number: int, piece: str, reads: tuple[int, ...], writes: tuple[int, ...],
        body: tuple[KernelCall, ...], after: tuple[int, ...] = (), transient_bytes: int = 0,
    ) -> int:  # fmt: skip
        """Emit a compute instruction; the first of the block frees what was to be freed on entry."""
        entry, self._entry = self._entry, None
        if entry is not None:
            after = (*after, -1 - entry[0])
        index = self.builder.emit(
            phase, kind, number, piece, "compute", reads, writes, body, after=after, transient_bytes=transient_bytes
        )
        self._latest = index
        if entry is not None:
            self.builder.discard(entry[1], index)
        return index

    def ref(self, scope: dict[str, int], unit: Unit, name: str) -> int:
        """Buffer behind a name, made on first use."""
        if ":" in name:
            found = None if self.shards is None else self.shards.ref(self._unit, name)
            return self.names.ref(name) if found is None else found
        if name not in scope:
            scope[name] = self.builder.buffer(self._buffer(unit, name))
        return scope[name]

    def _buffer(self, unit: Unit, name: str) -> Buffer:
        spec = unit.tensors[name]
        slot = self.rings.slot(name, spec) if spec.gathered else None
        return Buffer(spec.shape, spec.dtype, spec.pool, name, slot)

    def steps(self, plan: UnitPlan, steps: tuple[Step, ...], scope: dict[str, int], recompute: bool = False) -> None:
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
                    phase, step.kind, plan.number, step.piece, "tp", reads, writes, comm=comm, after=after, priority=2
                )
                continue
            self._work(step, plan.number, phase, reads, writes)

    def _work(self, step: Work, number: int, phase: Phase, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        params = [n[2:] for n in step.reads if n.startswith("w:")]
        buckets = dict.fromkeys(self.names.bucket_of[p] for p in params)
        after = tuple(-1 - self.first_waits.pop(b) for b in buckets if b in self.first_waits)
        if self.shards is not None:
            after, self.shards.after = (*after, *self.shards.after), ()
        self.compute(phase, step.kind, number, step.piece, reads, writes, step.body, after, step.transient_bytes)
        if self.after_grad is not None:
            for name in dict.fromkeys(n[2:] for n in step.writes if n.startswith("g:")):
                self.after_grad(name)

    def share(self, plan: UnitPlan, scope: dict[str, int]) -> None:
        """Keep this rank's share of the unit's input; the input itself goes when the unit has read it."""
        spec = plan.unit.tensors[SAVED]
        scope[SAVED] = self.builder.buffer(Buffer(spec.shape, spec.dtype, spec.pool, SAVED))
        body = (KernelCall("copy", spec.shape, spec.dtype),)
        self.compute("R", "SHARE", plan.number, SAVED, (scope[plan.unit.source],), (scope[SAVED],), body)

    def unshare(self, plan: UnitPlan, scope: dict[str, int]) -> None:
        """Gather the unit's input again, for its recompute and its backward."""
        whole = plan.unit.tensors[plan.unit.source]
        slot = self.rings.slot(f"{SAVED}.g", whole)
        scope[plan.unit.source] = self.builder.buffer(Buffer(whole.shape, whole.dtype, "gather", SAVED, slot))
        comm = Comm("all_gather", "tp", whole.bytes, whole.dtype, "tp")
        reads, writes = (scope[SAVED],), (scope[plan.unit.source],)
        self.builder.emit("R", "AG", plan.number, SAVED, "tp", reads, writes, comm=comm, priority=2)

    def load(self, unit: Unit, number: int, name: str) -> int:
        """Token ids (or targets) of the micro-batch."""
        spec = unit.tensors[name]
        buffer = self.builder.buffer(Buffer(spec.shape, spec.dtype, spec.pool, name))
        body = (KernelCall("copy", spec.shape, spec.dtype),)
        self.compute("F", "LOAD", number, name, (), (buffer,), body)
        return buffer


def transfer_block(
    name: str, kind: str, unit: int, phase: Phase, stream: Stream, comm: Comm, spec: Buffer, host_sync: bool = False
) -> Block:
    """A block of one send or receive. A receive's in-port is the last reader of its slot; a send's is what it sends."""
    builder, piece = BlockBuilder(name), "x" if phase == "F" else "d"
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    if kind == "RECV":
        after = (-1 - builder.take("free", "compute", None),)
        buffer = builder.buffer(spec)
        writes = (buffer,)
    else:
        buffer = builder.take("payload", "compute", spec)
        reads = (buffer,)
    builder.emit(
        phase, kind, unit, piece, stream, reads, writes, comm=comm, after=after, priority=1, host_sync=host_sync
    )
    builder.give("received" if kind == "RECV" else "sent", buffer, 0)
    return builder.finish()


def exchange_block(
    name: str, unit: int, phase: Phase, stream: Stream, comm: Comm, payload: Buffer, slot: Buffer
) -> Block:
    """A block of one batched pair: sends the payload, receives into the slot, and blocks the host until both are
    done.
    """
    builder = BlockBuilder(name)
    free = builder.take("free", "compute", None)
    sent = builder.take("payload", "compute", payload)
    received = builder.buffer(slot)
    piece = "x.d" if phase == "F" else "d.x"
    builder.emit(
        phase, "XCHG", unit, piece, stream, (sent,), (received,),
        comm=comm, after=(-1 - free,), priority=1, host_sync=True,
    )  # fmt: skip
    builder.give("sent", sent, 0)
    builder.give("received", received, 0)
    return builder.finish()
