"""Coarsening: which instructions of a block are flown as one step.

A block is cut into *segments*. A single is one instruction. A merged segment starts at a compute instruction and takes in
the instructions behind it as long as only the rank itself decides when they run: compute, and communications whose
group is one colour. It ends at a communication with partners of another colour or at a host synchronisation. Nothing
outside waits for its inside except through its outputs: the end of every stream it used, and each instruction somebody
outside names. So a merged segment is one max-plus step (host, stream, wait times) → (host, stream, output times), and
flying it gives exactly the times of flying its members (`simulator.merged`).

Where streams of a device slow each other, merging is exact only if nothing outside can run beside a segment's
inside: all members follow its first compute instruction, its last compute instruction follows all of them, and
no other work on a coupled stream may be under way (`fine_calls`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plan.program import Block, RankProgram
from simulator.clock import FLOOR
from simulator.costs import COMPUTE_STREAM, Row
from simulator.merged import Merge
from simulator.sharing import Contention


@dataclass(slots=True)
class Segment:
    """A stretch of a block. Inputs in order: the streams' earlier ends, then `external` waits (local id, or -1 - port).

    Outputs in order: the streams' ends, then `watched` local ids. `merge` is None for a single.
    """

    rows: tuple[Row, ...]
    streams: tuple[int, ...]
    external: tuple[int, ...]
    watched: tuple[int, ...] = ()
    issue_ps: int = 0
    merge: Merge | None = None


@dataclass(slots=True)
class Cut:
    """A block cut into segments. `where[local id]` = (segment, output) for ids waited for from outside their segment;
    `ports` the same for out-ports."""

    segments: tuple[Segment, ...]
    where: dict[int, tuple[int, int]] = field(default_factory=dict)
    ports: tuple[tuple[int, int], ...] = ()


def cut(block: Block, rows: tuple[Row, ...], merge: bool, contention: Contention) -> Cut:
    """Cut a block; `merge` False leaves every instruction single."""
    stretches = _stretches(rows) if merge else [[row] for row in rows]
    home = {row.local: number for number, stretch in enumerate(stretches) for row in stretch}
    watched: dict[int, None] = dict.fromkeys(port.instruction for port in block.ports_out)
    for row in rows:
        watched.update((w, None) for w in row.waits if w >= 0 and home[w] != home[row.local])
    where: dict[int, tuple[int, int]] = {}
    segments = []
    for number, stretch in enumerate(stretches):
        segment = _segment(stretch, [local for local in watched if home[local] == number])
        if len(stretch) > 1:
            segment.merge = Merge(segment.rows, segment.streams, segment.external, segment.watched, contention)
            if contention.active and not segment.merge.closed:
                return cut(block, rows, False, contention)
        for output, local in enumerate((*_last(segment), *segment.watched)):
            where[local] = (number, output)
        segments.append(segment)
    return Cut(tuple(segments), where, tuple(where[port.instruction] for port in block.ports_out))


def _stretches(rows: Sequence[Row]) -> list[list[Row]]:
    stretches: list[list[Row]] = []
    open_ = False
    for row in rows:
        inner = row.channel is None and not row.sync
        if open_ and inner:
            stretches[-1].append(row)
        else:
            stretches.append([row])
            open_ = inner and row.stream == COMPUTE_STREAM
    return stretches


def _segment(stretch: list[Row], watched: list[int]) -> Segment:
    inside = {row.local for row in stretch}
    external: dict[int, None] = {}
    for row in stretch:
        external.update((w, None) for w in row.waits if w not in inside)
    segment = Segment(tuple(stretch), tuple(dict.fromkeys(row.stream for row in stretch)), tuple(external))
    ends = set(_last(segment))
    segment.watched = tuple(local for local in watched if local not in ends)
    segment.issue_ps = sum(row.issue_ps for row in stretch)
    return segment


def _last(segment: Segment) -> list[int]:
    """The last instruction of each stream of a segment."""
    last = {row.stream: row.local for row in segment.rows}
    return [last[stream] for stream in segment.streams]


def fine_calls(program: RankProgram, cuts: Sequence[Cut], contention: Contention) -> set[int]:
    """Calls whose merged segments may run beside work on a coupled stream, and so must be flown instruction by instruction.

    For each single on a coupled stream: from the call it is certainly after (the compute instruction it waits for) to the call
    that waits for it (or for the host synchronisation it is waited for by); every call from there on when nobody does.
    """
    if not contention.active:
        return set()
    singles = _coupled_singles(program, cuts, contention)
    ends = _waited_for(program)
    after: dict[int, int] = {}
    fine: set[int] = set()
    for index, local, row in singles:
        begun = max([after.get(row.stream, 0), *_known_after(program, index, row)])
        after[row.stream] = begun
        stop = ends.get((index, local))
        if stop is None:
            return set(range(len(program.calls)))
        fine.update(range(begun, stop + 1))
    return fine


def _coupled_singles(program: RankProgram, cuts: Sequence[Cut], contention: Contention) -> list[tuple[int, int, Row]]:
    merged = {
        row.stream for call in program.calls for s in cuts[call.block].segments if s.merge is not None for row in s.rows
    }  # fmt: skip
    coupled = {b for a in merged for b, touches in enumerate(contention.coupled[a]) if touches}
    return [
        (index, segment.rows[0].local, segment.rows[0])
        for index, call in enumerate(program.calls)
        for segment in cuts[call.block].segments
        if segment.merge is None and segment.rows[0].stream in coupled and segment.rows[0].stream != COMPUTE_STREAM
    ]


def _known_after(program: RankProgram, index: int, row: Row) -> list[int]:
    """Calls of the compute instructions an instruction waits for."""
    call = program.calls[index]
    found = [0]
    for wait in row.waits:
        source, local = index, wait
        if wait < 0:
            source, port = call.bindings[-1 - wait]
            if source < 0:
                continue
            local = program.blocks[program.calls[source].block].ports_out[port].instruction
        if program.blocks[program.calls[source].block].instructions[local].stream == "compute":
            found.append(source)
    return found


def _waited_for(program: RankProgram) -> dict[tuple[int, int], int]:
    """The first call in which a compute instruction waits for an instruction, for those some compute instruction waits for."""
    found: dict[tuple[int, int], int] = {}
    for index, call in enumerate(program.calls):
        for instruction in program.blocks[call.block].instructions:
            if instruction.stream != "compute":
                continue
            for wait in instruction.waits:
                source, local = index, wait
                if wait < 0:
                    source, port = call.bindings[-1 - wait]
                    if source < 0:
                        continue
                    local = program.blocks[program.calls[source].block].ports_out[port].instruction
                found.setdefault((source, local), index)
    return found


__all__ = ["FLOOR", "Cut", "Segment", "cut", "fine_calls"]
