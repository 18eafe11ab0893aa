"""Where the seconds from the command to step 0 go, phase by phase: shown on a terminal meanwhile, a line of log.txt
after.

    start = StartUp(shows=True)
    start.phase("weights"); …; start.part(12, 300); …
    start.done()        # "17.2 s from the command to step 0: launcher 5.1, imports 4.0, …, weights 3.0"
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

STARTED_FIELD = 19  # of /proc/PID/stat after the name: clock ticks from boot to the process's start
LONGEST_S = 86400.0  # an age beyond it is a clock that cannot be trusted


class StartUp:
    """The phases of one rank. The first two happened before: what the command's own process did until it started this
    one, and this one's imports."""

    def __init__(self, shows: bool) -> None:
        self.shows = shows and sys.stderr.isatty()
        mine, command = age_s(os.getpid()), age_s(os.getppid())
        self._seconds: dict[str, float] = {"launcher": max(command - mine, 0.0), "imports": mine}
        self._name, self._began, self._shown = "", time.perf_counter(), -1

    def phase(self, name: str) -> None:
        """One phase ends and the next begins. A name that comes back adds to its seconds."""
        now = time.perf_counter()
        if self._name:
            self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now - self._began
        self._name, self._began, self._shown = name, now, -1
        self._show(name)

    def part(self, done: int, total: int) -> None:
        """`done` of `total` parts of this phase are done."""
        percent = 100 * done // total
        if percent != self._shown:
            self._shown = percent
            self._show(f"{self._name} {percent} %")

    def done(self) -> str:
        """Everything is ready for step 0: the line that says how long it took."""
        self.phase("")
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items())
        return f"{sum(self._seconds.values()):.1f} s from the command to step 0: {parts}"

    def _show(self, text: str) -> None:
        if self.shows:
            print(f"\r{text:<40}", end="\r", file=sys.stderr, flush=True)


def age_s(pid: int) -> float:
    """How long ago a process of this machine started; 0 where the system does not say."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[STARTED_FIELD])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return age if 0.0 <= age < LONGEST_S else 0.0
