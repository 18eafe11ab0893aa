"""How one block uses one storage: which accesses, in which order, and what is left for other blocks to respect.

`summarise` proves the accesses ordered among themselves by the block's symbolic clocks (`Order`, see
`program.proofs.blocks`) and keeps the first ones, which something outside must precede, and the last ones, which
something outside must follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from program import STREAMS
from program.proofs.error import Proof

STREAM: dict[str, int] = {stream: index for index, stream in enumerate(STREAMS)}
COMPUTE = STREAM["compute"]
NOTHING = (0,) * len(STREAMS)
Clock = tuple[int, ...]  # for each stream, how many of its instructions are finished
Ends = tuple[tuple[int, int], ...]  # (stream, local id)


class Broken(Exception):
    """A proof that fails inside a block: proof, reason, local ids of the instructions. Calls give them names."""

    def __init__(self, proof: Proof, reason: str, locals_: tuple[int, ...]) -> None:
        super().__init__(proof, reason, locals_)
        self.proof, self.reason, self.locals = proof, reason, locals_


@dataclass(frozen=True, slots=True)
class Order:
    """For every instruction: its stream, its place on it (from 1), and its symbolic start clock."""

    streams: Sequence[int]
    position: Sequence[int]
    local: Sequence[Clock]
    entry: Sequence[int]
    ports: Sequence[int]

    def before(self, a: int, b: int) -> bool:
        """Whether instruction a is finished when b starts."""
        return self.local[b][self.streams[a]] >= self.position[a]


@dataclass(frozen=True, slots=True)
class Access:
    """One touch of a storage by an instruction. `tenant`: the local buffer that names a slot here, -1 for what a port
    brings.
    """

    local: int
    read: bool
    write: bool
    tenant: int


Touched = dict[int, list[Access]]


@dataclass(frozen=True, slots=True)
class Use:
    """How a block uses one storage. Ids are local; -1 means none.

    `first_reads`: the first read on each stream before any write here. `last_reads`: the last read on each stream
    after the last write. `tenant`: who holds a slot at the end. `solo`: compute alone touches it.
    """

    accesses: tuple[Access, ...]
    first_reads: tuple[int, ...]
    first_write: int
    last_write: int
    last_reads: Ends
    free: int
    tenant: int
    solo: bool


def summarise(
    order: Order, accesses: Sequence[Access], what: str, free: int = -1, fresh: bool = False, tenanted: bool = False
) -> Use:
    """Prove the accesses of one storage ordered among themselves and before `free`; what is left concerns other blocks.

    `fresh`: the storage is born here, from the allocator. `tenanted`: it is a slot, whose tenants write before they
    read.
    """
    if fresh:
        _check_birth(order, accesses[0], what)
    writer, first_write, tenant = -1, -1, -1
    readers: dict[int, int] = {}
    first_reads: dict[int, int] = {}
    for access in accesses:
        index, stream = access.local, order.streams[access.local]
        if tenanted and access.read and access.tenant != tenant:
            raise Broken("race", f"{what} is read by a tenant that did not write it", _pair(writer, index))
        if writer not in (-1, index) and not order.before(writer, index):
            raise Broken("race", f"{what} is written, then used, and nothing orders the two", (writer, index))
        if access.write:
            late = next((r for r in readers.values() if r != index and not order.before(r, index)), None)
            if late is not None:
                raise Broken("race", f"{what} is overwritten while it may still be read", (late, index))
            first_write = index if first_write < 0 else first_write
            writer, tenant, readers = index, access.tenant, {}
        else:
            readers[stream] = index
            if first_write < 0:
                first_reads.setdefault(stream, index)
    late = next((a.local for a in accesses if free >= 0 and a.local != free and not order.before(a.local, free)), None)
    if late is not None:
        raise Broken("memory", f"{what} is freed while it may still be used", (late, free))
    solo = all(order.streams[a.local] == COMPUTE for a in accesses)
    ends = tuple(sorted(readers.items()))
    return Use(tuple(accesses), tuple(first_reads.values()), first_write, writer, ends, free, tenant, solo)


def _check_birth(order: Order, first: Access, what: str) -> None:
    if first.read:
        raise Broken("race", f"{what} is read before anything was written to it", (first.local,))
    if order.streams[first.local] != COMPUTE:
        stream = STREAMS[order.streams[first.local]]
        reason = f"{what} is first written by stream {stream}: only compute may allocate, others need a slot"
        raise Broken("memory", reason, (first.local,))


def _pair(a: int, b: int) -> tuple[int, ...]:
    return (b,) if a < 0 else (a, b)
