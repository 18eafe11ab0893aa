"""A job's processes, without torch: what ends them, and what they can still say."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.listening import descendants
from trainer import processes
from trainer.processes import run_processes

LAUNCHER = """
import sys
from trainer.processes import run_processes
commands = [[sys.executable, "-c", text] for text in sys.argv[1:]]
ended = run_processes(commands, [{"RANK": str(rank)} for rank in range(len(commands))])
print(dict(ended.exits), dict(ended.said), int(ended.stopped))
"""
READY = "import os, signal, subprocess, sys, time\nos.write(1, os.environ['RANK'].encode() + bytes([10]))\n"
CHILD = "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
WITH_CHILD = READY.replace("os.write", f"{CHILD}; os.write")
SLEEP = "time.sleep(600)"
SAY = "os.write(int(sys.argv[-1]), {!r})\n"


@contextmanager
def _launched(*ranks: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", LAUNCHER, *ranks]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def _begun(launcher: "subprocess.Popen[str]", ranks: int) -> None:
    assert launcher.stdout is not None
    assert sorted(launcher.stdout.readline() for _ in range(ranks)) == [f"{rank}\n" for rank in range(ranks)]


def _gone(pids: list[int], within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_launcher_that_is_killed_takes_all_with_it() -> None:
    """Ranks that ignore every signal they can, and their children."""
    deaf = "".join(f"signal.signal(signal.{name}, signal.SIG_IGN)\n" for name in ("SIGTERM", "SIGHUP", "SIGINT"))
    with _launched(WITH_CHILD + deaf + SLEEP, WITH_CHILD + SLEEP) as launcher:
        _begun(launcher, 2)
        below = descendants(launcher.pid)[1:]
        assert len(below) == 5  # the guard, two ranks, a child of each
        launcher.kill()
        assert _gone(below)


def test_a_rank_that_fails_ends_the_others_and_is_named_with_its_words() -> None:
    late = "time.sleep(3)\n"  # so that the other rank has begun, on a busy machine too
    with _launched(WITH_CHILD + late + SAY.format(b"own: why") + "sys.exit(7)", WITH_CHILD + SLEEP) as launcher:
        _begun(launcher, 2)
        assert launcher.communicate(timeout=30)[0] == "{0: 7} {0: 'own: why'} 0\n"


CLOSES = f"""{READY.replace("os.write", "signal.signal(signal.SIGINT, signal.default_int_handler); os.write")}
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    {SLEEP}
except KeyboardInterrupt:
    {SAY.format(b"closed")}
"""


def test_a_stop_lets_every_rank_put_its_files_away() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with _launched(CLOSES, CLOSES) as launcher:
            _begun(launcher, 2)
            launcher.send_signal(number)
            assert launcher.communicate(timeout=30)[0] == f"{{}} {{0: 'closed', 1: 'closed'}} {int(number)}\n"


def _run(*ranks: str) -> processes.Ended:
    places = [{"RANK": str(rank)} for rank in range(len(ranks))]
    return run_processes([[sys.executable, "-c", text] for text in ranks], places)


@pytest.mark.parametrize("last", [SLEEP, "pass"])
def test_what_ignores_the_request_is_killed_and_nothing_is_left(last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.2)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(int(sys.argv[-1]), str(child.pid).encode())\n"
    ended = _run(WITH_CHILD + deaf + last, READY + ("time.sleep(1); sys.exit(1)" if last == SLEEP else "pass"))
    assert (dict(ended.exits), ended.stopped) == ({1: 1} if last == SLEEP else {}, 0)
    assert _gone([int(ended.said[0])])  # the rank's child


def test_words_longer_than_a_pipe_are_cut_and_do_not_block() -> None:
    said = f"os.write(int(sys.argv[-1]), b'x' * {processes.LONGEST_WORDS}); sys.exit(1)"
    assert len(_run(READY + said).said[0]) == processes.LONGEST_WORDS
