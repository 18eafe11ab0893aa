"""The clock: a thin facade over SimPy, so that nothing else in the simulator knows which event engine runs it.

Time is integer picoseconds (sums of integers are exact, so equal times stay equal); seconds exist only at the edges.
SimPy orders events by (time, insertion), so equal times run first in, first out and a simulation is reproducible. There
are no processes here: everything that happens is a callback on an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

PS_PER_S = 1_000_000_000_000
FLOOR = -(1 << 62)  # "never bound": earlier than any time

Callback = Callable[[Any], None]


def picoseconds(seconds: float) -> int:
    """Seconds to whole picoseconds."""
    return round(seconds * PS_PER_S)


def seconds(time_ps: int) -> float:
    """Picoseconds to seconds."""
    return time_ps / PS_PER_S


class Clock:
    """Calls back at given times. `events` counts what was scheduled: a regression guard of the engine."""

    __slots__ = ("_env", "events")

    def __init__(self, start_ps: int = 0) -> None:
        self._env = simpy.Environment(start_ps)
        self.events = 0

    @property
    def now(self) -> int:
        """Current time in picoseconds."""
        return int(self._env.now)

    def at(self, time_ps: int, callback: Callback, value: object = None) -> None:
        """Call `callback(event)` at `time_ps` (or now, if that is past); `event.value` is `value`."""
        delay = time_ps - self._env.now
        event = self._env.timeout(delay if delay > 0 else 0, value)
        event.callbacks.append(callback)
        self.events += 1

    def run(self) -> None:
        """Run until nothing is scheduled."""
        self._env.run()
