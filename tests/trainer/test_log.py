"""What a run's files hold when the disk is full, or when somebody removes them."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler import compile_run
from plan.run import Run
from trainer.executor import StepResult
from trainer.log import RunLog, kept
from windtunnel.job import job_of


class FullDisk:
    """A file on a disk that has room for `room` more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room
        self.fileno, self.truncate, self.close = file.fileno, file.truncate, file.close

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(content[: self.room])
        self.room -= written
        return int(written)


@pytest.fixture
def log(tiny: Callable[..., Run], tmp_path: Path) -> RunLog:
    """The log of a run in tmp_path/run that has trained two steps."""
    folder = tmp_path / "run"
    (folder / "timeline").mkdir(parents=True)
    log = RunLog(job_of(run := tiny()), folder, compile_run(run))
    for step in range(2):
        log.step(step, StepResult(5.0, 1.0, 0.1, {}), 0, False)
    return log


def test_a_full_disk_keeps_whole_lines(log: RunLog) -> None:
    for path, write in (
        (log.folder / "steps.jsonl", lambda: log.step(2, StepResult(5.0, 1.0, 0.1, {}), 0, False)),
        (log.folder / "log.txt", lambda: log.say("a line that does not fit")),
    ):
        before = path.read_text()
        log._files[path] = FullDisk(log._files[path], 20)  # type: ignore[assignment]
        with pytest.raises(OSError, match="No space left") as error:
            write()
        assert error.value.filename == str(path)
        assert path.read_text() == before
    log.close()
    steps = (log.folder / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps] == [0, 1]
    (log.folder / "timeline" / "step-000001.rank-0000.json.gz").touch()
    assert kept(log.folder) == f"Kept in {log.folder}: log.txt, 2 steps in steps.jsonl, timelines of 1 steps"


def test_a_folder_that_was_removed_is_found_at_the_next_line(log: RunLog) -> None:
    shutil.rmtree(log.folder)
    with pytest.raises(FileNotFoundError, match="was removed"):
        log.say("nobody reads this")
    log.close()
    assert kept(log.folder) == f"Nothing is kept: {log.folder} holds no run any more"
