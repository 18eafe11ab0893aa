"""What a rank's host issues in a step: all its calls, or those of a steady state one repetition after another.

How many repetitions are simulated is found on the way (`Repeating`): when the ends of all ranks have come again one
shift later for long enough, all ranks go on to what stands behind. A repetition is written down when the one before
begins. Every stream that repetitions use then still has an unfinished node of the one before, so nothing of the new one
can begin yet: the simulation is, event for event, the one in which all calls were there from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from program import Call, Repeated
from simulator.coarsen import Cut


class NotRepeating(Exception):
    """The steady state does not repeat within half of the step: simulate all of it."""


class Script:
    """The calls of a step and how each is cut. `stretch` numbers what was written down together, over all periods;
    `places` are the (period, repetition) of stretches that are one; `boundary` is the (call, local id) whose end closes
    the period."""

    __slots__ = ("boundary", "calls", "cuts", "gate", "paused", "places", "stretch")

    def __init__(self, calls: Sequence[Call], cuts: Sequence[Cut], boundary: tuple[int, int]) -> None:
        self.calls, self.cuts, self.boundary = calls, cuts, boundary
        self.stretch = 0
        self.gate = -1  # the stretch with whose beginning the next may be written
        self.paused = False
        self.places: dict[int, tuple[int, int]] = {}

    def start(self) -> None:
        """The next period begins."""

    def more(self) -> bool:
        """Write down what follows; False where nothing does, or not yet (`paused`)."""
        return False

    def opened(self) -> None:
        """The stretch at the gate begins."""

    def reached(self, place: tuple[int, int], time: int) -> None:
        """Compute of a repetition has ended for the first time."""


class Growing(Script):
    """A script of repeated calls: `cuts` are those of blocks, and `boundary` counts from the last call backwards."""

    __slots__ = ("_boundary", "_cuts", "_ended", "_known", "_number", "_period", "_repeated", "_repeating", "_written")

    def __init__(
        self, calls: Repeated, cuts: Sequence[Cut], boundary: tuple[int, int], repeating: Repeating, number: int
    ) -> None:
        super().__init__((), (), boundary)
        self._repeated, self._cuts, self._boundary = calls, cuts, boundary
        self._repeating, self._number = repeating, number
        self._known: dict[tuple[int, int, int], list[Call]] = {}  # what an earlier period wrote down
        self._period = -1
        self.start()

    def start(self) -> None:
        """Write down what stands before the seam."""
        self._period += 1
        self._written, self._ended = 0, False
        self.calls, self.cuts, self.boundary, self.gate = [], [], (-1, -1), -1
        self._write(0, self._repeated.seam, 0)

    def _write(self, first: int, end: int, turns: int) -> None:
        """Write down kept calls as they stand so many repetitions later."""
        assert isinstance(self.calls, list)
        assert isinstance(self.cuts, list)
        self.stretch += 1
        calls = self._known.get((first, end, turns))
        if calls is None:
            calls = [self._repeated.moved(call, turns) for call in self._repeated.kept[first:end]]
            self._known[first, end, turns] = calls
        self.calls += calls
        self.cuts += [self._cuts[call.block] for call in calls]

    def more(self) -> bool:
        """The next repetition, once the last begins; when there are enough, what stands behind them."""
        calls, place = self._repeated, (self._period, self._written)
        if self._ended:
            return False
        if self._repeating.times[self._period] == self._written:
            self._write(calls.seam, len(calls.kept), self._written)
            self.boundary = (len(self.calls) + self._boundary[0], self._boundary[1])
            self._ended = True
            return True
        if self.gate == self.stretch:
            self.paused = True
            return False
        self._write(calls.seam, calls.seam + calls.period, self._written)
        self.gate = self.stretch
        self.places[self.stretch] = place
        self._written += 1
        self._repeating.writes(self._period, self._number, self._written)
        return True

    def opened(self) -> None:
        """The last repetition begins."""
        self.gate = -1

    def reached(self, place: tuple[int, int], time: int) -> None:
        """Compute of a repetition has ended for the first time, at `time`."""
        self._repeating.reached(place[0], self._number, time)


class Repeating:
    """Finds in each period how many repetitions are simulated: `times`, None until it is known. `total` are those of
    the step, `least` are simulated in any case; `rows` is how many in a row must come again. `settled(period,
    times, every)` looks at all nodes, where those that end compute come again."""

    def __init__(self, ranks: int, periods: int, total: int, least: int) -> None:
        self.total, self.rows = total, 1
        self.settled: Callable[[int, int, int], bool] = lambda period, many, every: True
        self._least = [least] * periods
        self.times: list[int | None] = [None] * periods
        self._written = [[0] * ranks for _ in range(periods)]
        self._ends: list[list[list[int]]] = [[[] for _ in range(ranks)] for _ in range(periods)]

    def simulated(self) -> list[int]:
        """How many repetitions were simulated in each period."""
        return [times for times in self.times if times is not None]

    def writes(self, period: int, rank: int, many: int) -> None:
        """A rank has written down so many. Raises NotRepeating."""
        if 2 * many > self.total:
            raise NotRepeating
        self._written[period][rank] = many

    def reached(self, period: int, rank: int, time: int) -> None:
        """The first compute of a rank's next repetition has ended; with the last rank's, look whether all repeat."""
        ends = self._ends[period]
        ends[rank].append(time)
        many = len(ends[rank])
        if self.times[period] is not None or many < self._least[period] or min(map(len, ends)) < many:
            return
        every = self._every([of_rank[:many] for of_rank in ends])
        if every is None:
            return
        times = max(self._written[period])
        times += (self.total - times) % every
        if self.settled(period, times, every):
            self.times[period] = times
        else:
            self._least[period] = many + 1 + many // 8

    def _every(self, ends: list[list[int]]) -> int | None:
        """After how many repetitions the last ends of all ranks come again."""
        first, many = ends[0], len(ends[0])
        for every in range(1, many - self.rows + 1):
            shift = first[-1] - first[-1 - every]
            rows = range(many - 1, many - 1 - self.rows, -1)
            if all(of_rank[row] - of_rank[row - every] == shift for of_rank in ends for row in rows):
                return every
        return None
