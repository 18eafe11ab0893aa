"""One process for each rank of a job on this machine: started, watched, and ended together.

    ended = run_processes(commands, environments, keeps=(lock,))      # blocks

All processes are in one process group, led by a guard that waits for the launcher to end: when that happens, be it by
SIGKILL, the guard kills the group, the ranks' own children included. Each rank has a pipe to the launcher for its last
words, because a file could not be written on a full disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

POLL_S = 0.05
STOP_S = 5.0
LONGEST_WORDS = 32 * 1024  # bytes; a pipe holds 64 KiB before a writer has to wait

_GUARD = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
sys.stdin.buffer.read()
os.killpg(0, signal.SIGKILL)
"""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended. `exits`: exit codes of the ranks that failed first, a negative one is a signal (none failed:
    empty); `said`: last words by rank; `stopped`: the signal that the launcher got, 0 for none."""

    exits: Mapping[int, int]
    said: Mapping[int, str]
    stopped: int


def run_processes(
    commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], keeps: Sequence[int] = ()
) -> Ended:
    """Run one process a rank until all have ended, one has failed, or the launcher is asked to stop; none is left when
    this returns. A rank's command is given the file descriptor for its last words as its last argument; `keeps` are
    descriptors that every process holds open (a lock ends with the last of them)."""
    words: list[int] = []
    ranks: list[subprocess.Popen[bytes]] = []
    with _stops() as stops, _guarded(keeps) as group:
        try:
            with _interrupts_blocked():
                for command, environment in zip(commands, environments, strict=True):
                    ours, theirs = os.pipe()
                    words.append(ours)
                    ranks.append(_started(command, environment, theirs, group, keeps))
                    os.close(theirs)
            exits = _first_failures(ranks, stops)
        finally:
            _end(ranks, stops)
            said = {rank: _read(pipe) for rank, pipe in enumerate(words)}
    return Ended(exits, {rank: text for rank, text in said.items() if text}, stops[0] if stops else 0)


def _started(
    command: Sequence[str], environment: Mapping[str, str], words: int, group: int, keeps: Sequence[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*command, str(words)],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,  # whoever reads a terminal from another group is stopped
        process_group=group,
        pass_fds=(words, *keeps),
    )


@contextmanager
def _guarded(keeps: Sequence[int]) -> Iterator[int]:
    """The process group for the ranks; its leader is the guard, which is not waited for before the group is empty, so
    that its number cannot become somebody else's."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
        pass_fds=tuple(keeps),
    )
    try:
        yield guard.pid
    finally:
        with suppress(ProcessLookupError, PermissionError):  # said of a group of which only the dead leader is left
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()


@contextmanager
def _stops() -> Iterator[list[int]]:
    """The signals to stop that the launcher gets, as they come. (Only a main thread can ask for them; SIGHUP stays
    ignored under nohup.)"""
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield got
        return
    asked = [s for s in _STOPS if s != signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda n, _: got.append(n)) for number in asked}
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C is blocked in the ranks started here until they are ready for it (`windtunnel.rank`)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_failures(ranks: Sequence[subprocess.Popen[bytes]], stops: Sequence[int]) -> dict[int, int]:
    while not stops:
        codes = [process.poll() for process in ranks]
        failed = {rank: code for rank, code in enumerate(codes) if code}
        if failed or None not in codes:
            return failed
        time.sleep(POLL_S)
    return {}


def _end(ranks: Sequence[subprocess.Popen[bytes]], stops: Sequence[int]) -> None:
    """Ask the ranks that run to end, then end them. Asked to stop they put their files away; after a failure they wait
    for a rank that is gone, and have nothing to add. A second Ctrl-C does not wait."""
    once = len(stops)
    for process in ranks:
        process.send_signal(signal.SIGINT if stops else signal.SIGTERM)  # nothing, when it has ended
    deadline = time.monotonic() + STOP_S
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline and len(stops) <= once:
        time.sleep(POLL_S)
    for process in ranks:
        process.kill()
        process.wait()


def _read(pipe: int) -> str:
    """What a rank that is gone has left in its pipe. (A child that left the group may still hold the other end.)"""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, LONGEST_WORDS).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(pipe)
