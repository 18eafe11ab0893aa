"""Merged segments in flight: many instructions as one node of the engine.

What `simulator.merged` finds for a segment is told to whoever waits for its outputs. Without contention that is final
at once. Where communication slows compute, a window may still open while the segment runs; then it is simulated again
with that window, and what was scheduled before is void (`version`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.breakdown import Trail, blame
from simulator.clock import FLOOR
from simulator.coarsen import Segment
from simulator.costs import COMPUTE_STREAM
from simulator.merged import Merge, Outcome
from simulator.nodes import Op, Source, Waiter

if TYPE_CHECKING:
    from simulator.rank_simulation import RankSimulation

_NOTHING: dict[int, tuple[int, Trail]] = {}


class Merged:
    """A merged segment in flight. `outs`: end of every stream, then the watched members'; known one by one."""

    __slots__ = (
        "before",
        "call",
        "first",
        "held",
        "host",
        "inputs",
        "outcome",
        "outs",
        "pending",
        "rank",
        "segment",
        "sources",
        "stretch",
        "version",
        "waiters",
    )

    def __init__(
        self, rank: RankSimulation, segment: Segment, call: int, host: int, sources: list[Source | None]
    ) -> None:
        assert segment.merge is not None
        self.rank = rank
        self.segment = segment
        self.call = call
        self.stretch = rank.script.stretch
        self.host = host
        self.held = rank.held
        self.sources: Sequence[Source | None] = sources
        self.waiters: list[tuple[int, Waiter]] = []
        self.outs: list[int | None] = [None] * len(segment.merge.outputs)
        self.inputs: list[int] = []
        self.first = self.version = self.pending = 0
        self.before: dict[int, tuple[int, Trail]] = _NOTHING
        self.outcome: Outcome | None = None
        for source in sources:
            if source is not None and source[0].outs[source[1]] is None:
                source[0].call_back(source[1], self)
                self.pending += 1

    def call_back(self, output: int, waiter: Waiter) -> None:
        """Notify `waiter` when an output is known."""
        self.waiters.append((output, waiter))
        if self.outcome is not None and isinstance(waiter, Op) and waiter.row.stream in self.rank.engine.urgent:
            self._tell_in_time(output)

    def notify(self) -> None:
        """A source has ended."""
        self.pending -= 1
        if not self.pending:
            self.begin()

    def begin(self) -> None:
        """All inputs are known: so is the whole segment, but for windows that may still open."""
        rank, merge = self.rank, self.segment.merge
        assert merge is not None
        if self.stretch == rank.script.gate:
            rank.opened()
        inputs = self.inputs = [FLOOR if s is None else s[0].outs[s[1]] for s in self.sources]  # type: ignore[misc]
        if not rank.engine.windowed:
            self.first, self.outcome = merge.simulate(self.host, inputs)
            outs = [self.first + out for out in self.outcome.outs]
            rank.engine.clock.at(min(outs), self._ended, outs)
            self._close(merge, self.outcome, outs[0])
            return
        rank.running = self
        rank.prune(max(inputs[index] for index in merge.entry))
        self.revise()

    def _ended(self, event: object) -> None:
        """Without windows nothing can change any more: all outputs are told at once, as values."""
        self.outs = event.value  # type: ignore[attr-defined]
        waiters, self.waiters = self.waiters, []
        for _, waiter in waiters:
            waiter.notify()

    def revise(self) -> None:
        """Simulate with the windows known now, and schedule the telling of every output that has not been told.

        When compute has ended nothing can change any more, and everything is told at once, as values. That is late
        for an output from before then, which is no harm unless a window opens late because of it (`Engine.urgent`).
        """
        merge, rank = self.segment.merge, self.rank
        assert merge is not None
        first, outcome = merge.simulate(self.host, self.inputs, rank.windows)
        if outcome is self.outcome:
            return
        self.first, self.outcome = first, outcome
        self.version += 1
        rank.until = first + outcome.outs[0]
        urgent = rank.engine.urgent
        for output in {k for k, waiter in self.waiters if isinstance(waiter, Op) and waiter.row.stream in urgent}:
            self._tell_in_time(output)
        rank.engine.clock.at(rank.until, self._computed, self.version)

    def _tell_in_time(self, output: int) -> None:
        assert self.outcome is not None
        moment = self.first + self.outcome.outs[output]
        if self.outs[output] is None and moment < self.rank.until:
            self.rank.engine.clock.at(moment, self._reached, (self.version, moment, output))

    def _reached(self, event: object) -> None:
        version, moment, output = event.value  # type: ignore[attr-defined]
        if version == self.version and self.outs[output] is None:
            self.outs[output] = moment
            waiting, self.waiters = self.waiters, []
            self.waiters = [(k, waiter) for k, waiter in waiting if k != output]
            for k, waiter in waiting:
                if k == output:
                    waiter.notify()

    def _computed(self, event: object) -> None:
        """Compute has ended: account for it and tell all outputs, those still to come as values."""
        if event.value != self.version:  # type: ignore[attr-defined]
            return
        rank, first, outcome, merge = self.rank, self.first, self.outcome, self.segment.merge
        assert outcome is not None
        assert merge is not None
        self.outs = [first + out for out in outcome.outs]
        rank.running = None
        self._close(merge, outcome, rank.until)
        if outcome.tails:
            rank.windows += [(first + begin, first + end, factor) for begin, end, factor in outcome.tails]
        waiters, self.waiters = self.waiters, []
        for _, waiter in waiters:
            waiter.notify()

    def _close(self, merge: Merge, outcome: Outcome, end: int) -> None:
        """Compute of the segment is settled: account for it."""
        rank, first, inputs = self.rank, self.first, self.inputs
        if self.segment.roles:
            rank.agree(self.segment.roles, (first, outcome))
        if first > rank.front:
            self._blame_entry(merge, first, inputs)
        account = rank.account
        for kind, time in outcome.account:
            account[kind] += time
        for index, begin, until in outcome.gaps:
            source = self.sources[index]
            blame(account, first + begin, first + until, None if source is None else source[0].trail(source[1]))
        for index in merge.others:
            if inputs[index] > rank.front:  # no gap reaches further back than the front
                source = self.sources[index]
                if source is not None and (trail := source[0].trail(source[1])) is not None:
                    self.before = {**self.before, index: (inputs[index], trail)}
        self.sources = ()
        rank.front = end
        rank.computed(self.stretch)

    def _blame_entry(self, merge: Merge, first: int, inputs: list[int]) -> None:
        latest, cause = FLOOR, None
        for index in merge.entry:
            if inputs[index] > latest:
                latest, cause = inputs[index], self.sources[index]
        if self.host + merge.issued[0] > latest or cause is None:
            blame(self.rank.account, self.rank.front, first, self.held)
        else:
            blame(self.rank.account, self.rank.front, first, cause[0].trail(cause[1]))

    def trail(self, output: int) -> Trail | None:
        """What a gap that ends with one of this segment's outputs is charged to."""
        assert self.segment.merge is not None
        assert self.outcome is not None
        member = self.segment.merge.outputs[output]
        if self.segment.rows[member].stream == COMPUTE_STREAM:
            return None
        return self._trail(self.segment.merge, self.outcome, member)

    def _trail(self, merge: Merge, outcome: Outcome, member: int) -> Trail:
        """The communications that ran one after another up to a member: inside this segment, and before it on their
        streams."""
        start, row = outcome.starts[member], self.segment.rows[member]
        before: Trail | None = None
        for source in merge.sources[member]:
            if source < 0:
                time, trail = self.before.get(-1 - source, (FLOOR, None))
                before = trail if time == self.first + start else None
            elif outcome.ends[source] == start and self.segment.rows[source].stream != COMPUTE_STREAM:
                before = self._trail(merge, outcome, source)
            if before is not None:
                break
        return self.first + start, row.work, self.first + start, row.wait, before
