"""The steady state of a simulation: whether its repetitions repeat in time, and what so many more of them would add.

A program whose calls repeat (`program.calls`) is simulated with few repetitions (`simulator.call_script`). Times are
whole picoseconds and follow from what a node waits for: its stream, its waits, its host, its partners and their waits,
all in a span of fewer than so many repetitions (`rows_of`). When over that many every output of every rank comes again
`every` repetitions later, one `shift` later, then moving whatever lies behind by that shift and putting the repetitions
in between satisfies each node's rule again: what it follows from lies before the last repetitions, behind the first, or
inside, and in each case a node that was simulated has the same. So the longer simulation is that, to the picosecond.
Three things need a look of their own, and where they do not hold nothing is skipped:

* what is waited for from far before the repetitions (the tail of a stream that they do not use) must come too early to
  matter, and then does so in the longer simulation too;
* a host that runs ahead of its device moves by less than the device, so nothing behind may start because it was issued;
* groups that meet must stand in the same repetition, or the span must cover the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from program import RankProgram, Repeated
from simulator.engine import Engine
from simulator.nodes import Op
from simulator.rank_simulation import RankSimulation
from simulator.segments import Merged

MARGIN = 4  # micro-batches beyond what waits and partners reach: gaps and windows follow from a few nodes in a row
Lane = tuple[str, str]  # role and channel of a communication


@dataclass(frozen=True, slots=True)
class Shift:
    """The last period of a simulation: `every` repetitions more take `time_ps` more, and add `accounts` to each
    rank's."""

    every: int
    time_ps: int
    accounts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Times:
    """What a rank did in the repetitions of a period, a row for each: ends of nodes, issue times, account so far."""

    ends: NDArray[np.int64]
    issued: NDArray[np.int64]
    account: NDArray[np.int64]


def rows_of(stages: Sequence[RankProgram], engine: Engine) -> int | None:
    """How many repetitions in a row must come again: what a node follows from spans fewer. None when that is not a
    number of repetitions.

    `stages` are the programs of the engine's ranks, their calls repeated.
    """
    waits, spreads = [_waits_reach(stage) for stage in stages], _partners_spread(stages, engine)
    known = [number for number in (*waits, *spreads) if number is not None]
    if len(known) < len(waits) + len(spreads):
        return None
    margin = Fraction(MARGIN, _repeated(stages[0]).micros)
    return ceil(max(known[: len(waits)]) + max(known[len(waits) :], default=0) + 2 * margin)


def _waits_reach(stage: RankProgram) -> Fraction | None:
    """How many repetitions back calls of one wait, and those behind the repetitions look into them."""
    calls, farthest = _repeated(stage), 0
    waited = [{-1 - w for i in block.instructions for w in i.waits if w < 0} for block in stage.blocks]
    for index, call in enumerate(calls.kept[calls.seam :], calls.seam):
        bounds = [call.bindings[port][0] for port in waited[call.block]]
        if any(0 <= bound < calls.anchor for bound in bounds):
            return None
        from_ = min(index, calls.seam + calls.period)
        farthest = max([farthest, *(from_ - bound for bound in bounds if bound >= 0)])
    return Fraction(farthest, calls.period)


def _partners_spread(stages: Sequence[RankProgram], engine: Engine) -> list[Fraction | None]:
    """How many repetitions the members of a communication are apart, for each channel at the most."""
    places = {id(stage): _communications(stage) for stage in stages}
    members: dict[int, list[tuple[int, list[Fraction]]]] = {}
    for rank, stage in zip(engine.ranks, stages, strict=True):
        before, inside = places[id(stage)]
        for name, lane in rank.lanes.items():
            members.setdefault(id(lane.channel), []).append((before[name], inside.get(name, [])))
    return [_spread(met) for met in members.values()]


