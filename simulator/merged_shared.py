"""The members of a merged segment simulated as activities of one device, on a clock of their own.

Needed where streams slow each other both ways: then no recurrence in host order gives their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.clock import FLOOR, Clock
from simulator.sharing import Activity, Device, Site

if TYPE_CHECKING:
    from simulator.merged import Merge


class SharedSimulation:
    """Simulates the members of a segment as activities of one device."""

    def __init__(self, merge: Merge, host: int, inputs: Sequence[int]) -> None:
        self.merge = merge
        self.clock = Clock()
        self.device = Device(merge.contention)
        count = len(merge.rows)
        self.starts, self.ends = [FLOOR] * count, [FLOOR] * count
        self.ready = [
            max([host + merge.issued[i], *(inputs[-1 - s] for s in merge.sources[i] if s < 0)]) for i in range(count)
        ]
        self.ready[0] = 0
        self.pending = [sum(s >= 0 for s in sources) for sources in merge.sources]
        self.followers: list[list[int]] = [[] for _ in range(count)]
        for index, sources in enumerate(merge.sources):
            for source in sources:
                if source >= 0:
                    self.followers[source].append(index)
        for index in range(count):
            if not self.pending[index]:
                self._ready(index)

    def _ready(self, index: int) -> None:
        start = self.ready[index]
        self.starts[index] = start
        if start > self.clock.now:
            self.clock.at(start, lambda _: self._begin(index))
        else:
            self._begin(index)

    def _begin(self, index: int) -> None:
        row = self.merge.rows[index]
        Activity(self.clock, (Site(self.device, row.stream),), row.work_ps, lambda: self._done(index)).begin()

    def _done(self, index: int) -> None:
        now = self.ends[index] = self.clock.now
        for follower in self.followers[index]:
            self.ready[follower] = max(self.ready[follower], now)
            self.pending[follower] -= 1
            if not self.pending[follower]:
                self._ready(follower)
