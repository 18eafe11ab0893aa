"""Whether ranks are alive: each touches a file of its own every second, and the launcher looks.

A rank that waits in a collective still beats, because the beat comes from a thread of its own; so does one that
compiles. A process that is stopped (SIGSTOP, a debugger, a frozen container) does not. Its peers would find out only
when their wait runs out (300 s), and could not say whom they waited for. The launcher ends a rank that has been silent
for `silent_s` (60 s; the environment variable WINDTUNNEL_SILENT_S sets another bound, 0 none), and names it.

    Heartbeat(path).start()              # in a rank
    with Watch(folder, world, 60.0) as watch: ...      # in the launcher; watch.found afterwards

A machine that sleeps stops the launcher's clock too, and a job stopped as a whole is looked at again from new.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from program import numbers
from program.errors import InputError

BEAT_S = 1.0
SILENT_S = 60.0
VARIABLE = "WINDTUNNEL_SILENT_S"


def silent_s() -> float:
    """How long a rank may be silent. Raises InputError for a WINDTUNNEL_SILENT_S that is no number of seconds."""
    given = os.environ.get(VARIABLE, "")
    try:
        value = float(numbers.number(given)) if given else SILENT_S
    except ValueError:
        value = -1.0
    if value < 0:
        raise InputError(
            f"{VARIABLE} is {given!r}; give seconds (the default is {SILENT_S:.0f}), or 0 to never give up"
        )
    return value


class Heartbeat:
    """A rank's sign of life: a file that holds its process id, touched every second by a thread. The process ends when
    its `parent` does, which has started it and would stop it (torchrun, when it is killed, leaves its ranks behind)."""

    def __init__(self, path: Path, parent: int | None = None) -> None:
        self.path, self.parent = path, parent

    def start(self) -> None:
        """Write the file and begin to beat, until the process ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(str(os.getpid()))
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            if self.parent is not None and os.getppid() != self.parent:
                os.kill(os.getpid(), signal.SIGKILL)
            with suppress(OSError):  # the folder is gone, or its disk is full: no reason to end a rank
                os.utime(self.path)


@dataclass(frozen=True, slots=True)
class Silence:
    """A rank that was ended because it did not beat: for how long, and whether its process was stopped."""

    rank: int
    for_s: float
    stopped: bool


class Watch:
    """Looks at the ranks' heartbeats from a thread; ends the first silent rank's process, which ends the job."""

    def __init__(self, folder: Path, world: int, silent_s: float) -> None:
        self.paths = [folder / f"rank-{rank}.alive" for rank in range(world)]
        self.silent_s = silent_s
        self.found: Silence | None = None
        self._end = threading.Event()
        self._seen: dict[int, tuple[int, float]] = {}
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        every_s = min(BEAT_S, self.silent_s / 4) or BEAT_S
        last = time.monotonic()
        while not self._end.wait(every_s):
            now = time.monotonic()
            if now - last > 10 * every_s + BEAT_S:  # the launcher itself was stopped: what it saw is old
                self._seen.clear()
            last = now
            for rank in range(len(self.paths)) if self.silent_s else ():
                if self.found is None and (for_s := self._silent_for(rank, now)) > self.silent_s:
                    self.found = self._ended(rank, for_s)

    def _silent_for(self, rank: int, now: float) -> float:
        """Seconds since the last beat changed; 0 before the first and after the last one."""
        try:
            beat = self.paths[rank].stat().st_mtime_ns
        except OSError:
            return 0.0
        if self._seen.get(rank, (0, 0.0))[0] != beat:
            self._seen[rank] = (beat, now)
        return now - self._seen[rank][1]

    def _ended(self, rank: int, for_s: float) -> Silence | None:
        """Kill a silent rank; None when its process is gone, for the launcher sees that by itself."""
        try:
            pid = int(self.paths[rank].read_text())
            stopped = _state(pid) in ("T", "t")
            os.kill(pid, signal.SIGKILL)  # a stopped process cannot be asked to end
        except (OSError, ValueError):
            return None
        return Silence(rank, for_s, stopped)


def _state(pid: int) -> str:
    """The state letter of a process, where the system says it: T stopped, R running, S or D waiting."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
