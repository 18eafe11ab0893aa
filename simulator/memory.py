"""Memory, simulated: a stage's allocations and releases in host issue order, and where they peak.

The caching allocator hands out memory when an instruction is *issued*, so the order is the host's and no time is
needed. A call allocates its local buffers at their first writer, holds `transient_bytes` and the temporaries of its
kernels (the profile's `workspace`) while an instruction runs, and releases what `frees` names. Rank-wide buffers and
fixed slots live for ever.

A block does the same thing in every call (but for frees behind unbound ports), so it is simulated once for its net and
peak effect, and a stage is a running sum over calls: equal to the expanded simulation, in a few milliseconds for any
size.

*Allocated* counts allocations as the allocator rounds them. *Reserved* is what it has taken from the device: large
allocations keep a segment for each size, reused by the next of that size, so each size holds its own highest count;
middle ones share large segments and small ones small segments. Sizes and limits are the profile's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibration.profile import Allocator
from calibration.workspace import NOTHING, Workspace
from program import DTYPE_BYTES, OFF_DEVICE, Block, Buffer, RankProgram, columns
from program.text import label_of

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "workspace", "framework")
PART_OF_POOL = {
    "weight": "weights",
    "grad": "gradients",
    "optim": "optimizer",
    "act": "activations",
    "stash": "workspace",
    "gather": "buffers",
    "comm": "buffers",
    "work": "workspace",
}
_PART = {pool: PARTS.index(part) for pool, part in PART_OF_POOL.items()}
SMALL, MIDDLE, TEMPORARY = -1, -2, -3  # size classes that share segments


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes at a stage's peak. `parts` sum to `peak_allocated_bytes`; `framework` is what rounding adds and what
    another project's kernels hold beyond the program. `where` is the instruction."""

    stage: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    resident_bytes: int
    parts: dict[str, int]
    where: str
    host_bytes: int
    largest: tuple[tuple[str, int], ...] = field(default=())


@dataclass(slots=True)
class Effect:
    """What one call of a block does: vectors over PARTS, and counts by size class."""

    net: list[int]
    at_peak: list[int]
    peak_local: int
    net_sizes: dict[int, int]
    peak_sizes: dict[int, int]


class Rounding:
    """The allocator's rules."""

    def __init__(self, allocator: Allocator) -> None:
        self.rules = allocator
        self.large_bytes = (
            allocator.large_segment_bytes // 2
        )  # an allocation of at least half a large segment gets one of its own

    def allocated(self, bytes_: int) -> int:
        """Bytes of a block handed out."""
        return _up(bytes_, self.rules.round_bytes)

    def size_class(self, bytes_: int) -> tuple[int, int]:
        """(class, amount): a large size is its own class and counts segments; the others share and count bytes."""
        size = self.allocated(bytes_)
        if size <= self.rules.small_limit_bytes:
            return SMALL, size
        return (MIDDLE, size) if size < self.large_bytes else (_up(size, self.rules.segment_round_bytes), 1)

    def passing(self, transient_bytes: int, temporary_bytes: int) -> list[tuple[int, int]]:
        """(class, amount) of what lives while one instruction runs. Temporaries of kernels are several tensors of any
        size, which fit into what the last kernel's left: they share what the largest needs."""
        found = [self.size_class(transient_bytes)] if transient_bytes else []
        return found + ([(TEMPORARY, self.allocated(temporary_bytes))] if temporary_bytes else [])

    def reserved(self, kind: int, amount: int) -> int:
        """Bytes of device memory behind the highest amount of a class."""
        if kind == SMALL:
            return _up(amount, self.rules.small_segment_bytes)
        if kind == TEMPORARY:
            return _up(amount, self.rules.segment_round_bytes)
        return _up(amount, self.rules.large_segment_bytes) if kind == MIDDLE else kind * amount


