"""The predicted timeline: rows of the simulated second period, one for each instruction, in host issue order.

Merged segments are expanded again: their outcome holds the relative times of every member. Ids, labels and sequence
numbers are those of `program.expand`, the same that the trainer stamps, so predicted and measured rows join on
(rank, id). Time 0 is the first rank's end of the step before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from program import Call, RankProgram, resolve_wait
from program.timeline import Header, Timeline
from simulator.clock import PS_PER_S
from simulator.fold import SymmetryClass
from simulator.nodes import Op
from simulator.rank_simulation import RankSimulation
from simulator.segments import Merged
from simulator.simulated import Simulated

Times = tuple[int, int, int]  # issued, start, end, in picoseconds


def predicted_timeline(simulation: Simulated, ranks: Sequence[int] | None, run: Mapping[str, object]) -> Timeline:
    """Timeline of one rank of every symmetry class, or of the symmetry classes of `ranks`, each under the first
    asked-for rank of its symmetry class. `run` goes into the header."""
    chosen = [(symmetry_class, _speaker(symmetry_class, ranks)) for symmetry_class in simulation.symmetry_classes]
    origin = min(rank.marks[-2][0] if len(rank.marks) > 1 else 0 for rank in simulation.ranks)
    columns: dict[str, list[object]] = {}
    for symmetry_class, speaker in chosen:
        if speaker is not None:
            _fill(columns, speaker, simulation.ranks[symmetry_class.index], origin)
    header = Header(
        source="predicted",
        program_hash=simulation.program.hash,
        device=simulation.profile.name,
        run=dict(run),
        groups={role: tuple(g.ranks for g in groups) for role, groups in simulation.program.groups.items()},
        stands_for={speaker: symmetry_class.ranks for symmetry_class, speaker in chosen if speaker is not None},
        steps=(0,),
        step_times_s=(simulation.step_time_s,),
    )
    return Timeline.from_columns(header, columns)


def _speaker(symmetry_class: SymmetryClass, ranks: Sequence[int] | None) -> int | None:
    if ranks is None:
        return symmetry_class.rank
    return next((rank for rank in symmetry_class.ranks if rank in ranks), None)


def call_times(rank: RankSimulation, call: int) -> Iterator[Times]:
    """Times of a call's instructions in the last period, in order."""
    for node in rank.handles[call]:
        if isinstance(node, Op):
            end = node.outs[0]
            assert end is not None
            yield node.issued, node.start, end
            continue
        yield from _members(node)


def _members(node: Merged) -> Iterator[Times]:
    outcome, merge = node.outcome, node.segment.merge
    assert outcome is not None
    assert merge is not None
    first = node.first
    for issued, start, end in zip(merge.issued, outcome.starts, outcome.ends, strict=True):
        yield node.host + issued, first + start, first + end


def _fill(columns: dict[str, list[object]], speaker: int, rank: RankSimulation, origin: int) -> None:
    """Append a rank's rows to the columns."""
    program, ends = rank.program, dict[int, int]()
    counts: dict[tuple[str, str], int] = {}
    add = _Adder(columns)
    for index, call in enumerate(program.calls):
        for local, times in enumerate(call_times(rank, index)):
            ends[call.base + local] = times[2]
            ready = _ready(program, call, local, times, ends)
            add.row(
                speaker,
                program,
                call,
                local,
                counts,
                [(t - origin) / PS_PER_S for t in (times[0], ready, times[1], times[2])],
            )


def _ready(program: RankProgram, call: Call, local: int, times: Times, ends: dict[int, int]) -> int:
    """When an instruction was issued and all it waits for had ended."""
    ready = times[0]
    for wait in program.blocks[call.block].instructions[local].waits:
        source = resolve_wait(program, call, wait)
        if source >= 0:
            ready = max(ready, ends[source])
    return ready


class _Adder:
    """Column lists, filled row by row."""

    NAMES = (
        "rank",
        "id",
        "phase",
        "kind",
        "micro",
        "unit",
        "piece",
        "stream",
        "issued_s",
        "ready_s",
        "start_s",
        "end_s",
        "bytes",
        "group",
        "channel",
        "seq",
    )

    def __init__(self, columns: dict[str, list[object]]) -> None:
        self.lists = [columns.setdefault(name, []) for name in self.NAMES]

    def row(
        self,
        rank: int,
        program: RankProgram,
        call: Call,
        local: int,
        counts: dict[tuple[str, str], int],
        times: list[float],
    ) -> None:
        """One instruction."""
        i = program.blocks[call.block].instructions[local]
        comm: tuple[object, ...] = (0, "", "", -1)
        if i.comm is not None:
            key = (i.comm.role, i.comm.channel)
            counts[key] = counts.get(key, -1) + 1
            comm = (i.comm.bytes, i.comm.role, i.comm.channel, counts[key])
        micro = -1 if i.phase == "step" else call.micro  # as `expand` says
        values = (rank, call.base + local, i.phase, i.kind, micro, i.unit, i.piece, i.stream, *times, *comm)
        for column, value in zip(self.lists, values, strict=True):
            column.append(value)