def _spread(met: list[tuple[int, list[Fraction]]]) -> Fraction | None:
    """`met` are the members of a channel: how often each was there before the repetitions, and where in one."""
    most, many = max(before for before, _ in met), len(met[0][1])
    if any(len(inside) != many for _, inside in met) or (not many and any(before != most for before, _ in met)):
        return None
    spread = Fraction(0)
    for number in range(most, most + many):
        at = [(number - before) // many + inside[(number - before) % many] for before, inside in met]
        spread = max(spread, max(at) - min(at))
    return spread


def _communications(stage: RankProgram) -> tuple[Counter[Lane], dict[Lane, list[Fraction]]]:
    """Communications of each lane before the repetitions, and where in a repetition its others stand."""
    calls = _repeated(stage)
    of_block: list[list[Lane]] = [
        [(i.comm.role, i.comm.channel) for i in block.instructions if i.comm is not None] for block in stage.blocks
    ]
    before = Counter(lane for call in calls.kept[: calls.seam] for lane in of_block[call.block])
    inside: dict[Lane, list[Fraction]] = {}
    for place, call in enumerate(calls.kept[calls.seam : calls.seam + calls.period]):
        for lane in of_block[call.block]:
            inside.setdefault(lane, []).append(Fraction(place, calls.period))
    return before, inside


def _repeated(stage: RankProgram) -> Repeated:
    assert isinstance(stage.calls, Repeated)
    return stage.calls


def settled(stages: Sequence[RankProgram], engine: Engine, rows: int, period: int, times: int, every: int) -> bool:
    """Whether `times` repetitions of a period, which are under way, look as if `shift_of` will find that the last of
    them come again after `every`: those that have ended do (two at least), and no host that runs ahead is close to its
    device."""
    ended = times
    both = [(rank, _repeated(stage)) for rank, stage in zip(engine.ranks, stages, strict=True)]
    while ended > 0 and not all(_ended(_nodes(*of_rank, period, range(ended - 1, ended))) for of_rank in both):
        ended -= 1
    first = min(times - rows - every, ended - every - 2)
    if first < 0:
        return False
    of_period = [_times(*of_rank, period, range(first, ended)) for of_rank in both]
    known = [of_rank for of_rank in of_period if of_rank is not None]
    found = None if len(known) < len(both) else _period_shift(known, every, ended - first - every)
    if found is None:
        return False
    return all(
        not ahead or all(_late(node) for node in _nodes(*of_rank, period, range(first + every, ended)))
        for of_rank, ahead in zip(both, found[1], strict=True)
    )


def _ended(nodes: list[Op | Merged]) -> bool:
    return bool(nodes) and not any(None in node.outs for node in nodes)


def shift_of(stages: Sequence[RankProgram], engine: Engine, rows: int, times: Sequence[int]) -> Shift | None:
    """The shift with which the simulated repetitions of the last period come again, with the fewest repetitions
    between; None when those of some period do not, or when what lies around them would not move along. `times`: how
    many repetitions of each period were simulated."""
    shifts, begins = [], []
    for period, many in enumerate(times):
        of_period = [
            _times(rank, _repeated(stage), period, range(many))
            for rank, stage in zip(engine.ranks, stages, strict=True)
        ]
        known = [of_rank for of_rank in of_period if of_rank is not None]
        if len(known) < len(of_period):
            return None
        tried = (_period_shift(known, every, rows) for every in range(1, many - rows + 1))
        found = next((shift for shift in tried if shift is not None), None)
        if found is None:
            return None
        shifts.append(found)
        begins.append(many - rows)
    for number, (rank, stage) in enumerate(zip(engine.ranks, stages, strict=True)):
        calls = _repeated(stage)
        starts = [calls.seam + begin * calls.period for begin in begins]
        if not _moves_along(rank, calls.period, starts, [behind[number] for _, behind in shifts]):
            return None
    return shifts[-1][0]


def _nodes(rank: RankSimulation, calls: Repeated, period: int, numbers: range) -> list[Op | Merged]:
    """The nodes of repetitions of a period, which may be under way."""
    handles = rank.history[period] if period < len(rank.history) else rank.handles
    calls_ = (calls.seam + numbers.start * calls.period, calls.seam + numbers.stop * calls.period)
    return [node for call in handles[slice(*calls_)] for node in call]


def _times(rank: RankSimulation, calls: Repeated, period: int, numbers: range) -> _Times | None:
    """None when a repetition computes nothing, or has not ended."""
    ends, issued, account = [], [], []
    for number in numbers:
        nodes = _nodes(rank, calls, period, range(number, number + 1))
        ends.append([end for node in nodes for end in node.outs])
        issued.append([node.issued if isinstance(node, Op) else node.host for node in nodes])
        account.append(rank.spent.get((period, number)))
    if None in account or any(None in of for of in ends):
        return None
    return _Times(*(np.array(rows, dtype=np.int64) for rows in (ends, issued, account)))


def _period_shift(times: list[_Times], every: int, rows: int) -> tuple[Shift, list[bool]] | None:
    """The shift of a period whose last `rows` repetitions come `every` later, and which hosts move by less."""

    def moved(values: NDArray[np.int64]) -> NDArray[np.int64]:
        step: NDArray[np.int64] = (values[every:] - values[:-every])[-rows:]
        return step

    time = int(moved(times[0].ends)[0, 0])
    accounts, hosts = [], []
    for of_rank in times:
        ends, issued, account = moved(of_rank.ends), moved(of_rank.issued), moved(of_rank.account)
        if (ends != time).any() or (issued != issued[0, 0]).any() or (account != account[0]).any():
            return None
        hosts.append(int(issued[0, 0]))
        accounts.append(tuple(account[0].tolist()))
    if max(hosts) > time:
        return None
    return Shift(every, time, tuple(accounts)), [host < time for host in hosts]


def _moves_along(rank: RankSimulation, many: int, begins: list[int], behind: list[bool]) -> bool:
    """Whether everything from the call of each period at which its last repetitions begin moves with the device:
    nothing starts because it was issued while the host moves by less (until the host waits for the device), and the
    tail of a stream that the `many` calls of a repetition do not use is over. `behind`: in which periods the host moves
    by less."""
    first = rank.history[0][begins[0] : begins[0] + many]
    used = {s for nodes in first for node in nodes for s in _streams(node)}
    others: dict[int, list[tuple[int, int]]] = {}  # of a row or a segment: outputs on streams that are not used
    tails: dict[int, int] = {}
    old: set[int] = set()
    ahead = False
    for period, handles in enumerate(rank.history):
        for call, nodes in enumerate(handles):
            if call == begins[period]:
                ahead = ahead or behind[period]
                old = set(tails)
            for node in nodes:
                what = id(node.row if isinstance(node, Op) else node.segment)
                if what not in others:
                    others[what] = [(k, stream) for k, stream in enumerate(_streams(node)) if stream not in used]
                for output, stream in others[what]:
                    start = node.start if isinstance(node, Op) else node.first
                    if stream in old and tails[stream] >= start:
                        return False
                    old.discard(stream)
                    tails[stream] = node.outs[output] or 0
                if ahead:
                    if not _late(node):
                        return False
                    ahead = not (isinstance(node, Op) and node.row.sync)
    return True


def _streams(node: Op | Merged) -> tuple[int, ...]:
    return (node.row.stream,) if isinstance(node, Op) else node.segment.streams


def _late(node: Op | Merged) -> bool:
    """Whether a node was issued early enough that it would run the same had it been issued earlier."""
    if isinstance(node, Op):
        return node.issued < node.start
    merge = node.segment.merge
    assert merge is not None
    lead = node.first - node.host
    if lead <= merge.issued[0]:
        return False
    return lead >= merge.issued[-1] or (node.outcome is merge.reference and -lead <= merge.host_slack)
