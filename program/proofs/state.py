"""What later calls of a rank class can ask about earlier ones, and how that state repeats in a pipeline's steady state.

Positions count the instructions of a stream from 1, over the whole step; a clock says for each stream how many are
finished. When the state at call c is the state at call c - P with calls moved by P and positions moved by what each
stream advanced, and the calls ahead repeat with period P too, then everything the next period compares compares as
before: it can be skipped by moving the state once more.

Numbers that stood still while others moved (what was learned once, who last touched something idle) may stand still.
That is safe: a clock entry that stands still is at most the count of one period ago, so it already lies below every
position that moved, and a comparison with a position that stands still keeps its answer. Should standing still
understate a clock (it was about to be overtaken), the next check is stricter than needed, never laxer, and a refusal
after a skip is repeated without skipping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from program.proofs.places import Place
from program.proofs.steady_state import SteadyState
from program.proofs.uses import COMPUTE, NOTHING, Clock

Owner = tuple[int, int]  # (call, local buffer)
Point = tuple[int, int]  # (stream, position)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Last:
    """The last accesses of a storage: its last writer, the last read on each stream since, who holds it (slots), and
    the call up to which this is told (regions: see State.touched).
    """

    writer: Point | None
    reads: tuple[Point, ...]
    tenant: Owner | None = None
    told: int = -1


@dataclass(slots=True)
class State:
    """`doors`: end clocks behind out-ports that somebody waits for. `buffers`: allocator buffers that not only compute
    touches. `alive`: each call's handed-out buffers not freed yet. `places`: slots and rank-wide regions.

    Compute touches most regions in every call, and its own order makes that safe: such touches are only noted by shape
    (`touched`: last call, and compute's count before it) and told to `places` when another stream comes. An region is
    `hot` while compute is not yet ordered after what another stream did to it; only then its touches are proved one by
    one.
    """

    counts: Clock = NOTHING
    host: Clock = NOTHING
    tails: dict[int, Clock] = field(default_factory=dict)
    doors: dict[int, dict[int, Clock]] = field(default_factory=dict)
    buffers: dict[Owner, Last] = field(default_factory=dict)
    alive: dict[int, frozenset[int]] = field(default_factory=dict)
    places: dict[Place, Last] = field(default_factory=dict)
    touched: dict[int, tuple[int, int]] = field(default_factory=dict)
    hot: frozenset[Place] = frozenset()

    def copy(self) -> State:
        """A snapshot (the values are immutable)."""
        return State(
            self.counts,
            self.host,
            dict(self.tails),
            dict(self.doors),
            dict(self.buffers),
            dict(self.alive),
            dict(self.places),
            dict(self.touched),
            self.hot,
        )


class Shift:
    """Moves the state at call `call` by `times` periods of a steady state, if it is that of a period ago moved by one.

    Calls out of the steady state's reach, which no later call looks at, are left where they are.
    """

    def __init__(self, old: State, new: State, call: int, steady: SteadyState) -> None:
        self.old, self.new, self.period = old, new, steady.period
        self.floor = call - steady.reach
        self.rename: dict[Place, Place] = {a: b for a, b in steady.rename.items()}  # noqa: C416 - wider keys
        self.before: dict[Place, Place] = {b: a for a, b in steady.rename.items()}
        self.advance = tuple(map(int.__sub__, new.counts, old.counts))

    def repeats(self) -> bool:
        """Whether the last period only moved the state."""
        old, new = self.old, self.new
        return (
            old.tails.keys() == new.tails.keys()
            and {self.rename.get(p, p) for p in old.places} == new.places.keys()
            and old.touched.keys() == new.touched.keys()
            and old.hot == new.hot
            and self._clocks(old.host, new.host)
            and all(self._clocks(old.tails[s], clock) for s, clock in new.tails.items())
            and all(self._lasts(old.places[self.before.get(p, p)], last) for p, last in new.places.items())
            and all(self._touches(old.touched[s], touch) for s, touch in new.touched.items())
            and self._doors()
            and self._buffers()
            and self._recent(old.alive, -self.period) == self._recent(new.alive, 0)
            and self._ancient(old.alive, -self.period) == self._ancient(new.alive, 0)
        )

    def moved(self, times: int) -> State:
        """The state `times` periods later."""
        old, new, calls = self.old, self.new, times * self.period
        state = State(
            tuple(n + times * step for n, step in zip(new.counts, self.advance, strict=True)),
            self._clock(old.host, new.host, times),
            {s: self._clock(old.tails[s], clock, times) for s, clock in new.tails.items()},
        )
        for call, ports in new.doors.items():
            if call < self.floor:
                state.doors[call] = ports
            else:
                before = old.doors[call - self.period]
                state.doors[call + calls] = {k: self._clock(before[k], clock, times) for k, clock in ports.items()}
        for (call, ref), last in new.buffers.items():
            if call >= self.floor:
                before_last = old.buffers[call - self.period, ref]
                state.buffers[call + calls, ref] = self._last(before_last, last, times)
        state.alive = {call + calls if call >= self.floor else call: refs for call, refs in new.alive.items()}
        for place, last in new.places.items():
            there = place
            for _ in range(times % self._cycle(place)):
                there = self.rename.get(there, there)
            state.places[there] = self._last(old.places[self.before.get(place, place)], last, times)
        for shape, (call, count) in new.touched.items():
            before_call, before_count = old.touched[shape]
            state.touched[shape] = (call + times * (call - before_call), count + times * (count - before_count))
        state.hot = new.hot
        return state

    def _cycle(self, place: Place) -> int:
        """After how many periods a slot's turn comes again."""
        turns, there = 1, self.rename.get(place, place)
        while there != place:
            turns, there = turns + 1, self.rename[there]
        return turns

    # --- comparing

    def _clocks(self, old: Clock, new: Clock) -> bool:
        return all(b in (a, a + step) for a, b, step in zip(old, new, self.advance, strict=True))

    def _points(self, old: Point | None, new: Point | None) -> bool:
        if old is None or new is None:
            return old is new
        return old[0] == new[0] and new[1] in (old[1], old[1] + self.advance[old[0]])

    def _lasts(self, old: Last, new: Last) -> bool:
        return (
            self._points(old.writer, new.writer)
            and len(old.reads) == len(new.reads)
            and all(map(self._points, old.reads, new.reads))
            and (old.tenant == new.tenant or self._tenant(old.tenant, new.tenant))
            and new.told in (old.told, old.told + self.period)
        )

    def _touches(self, old: tuple[int, int], new: tuple[int, int]) -> bool:
        return new in (old, (old[0] + self.period, old[1] + self.advance[COMPUTE]))

    def _tenant(self, old: Owner | None, new: Owner | None) -> bool:
        return old is not None and new is not None and new == (old[0] + self.period, old[1])

    def _recent(self, table: Mapping[int, T], by: int) -> dict[int, T]:
        """What is within reach, numbered as now."""
        return {call - by: value for call, value in table.items() if call - by >= self.floor}

    def _ancient(self, table: Mapping[int, T], by: int) -> dict[int, T]:
        return {call: value for call, value in table.items() if call - by < self.floor}

    def _doors(self) -> bool:
        old, new = self._recent(self.old.doors, -self.period), self._recent(self.new.doors, 0)
        return old.keys() == new.keys() and all(
            old[call].keys() == ports.keys() and all(self._clocks(old[call][k], clock) for k, clock in ports.items())
            for call, ports in new.items()
        )

    def _buffers(self) -> bool:
        old = {(call + self.period, ref): last for (call, ref), last in self.old.buffers.items()}
        old = {owner: last for owner, last in old.items() if owner[0] >= self.floor}
        new = {owner: last for owner, last in self.new.buffers.items() if owner[0] >= self.floor}
        return old.keys() == new.keys() and all(self._lasts(old[owner], last) for owner, last in new.items())

    # --- moving

    def _clock(self, old: Clock, new: Clock, times: int) -> Clock:
        return tuple(b + times * (b - a) for a, b in zip(old, new, strict=True))

    def _point(self, old: Point, new: Point, times: int) -> Point:
        return new[0], new[1] + times * (new[1] - old[1])

    def _last(self, old: Last, new: Last, times: int) -> Last:
        writer = None if old.writer is None or new.writer is None else self._point(old.writer, new.writer, times)
        reads = tuple(self._point(a, b, times) for a, b in zip(old.reads, new.reads, strict=True))
        tenant = new.tenant
        if tenant is not None and tenant != old.tenant:
            tenant = (tenant[0] + times * self.period, tenant[1])
        return Last(writer, reads, tenant, new.told + times * (new.told - old.told))
