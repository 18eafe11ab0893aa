"""The launcher's watch over heartbeats: who is silent, who is not, and what bounds may be given."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from program.errors import InputError
from trainer.heartbeat import Heartbeat, Watch, silent_s

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_process_that_never_beats_again_is_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(SLEEP)
    (tmp_path / "rank-0.alive").write_text(str(process.pid))
    with Watch(tmp_path, 2, 0.3) as watch:
        assert process.wait(10) == -9
        time.sleep(0.2)
    assert watch.found is not None
    assert (watch.found.rank, watch.found.stopped) == (0, False)
    assert 0.3 < watch.found.for_s < 5


def test_a_rank_that_has_not_begun_or_has_ended_is_not_silent(tmp_path: Path) -> None:
    """No file yet; and the process of the file is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (tmp_path / "rank-1.alive").write_text(str(process.pid))
    with Watch(tmp_path, 2, 0.1) as watch:
        time.sleep(0.5)
    assert watch.found is None


def test_a_beating_rank_is_left_alone(tmp_path: Path) -> None:
    """Through three times the bound."""
    heart = Heartbeat(tmp_path / "rank-0.alive")
    heart.start()
    with Watch(tmp_path, 1, 2.5) as watch:
        time.sleep(4)
    assert watch.found is None
    assert (tmp_path / "rank-0.alive").read_text() == str(os.getpid())


def test_a_rank_ends_when_its_parent_was_killed(tmp_path: Path) -> None:
    """As torchrun's ranks would not by themselves."""
    rank = "from trainer.heartbeat import Heartbeat; import os, time; from pathlib import Path\n"
    rank += f"Heartbeat(Path({str(tmp_path / 'alive')!r}), os.getppid()).start(); time.sleep(600)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"
    parent = subprocess.Popen([sys.executable, "-c", starts], cwd=Path(__file__).parents[2])
    while not (pid := (tmp_path / "alive").read_text() if (tmp_path / "alive").exists() else ""):
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_bound_never_ends_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_SILENT_S", "0")
    process = subprocess.Popen(SLEEP)
    (tmp_path / "rank-0.alive").write_text(str(process.pid))
    with Watch(tmp_path, 1, silent_s()):
        time.sleep(1.5)
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.parametrize("given", ["nan", "-1", "soon", "inf"])
def test_a_bound_that_is_no_time_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_SILENT_S", given)
    with pytest.raises(InputError, match="WINDTUNNEL_SILENT_S is"):
        silent_s()
