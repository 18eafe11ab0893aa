"""Coarsening: which instructions of a block are simulated as one step.

A block is cut into *segments*. A single is one instruction. A merged segment starts at a compute instruction and takes
in the instructions behind it that follow it and of which only the rank itself decides when they run: compute, and
communications whose group is in step (one symmetry class of `simulator.fold`). It ends at a communication with partners
of another symmetry class, at a host synchronisation, or at what does not follow its first instruction. Nothing outside
waits for its inside except through its outputs: the end of every stream it used, and each instruction somebody outside
names. So a merged segment is one max-plus step (host, stream, wait times) → (host, stream, output times), and
simulating it gives exactly the times of simulating its members (`simulator.merged`).

Where communication slows compute, what runs outside and beside a segment comes in as windows. Where streams slow each
other both ways, merging is exact only if nothing outside can run beside a segment's inside: its last compute
instruction follows all members, and no other work on a coupled stream may be under way (`fine_calls`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from program import Block, Instruction, RankProgram
from simulator.costs import COMPUTE_STREAM, Row
from simulator.merged import Merge
from simulator.sharing import Contention


@dataclass(slots=True)
class Segment:
    """A stretch of a block. Inputs in order: the streams' earlier ends, then `external` waits (local id, or -1 - port).

    Outputs in order: the streams' ends, then `watched` local ids. `merge` is None for a single. `roles` are those in
    which a merged segment relies on other simulated ranks being in step.
    """

    rows: tuple[Row, ...]
    streams: tuple[int, ...]
    external: tuple[int, ...]
    watched: tuple[int, ...] = ()
    issue_ps: int = 0
    merge: Merge | None = None
    roles: tuple[str, ...] = ()


@dataclass(slots=True)
class Cut:
    """A block cut into segments. `where[local id]` = (segment, output) for ids waited for from outside their segment;
    `ports` the same for the out-ports somebody waits for."""

    segments: tuple[Segment, ...]
    where: dict[int, tuple[int, int]] = field(default_factory=dict)
    ports: dict[int, tuple[int, int]] = field(default_factory=dict)


def cut(block: Block, rows: tuple[Row, ...], merge: bool, contention: Contention, ports: Collection[int]) -> Cut:
    """Cut a block; `merge` False leaves every instruction single. `ports`: the out-ports somebody waits for."""
    stretches = _stretches(rows) if merge else [[row] for row in rows]
    home = {row.local: number for number, stretch in enumerate(stretches) for row in stretch}
    watched: dict[int, None] = dict.fromkeys(block.ports_out[port].instruction for port in ports)
    for row in rows:
        watched.update((w, None) for w in row.waits if w >= 0 and home[w] != home[row.local])
    where: dict[int, tuple[int, int]] = {}
    segments = []
    for number, stretch in enumerate(stretches):
        segment = _segment(stretch, [local for local in watched if home[local] == number])
        if len(stretch) > 1:
            segment.roles = tuple(sorted({row.channel[0] for row in stretch if row.channel is not None}))
            segment.merge = Merge(segment.rows, segment.streams, segment.external, segment.watched, contention)
            if contention.active and not contention.one_way and not segment.merge.closed:
                return cut(block, rows, False, contention, ports)
        for output, local in enumerate((*_last(segment), *segment.watched)):
            where[local] = (number, output)
        segments.append(segment)
    return Cut(tuple(segments), where, {port: where[block.ports_out[port].instruction] for port in ports})


def waited_ports(program: RankProgram) -> list[set[int]]:
    """For each block the out-ports that some instruction waits for (the others only hand over buffers)."""
    waited = [{-1 - w for i in block.instructions for w in i.waits if w < 0} for block in program.blocks]
    found: list[set[int]] = [set() for _ in program.blocks]
    for call in program.calls:
        for port in waited[call.block]:
            source, output = call.bindings[port]
            if source >= 0:
                found[program.calls[source].block].add(output)
    return found


def _stretches(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that may be simulated as one: inner ones that follow the stretch's first, by stream order or by a wait."""
    stretches: list[list[Row]] = []
    streams: set[int] = set()  # of the open stretch; empty when it is closed
    inside: set[int] = set()
    for row in rows:
        if row.inner and streams and (row.stream in streams or not inside.isdisjoint(row.waits)):
            stretches[-1].append(row)
        else:
            stretches.append([row])
            streams, inside = set(), set()
            if not row.inner or row.stream != COMPUTE_STREAM:
                continue
        streams.add(row.stream)
        inside.add(row.local)
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
    """Calls whose merged segments may run beside work on a coupled stream, so they are simulated instruction by
    instruction.

    Each single on a coupled stream may run from the call it is certainly after (that of the compute instruction it
    waits for) to the call in which compute waits for it or for a later one on its stream. When nobody does, every call
    is simulated so.
    """
    if not contention.active or contention.one_way:
        return set()
    singles = _coupled_singles(program, cuts, contention)
    ends = _waited_for(program)
    after: dict[int, int] = {}
    begins = []
    for index, _, row in singles:
        after[row.stream] = max([after.get(row.stream, 0), *_known_after(program, index, row)])
        begins.append(after[row.stream])
    fine: set[int] = set()
    until: dict[int, int] = {}
    for (index, local, row), begin in zip(reversed(singles), reversed(begins), strict=True):
        stop = ends.get((index, local), until.get(row.stream))
        if stop is None:
            return set(range(len(program.calls)))
        until[row.stream] = stop
        fine.update(range(begin, stop + 1))
    return fine


def _coupled_singles(program: RankProgram, cuts: Sequence[Cut], contention: Contention) -> list[tuple[int, int, Row]]:
    """(call, local id, row) of the singles that contend with merged segments, in host order."""
    singles = {s.rows[0].stream for cut_ in cuts for s in cut_.segments if s.merge is None}
    merged = {row.stream for cut_ in cuts for s in cut_.segments if s.merge is not None for row in s.rows}
    coupled = {b for a in merged for b in singles if contention.coupled[a][b]} - {COMPUTE_STREAM}
    wanted = [[s.rows[0] for s in cut_.segments if s.merge is None and s.rows[0].stream in coupled] for cut_ in cuts]
    return [(index, row.local, row) for index, call in enumerate(program.calls) for row in wanted[call.block]]


def _known_after(program: RankProgram, index: int, row: Row) -> list[int]:
    """Calls of the compute instructions an instruction waits for."""
    found = []
    for wait in row.waits:
        source = _behind(program, index, wait)
        if source is not None and _instruction(program, *source).stream == "compute":
            found.append(source[0])
    return found


def _waited_for(program: RankProgram) -> dict[tuple[int, int], int]:
    """The first call in which compute waits for an instruction, for those some compute instruction waits for."""
    waits = [[w for i in block.instructions if i.stream == "compute" for w in i.waits] for block in program.blocks]
    found: dict[tuple[int, int], int] = {}
    for index, call in enumerate(program.calls):
        for wait in waits[call.block]:
            source = _behind(program, index, wait)
            if source is not None:
                found.setdefault(source, index)
    return found


def _behind(program: RankProgram, index: int, wait: int) -> tuple[int, int] | None:
    """(call, local id) behind a wait; None behind an unbound port."""
    if wait >= 0:
        return index, wait
    source, port = program.calls[index].bindings[-1 - wait]
    if source < 0:
        return None
    return source, program.blocks[program.calls[source].block].ports_out[port].instruction


def _instruction(program: RankProgram, call: int, local: int) -> Instruction:
    return program.blocks[program.calls[call].block].instructions[local]
