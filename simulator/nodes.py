"""Instructions in flight: an `Op` begins when its sources have ended, meets its partners, and ends.

A *source* is (node, output): the node before on the same stream, or one that is waited for. A node whose sources have
all ended begins at the latest of their ends and its own issue. A communication with other symmetry classes then arrives
on its `Channel`; when the last member has arrived, all of them move together (`launch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from simulator.breakdown import HOST, Trail, blame
from simulator.clock import FLOOR
from simulator.costs import COMPUTE_STREAM, Row
from simulator.sharing import Activity, slowed_end

if TYPE_CHECKING:
    from simulator.rank_simulation import RankSimulation
    from simulator.segments import Merged


class Waiter(Protocol):
    """Whoever wants to hear that an output is known."""

    def notify(self) -> None:
        """It is."""


Source = tuple["Op | Merged", int]


class Channel:
    """One communicator's channel: members of `expected` symmetry classes meet in the order in which each issues on
    it."""

    __slots__ = ("expected", "open")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.open: dict[int, list[Op]] = {}

    def arrive(self, op: Op) -> None:
        """An op is ready (at `op.start`); when it is the last of its meeting, all of them move together."""
        waiting = self.open.get(op.seq)
        if waiting is None:
            self.open[op.seq] = [op]
            return
        waiting.append(op)
        if len(waiting) == self.expected:
            del self.open[op.seq]
            launch(waiting, max([member.start for member in waiting]))


class NotInStep(Exception):
    """Ranks that were taken to be in step are not: simulate without merged segments."""


class InStepCheck:
    """Simulated ranks taken to be in step: each says when it simulated its n-th common segment and how, and all must
    agree."""

    __slots__ = ("expected", "open")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.open: dict[int, list[object]] = {}

    def agree(self, number: int, simulated: tuple[int, object]) -> None:
        """A rank reports (start, outcome) of its segment `number`. Raises NotInStep."""
        reports = self.open.setdefault(number, [])
        if reports and reports[0] != simulated:
            raise NotInStep
        reports.append(simulated)
        if len(reports) == self.expected:
            del self.open[number]


def launch(members: list[Op], last: int) -> None:
    """All members of a communication (or the only one) move together from `last` on: schedule their end, or where work
    shares a device an activity."""
    work, engine = 0, members[0].rank.engine
    for member in members:
        member.last = last
        if member.row.work_ps > work:
            work = member.row.work_ps
    if not engine.shared:
        end = last + work
        if engine.windowed and work:
            for member in members:
                member.rank.open_window(member.row.stream, last, end)
        engine.clock.at(end, _ended, (members, end))
    elif last > engine.clock.now:
        engine.clock.at(last, lambda _: _begin_activity(members, work))
    else:
        _begin_activity(members, work)


def _begin_activity(members: list[Op], work: int) -> None:
    clock = members[0].rank.engine.clock
    sites = tuple(member.rank.site(member.row) for member in members)
    Activity(clock, sites, work, lambda: _finish(members, clock.now)).begin()


def _ended(event: object) -> None:
    _finish(*event.value)  # type: ignore[attr-defined]


def _finish(members: list[Op], end: int) -> None:
    for member in members:
        member.finish(end)


class Op:
    """One instruction in flight. `start`: own start; `last`: the last member's; `outs` is set when it has ended."""

    __slots__ = (
        "before",
        "call",
        "channel",
        "closes",
        "held",
        "issued",
        "last",
        "outs",
        "pending",
        "rank",
        "row",
        "seq",
        "sources",
        "start",
        "stretch",
        "version",
        "waiters",
    )

    def __init__(self, rank: RankSimulation, row: Row, call: int, issued: int, sources: list[Source]) -> None:
        self.rank = rank
        self.row = row
        self.call = call
        self.stretch = rank.script.stretch
        self.issued = issued
        self.sources: Sequence[Source] = sources
        self.waiters: list[Waiter] | None = None
        self.outs: list[int | None] = [None]
        self.pending = 0
        self.channel: Channel | None = None
        self.seq = -1
        self.start = self.last = FLOOR
        self.version = 0
        self.before: Trail | None = None
        self.held = rank.held
        self.closes = False  # the period
        for node, k in sources:
            if node.outs[k] is None:
                node.call_back(k, self)
                self.pending += 1

    def call_back(self, _: int, waiter: Waiter) -> None:
        """Notify `waiter` at the end."""
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)

    def notify(self) -> None:
        """A source has ended."""
        self.pending -= 1
        if not self.pending:
            self.begin()

    def begin(self) -> None:
        """All sources have ended: take the latest, and move (or wait for partners)."""
        if self.stretch == self.rank.script.gate:
            self.rank.opened()
        latest, cause, output = FLOOR, None, 0
        for node, k in self.sources:
            time = node.outs[k]
            if time > latest:  # type: ignore[operator]
                latest, cause, output = time, node, k  # type: ignore[assignment]
        self.sources = ()
        if self.issued > latest:
            latest, cause = self.issued, None
        self.start = latest
        blamed = self.held if cause is None else cause.trail(output)
        if self.row.stream == COMPUTE_STREAM:
            rank = self.rank
            if latest > rank.front:
                blame(rank.account, rank.front, latest, blamed)
            if rank.engine.wake_ps and cause is not None and blamed is not None and latest > self.issued:
                self.start = latest = latest + rank.engine.wake_ps
                rank.account[HOST] += rank.engine.wake_ps
        elif latest > self.rank.front:  # no gap reaches further back than the front
            self.before = blamed
        if self.channel is not None:
            self.channel.arrive(self)
        elif self.rank.engine.shared or self.row.stream != COMPUTE_STREAM:
            launch([self], latest)
        else:
            self.last = latest
            self.rank.running = self
            self.rank.prune(latest)
            self.revise()

    def revise(self) -> None:
        """Find the end of compute among the windows known now, and schedule it."""
        end = slowed_end(self.start, self.row.work_ps, self.rank.windows)
        self.version += 1
        self.rank.until = end
        self.rank.engine.clock.at(end, self._ended, (self.version, end))

    def _ended(self, event: object) -> None:
        version, end = event.value  # type: ignore[attr-defined]
        if version == self.version:
            self.finish(end)

    def finish(self, end: int) -> None:
        """The end: account for it and tell whoever waits."""
        self.outs[0] = end
        if self.row.stream == COMPUTE_STREAM:
            rank = self.rank
            rank.account[self.row.work] += end - self.start
            rank.front = end
            rank.running = None
            rank.computed(self.stretch)
            if self.closes:
                rank.mark(end)
        waiters = self.waiters
        if waiters is not None:
            self.waiters = None
            for waiter in waiters:
                waiter.notify()

    def trail(self, _: int) -> Trail | None:
        """What a gap that ends with this instruction's end is charged to."""
        row = self.row
        return None if row.stream == COMPUTE_STREAM else (self.last, row.work, self.start, row.wait, self.before)