def _up(bytes_: int, step: int) -> int:
    """Rounded up to a multiple of `step` (0: not at all)."""
    return bytes_ if step == 0 else -(-bytes_ // step) * step


def on_allocator(buffer: Buffer) -> bool:
    """Whether a call's buffer comes from the device's allocator (not a view, a fixed slot or host memory)."""
    return buffer.slot is None and buffer.base is None and buffer.pool not in OFF_DEVICE


class _Ledger:
    """What is allocated: bytes by part, their sum, amounts by size class, and the highest amount of each class."""

    def __init__(self, rounding: Rounding) -> None:
        self.rounding = rounding
        self.parts = [0] * len(PARTS)
        self.total = 0
        self.sizes: dict[int, int] = {}
        self.highest: dict[int, int] = {}

    def allocate(self, buffer: Buffer) -> None:
        """Add a buffer."""
        kind, amount = self._change(buffer, 1)
        self.note(kind, amount)

    def release(self, buffer: Buffer) -> None:
        """Take a buffer away."""
        kind, amount = self._change(buffer, -1)
        self.sizes[kind] = amount

    def _change(self, buffer: Buffer, sign: int) -> tuple[int, int]:
        bytes_ = buffer.bytes
        size = self.rounding.allocated(bytes_)
        self.parts[_PART[buffer.pool]] += sign * bytes_
        self.parts[-1] += sign * (size - bytes_)
        self.total += sign * size
        kind, amount = self.rounding.size_class(bytes_)
        return kind, self.sizes.get(kind, 0) + sign * amount

    def note(self, kind: int, amount: int) -> None:
        """A class holds `amount` now."""
        self.sizes[kind] = amount
        if amount > self.highest.get(kind, 0):
            self.highest[kind] = amount


def block_effect(block: Block, unbound: frozenset[int], rounding: Rounding, workspace: Workspace = NOTHING) -> Effect:
    """Simulate one call of a block; `unbound` are in-ports with nothing behind them."""
    ledger = _Ledger(rounding)
    peak, at_peak, peak_local = -1 << 62, ledger.parts[:], 0
    born = {port.buffer for port in block.ports_in}
    absent = {block.ports_in[k].buffer for k in unbound}
    for local, instruction in enumerate(block.instructions):
        for ref in instruction.writes:
            if ref >= 0 and ref not in born and on_allocator(block.buffers[ref]):
                born.add(ref)
                ledger.allocate(block.buffers[ref])
        temporary = max(map(workspace.bytes_, instruction.body), default=0)
        transient = instruction.transient_bytes + temporary
        work = rounding.allocated(instruction.transient_bytes) + rounding.allocated(temporary)
        for kind, amount in rounding.passing(instruction.transient_bytes, temporary):
            held = ledger.sizes.get(kind, 0)
            ledger.note(kind, held + amount)
            ledger.sizes[kind] = held
        if ledger.total + work > peak:
            peak, peak_local, at_peak = ledger.total + work, local, ledger.parts[:]
            at_peak[_PART["work"]] += transient
            at_peak[-1] += work - transient
        for ref in instruction.frees:
            if ref >= 0 and ref not in absent and on_allocator(block.buffers[ref]):
                ledger.release(block.buffers[ref])
    return Effect(ledger.parts, at_peak, peak_local, ledger.sizes, ledger.highest)


def simulate_memory(stage: RankProgram, allocator: Allocator, workspace: Workspace = NOTHING) -> StageMemory:
    """The peak of a stage over a step, and what holds it."""
    rounding = Rounding(allocator)
    ledger = _Ledger(rounding)
    for buffer in stage.buffers:
        if buffer.base is None and buffer.pool not in OFF_DEVICE:
            ledger.allocate(buffer)
    resident = ledger.parts
    effects, order = _effects(stage, rounding, workspace)
    before = _before([e.net for e in effects], order)
    peaks = np.array([sum(e.at_peak) for e in effects], dtype=np.int64)[order] + before.sum(axis=1)
    top = int(peaks.argmax())
    effect, call = effects[order[top]], stage.calls[top]
    parts = [r + int(b) + p for r, b, p in zip(resident, before[top], effect.at_peak, strict=True)]
    beyond = _beyond(stage, workspace, parts[_PART["weight"]])
    parts[-1] += beyond
    instruction = stage.blocks[call.block].instructions[effect.peak_local]
    return StageMemory(
        stage=stage.stage,
        peak_allocated_bytes=sum(parts),
        peak_reserved_bytes=_reserved(effects, order, ledger.sizes, rounding) + beyond,
        resident_bytes=sum(resident),
        parts=dict(zip(PARTS, parts, strict=True)),
        where=label_of(instruction, -1 if instruction.phase == "step" else call.micro),
        host_bytes=sum(b.bytes for b in stage.buffers if b.base is None and b.pool in OFF_DEVICE),
        largest=_largest(stage),
    )


def _beyond(stage: RankProgram, workspace: Workspace, weights: int) -> int:
    """Bytes that kernels hold at their peak beyond the program: tensors kept from a forward to its backward, copies of
    logits, a second copy of the gradients of `weights` that replicas reduce."""
    held = [_kept(block, workspace) for block in stage.blocks]
    order = columns(stage.calls).block
    before = _before([[net] for net, _ in held], order)[:, 0]
    kept = int((before + np.array([peak for _, peak in held], dtype=np.int64)[order]).max())
    calls = [call for block in stage.blocks for i in block.instructions for call in i.body if call.op == "ce_max"]
    logits = workspace.logit_copies * max((math.prod(call.shape) * 4 for call in calls), default=0)
    reduces = any(i.comm is not None and i.comm.role == "dp" for block in stage.blocks for i in block.instructions)
    return kept + logits + (weights if workspace.gradient_buckets and reduces else 0)


def _kept(block: Block, workspace: Workspace) -> tuple[int, int]:
    """(bytes left, highest bytes on the way) of what kernels keep beyond the program, over one call of a block."""
    gone = {backward: many for many, backward in workspace.kept.values()}
    live = peak = 0
    for call in (call for i in block.instructions for call in i.body) if gone else ():
        many = workspace.kept.get(call.op, (0, ""))[0] - gone.get(call.op, 0)
        live += many * call.count * math.prod(call.shape) * DTYPE_BYTES[call.dtype]
        peak = max(peak, live)
    return live, peak


def _effects(stage: RankProgram, rounding: Rounding, workspace: Workspace) -> tuple[list[Effect], NDArray[np.int64]]:
    """Distinct effects, and which one each call has: calls of a block differ by their unbound in-ports."""
    calls = columns(stage.calls)
    call_of = np.repeat(np.arange(len(calls.block)), calls.counts)
    port_of = np.arange(len(call_of)) - np.repeat(np.cumsum(calls.counts) - calls.counts, calls.counts)
    unbound: dict[int, list[int]] = {}
    for where in np.flatnonzero(calls.bound < 0).tolist():
        unbound.setdefault(int(call_of[where]), []).append(int(port_of[where]))
    known: dict[tuple[int, frozenset[int]], int] = {(block, _NONE): block for block in range(len(stage.blocks))}
    order = calls.block.copy()
    for call, ports in unbound.items():
        order[call] = known.setdefault((int(order[call]), frozenset(ports)), len(known))
    used = set(np.unique(order).tolist())
    effects = [
        block_effect(stage.blocks[block], ports, rounding, workspace) if number in used else _NOTHING
        for (block, ports), number in known.items()
    ]
    return effects, order


_NONE: frozenset[int] = frozenset()
_NOTHING = Effect([0] * len(PARTS), [0] * len(PARTS), 0, {}, {})


def _before(nets: list[list[int]], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """What is allocated when each call begins: rows of calls, columns as in `nets`."""
    steps = np.array(nets, dtype=np.int64)[order]
    return np.cumsum(steps, axis=0) - steps


def _reserved(effects: list[Effect], order: NDArray[np.int64], resident: dict[int, int], rounding: Rounding) -> int:
    kinds = sorted({kind for e in effects for kind in (*e.peak_sizes, *e.net_sizes)} | set(resident))
    before = _before([[e.net_sizes.get(kind, 0) for kind in kinds] for e in effects], order)
    peaks = np.array([[e.peak_sizes.get(kind, 0) for kind in kinds] for e in effects], dtype=np.int64)[order]
    highest = (before + peaks).max(axis=0)
    return sum(
        rounding.reserved(kind, resident.get(kind, 0) + int(amount))
        for kind, amount in zip(kinds, highest, strict=True)
    )


def _largest(stage: RankProgram, count: int = 5) -> tuple[tuple[str, int], ...]:
    """The largest rank-wide buffers, for whoever wants to know what to shrink."""
    held = sorted(((b.what, b.bytes) for b in stage.buffers if b.base is None), key=lambda item: -item[1])
    return tuple(held[:count])
