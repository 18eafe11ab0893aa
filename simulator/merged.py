"""A merged segment: many instructions simulated as one max-plus step.

Its times depend on when the host reaches it, when its streams were free and when what it waits for ended. All of that
is taken relative to the start of its first instruction, which is the latest of that instruction's own inputs.

1. *Translation.* If every other input comes no later than it would be needed when nothing but the first instruction
holds the segment back, it runs exactly like that reference, shifted. Two or three comparisons decide it.
2. *Recurrence.* Otherwise each member starts at the latest of its issue, its stream and its waits. Results are kept by
   relative input, and a steady pipeline asks for the same few again and again.

Where communication slows compute, the recurrence also asks which communications run beside each compute member, inside
and outside the segment. Where streams slow each other both ways, the members are simulated as activities on a clock of
their own (`simulator.sharing`). The arithmetic is the same as for single instructions, so times are equal to the
picosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.breakdown import HOST
from simulator.clock import FLOOR
from simulator.costs import COMPUTE_STREAM, Row
from simulator.merged_shared import SharedSimulation
from simulator.sharing import Contention, Window, slowed_end


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times of a segment relative to the start of its first member, in picoseconds. `account` is (class, time) of
    compute and of the gaps inside; `gaps` are (input, from, to) charged to whoever stands behind that input; `tails`
    are windows that outlast it."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    outs: tuple[int, ...]
    account: tuple[tuple[int, int], ...]
    gaps: tuple[tuple[int, int, int], ...]
    tails: tuple[Window, ...]


class Merge:
    """The members of a segment with their sources resolved to members (>= 0) and inputs (-1 - input)."""

    __slots__ = (
        "closed",
        "contention",
        "entry",
        "host_slack",
        "issued",
        "memo",
        "order",
        "others",
        "outputs",
        "reference",
        "rows",
        "slack",
        "sources",
        "width",
    )

    def __init__(
        self,
        rows: tuple[Row, ...],
        streams: tuple[int, ...],
        external: tuple[int, ...],
        watched: tuple[int, ...],
        contention: Contention,
    ) -> None:
        self.rows = rows
        self.contention = contention
        self.width = len(streams) + len(external)
        self.sources = _sources(rows, streams, external)
        self.issued = _running_sum([row.issue_ps for row in rows])
        self.entry = tuple(-1 - source for source in self.sources[0])
        place = {row.local: index for index, row in enumerate(rows)}
        ends = {row.stream: index for index, row in enumerate(rows)}
        self.outputs = (*(ends[stream] for stream in streams), *(place[local] for local in watched))
        self.others = tuple(index for index, stream in enumerate(streams) if stream != COMPUTE_STREAM)
        self.memo: dict[tuple[tuple[int, ...], tuple[Window, ...]], Outcome] = {}
        self.order = _communications_first(rows, self.sources) if contention.one_way else []
        self.host_slack = 0
        self.slack = [-FLOOR] * self.width
        self.closed = self._closed()
        self.reference = self._reference()

    def _closed(self) -> bool:
        """Whether the last compute member follows all others: then nothing of a neighbour runs beside them."""
        tail = max(index for index, row in enumerate(self.rows) if row.stream == COMPUTE_STREAM)
        followed = [False] * len(self.rows)
        followed[tail] = True
        for index in range(tail, -1, -1):
            if followed[index]:
                for source in self.sources[index]:
                    if source >= 0:
                        followed[source] = True
        return all(followed)

    def _reference(self) -> Outcome:
        """The simulation in which only the first member is held back (it starts at 0), and the slack of every input
        against it."""
        nothing = [FLOOR] * self.width
        starts, ends = self._times(FLOOR, nothing)
        assert min(starts) == 0, "every member of a segment follows its first"
        self.host_slack = min(starts[index] - self.issued[index] for index in range(1, len(self.rows)))
        for index, sources in enumerate(self.sources):
            for source in sources:
                if source < 0:
                    self.slack[-1 - source] = min(self.slack[-1 - source], starts[index])
        return self._outcome(FLOOR, nothing, starts, ends)

    def simulate(self, host: int, inputs: Sequence[int], windows: Sequence[Window] = ()) -> tuple[int, Outcome]:
        """(start of the first member, outcome) for a host that reaches the segment at `host`, inputs in order, and
        windows in which communications outside slow compute."""
        first = host + self.issued[0]
        for index in self.entry:
            if inputs[index] > first:
                first = inputs[index]
        if host - first <= self.host_slack and not windows:
            for time, slack in zip(inputs, self.slack, strict=True):
                if time - first > slack:
                    break
            else:
                return first, self.reference
        return first, self._held_back(first, host, inputs, windows)

    def _held_back(self, first: int, host: int, inputs: Sequence[int], windows: Sequence[Window]) -> Outcome:
        apart = [host - first, *(FLOOR if time == FLOOR else time - first for time in inputs)]
        key = tuple(map(max, apart, self._floors()))
        around = tuple(sorted((max(0, begin - first), end - first, f) for begin, end, f in windows if end > first))
        known = self.memo.get((key, around))
        if known is None:
            starts, ends = self._times(key[0], key[1:], around)
            known = self.memo[key, around] = self._outcome(key[0], key[1:], starts, ends)
        return known

    def _floors(self) -> tuple[int, ...]:
        """What an input may be raised to without changing anything: just below its slack (at it, it would tie with what
        a member really waits for); with contention (where later is not always later), only the first member's start,
        before which no member runs."""
        if self.contention.active:
            return (-self.issued[-1], *(0 for _ in range(self.width)))
        return self.host_slack, *(slack - 1 for slack in self.slack)

    def _times(self, host: int, inputs: Sequence[int], windows: Sequence[Window] = ()) -> tuple[list[int], list[int]]:
        if self.contention.one_way:
            return self._slowed(host, inputs, windows)
        return self._shared(host, inputs) if self.contention.active else self._recurrence(host, inputs)

    def _slowed(self, host: int, inputs: Sequence[int], windows: Sequence[Window]) -> tuple[list[int], list[int]]:
        """Starts and ends when communications, outside and inside, slow compute and nothing slows them."""
        starts, ends = [0] * len(self.rows), [0] * len(self.rows)
        around = list(windows)
        for index in self.order:
            time = host + self.issued[index] if index else 0
            for source in self.sources[index] if index else ():
                bound = ends[source] if source >= 0 else inputs[-1 - source]
                if bound > time:
                    time = bound
            row = self.rows[index]
            starts[index] = time
            if row.stream == COMPUTE_STREAM:
                around = [window for window in around if window[1] > time]
                ends[index] = slowed_end(time, row.work_ps, around)
                continue
            ends[index] = time + row.work_ps
            factor = self.contention.compute[row.stream]
            if factor != 1.0 and row.work_ps:
                around.append((time, ends[index], factor))
        return starts, ends

    def _recurrence(self, host: int, inputs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Starts and ends when nothing slows anything; the first member starts at 0 by definition."""
        starts, ends = [0], [self.rows[0].work_ps]
        for index in range(1, len(self.rows)):
            time = host + self.issued[index]
            for source in self.sources[index]:
                bound = ends[source] if source >= 0 else inputs[-1 - source]
                if bound > time:
                    time = bound
            starts.append(time)
            ends.append(time + self.rows[index].work_ps)
        return starts, ends

    def _shared(self, host: int, inputs: Sequence[int]) -> tuple[list[int], list[int]]:
        """The same with contention, on a clock of its own that starts with the first member."""
        simulation = SharedSimulation(self, host, inputs)
        simulation.clock.run()
        return simulation.starts, simulation.ends

    def _outcome(self, host: int, inputs: Sequence[int], starts: list[int], ends: list[int]) -> Outcome:
        account: dict[int, int] = {}
        gaps: list[tuple[int, int, int]] = []
        front = 0
        for index, row in enumerate(self.rows):
            if row.stream != COMPUTE_STREAM:
                continue
            if starts[index] > front and index:
                self._charge(account, gaps, front, (host, inputs, starts, ends), index)
            account[row.work] = account.get(row.work, 0) + ends[index] - starts[index]
            front = ends[index]
        outs = tuple(ends[index] for index in self.outputs)
        return Outcome(
            tuple(starts), tuple(ends), outs, tuple(account.items()), tuple(gaps), self._tails(starts, ends, front)
        )

    def _tails(self, starts: list[int], ends: list[int], front: int) -> tuple[Window, ...]:
        """Windows of communications that outlast the segment's compute."""
        if not self.contention.one_way:
            return ()
        factors = self.contention.compute
        rows = zip(self.rows, starts, ends, strict=True)
        return tuple(
            (s, e, factors[row.stream]) for row, s, e in rows if e > max(front, s) and factors[row.stream] != 1.0
        )

    def _charge(
        self,
        account: dict[int, int],
        gaps: list[tuple[int, int, int]],
        begin: int,
        simulation: tuple[int, Sequence[int], list[int], list[int]],
        index: int,
    ) -> None:
        """Charge the idle time before a compute member to the communications it waited for, and to what they waited
        for."""
        host, inputs, starts, ends = simulation
        end = starts[index]
        while end > begin:
            cause = self._cause(host, inputs, ends, index)
            if cause is None:
                account[HOST] = account.get(HOST, 0) + end - begin
                return
            if cause < 0:
                gaps.append((-1 - cause, begin, end))
                return
            cut = max(begin, starts[cause])
            kind = self.rows[cause].work
            account[kind] = account.get(kind, 0) + end - cut
            index, end = cause, cut

    def _cause(self, host: int, inputs: Sequence[int], ends: list[int], index: int) -> int | None:
        """The source a member waited for last; None: the host."""
        latest, cause = FLOOR, None
        for source in self.sources[index]:
            bound = ends[source] if source >= 0 else inputs[-1 - source]
            if bound > latest:
                latest, cause = bound, source
        return None if host + self.issued[index] > latest else cause


def _sources(rows: tuple[Row, ...], streams: tuple[int, ...], external: tuple[int, ...]) -> list[tuple[int, ...]]:
    """For each member: the one before it on its stream, then its waits; members >= 0, inputs -1 - input."""
    place = {row.local: index for index, row in enumerate(rows)}
    entry = {ref: len(streams) + index for index, ref in enumerate(external)}
    tail = {stream: -1 - index for index, stream in enumerate(streams)}
    found = []
    for index, row in enumerate(rows):
        waits = [place[w] if w in place else -1 - entry[w] for w in row.waits]
        found.append((tail[row.stream], *waits))
        tail[row.stream] = index
    return found


def _communications_first(rows: tuple[Row, ...], sources: list[tuple[int, ...]]) -> list[int]:
    """Members in an order in which each communication comes as soon as its sources have come: whatever may run beside a
    compute member is then timed before it."""
    pending = [sum(source >= 0 for source in of_row) for of_row in sources]
    followers: list[list[int]] = [[] for _ in rows]
    for index, of_row in enumerate(sources):
        for source in of_row:
            if source >= 0:
                followers[source].append(index)
    order: list[int] = []
    computes, others = [0], list[int]()
    while others or computes:
        index = others.pop() if others else computes.pop()
        order.append(index)
        for follower in followers[index]:
            pending[follower] -= 1
            if not pending[follower]:
                (computes if rows[follower].stream == COMPUTE_STREAM else others).append(follower)
    return order


def _running_sum(values: list[int]) -> tuple[int, ...]:
    total, sums = 0, []
    for value in values:
        total += value
        sums.append(total)
    return tuple(sums)
