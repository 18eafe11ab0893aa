"""A run folder, as `windtunnel train` leaves it: run.yaml, steps.jsonl, timeline/, log.txt.

folder = RunFolder.open("runs/0001")
folder.run(), folder.step_times_s(), folder.timeline()

A folder holds one job: `held` locks it while the job runs.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plan.run import Run, load
from program.errors import InputError

if TYPE_CHECKING:
    from program.timeline import Timeline

MOST_STEPS = 8
LOCK = "lock"
MOST_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run that trained."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Raises InputError naming everything that a run folder must have and this one lacks."""
        folder = Path(path)
        if not folder.is_dir():
            what = "is a file, not a run folder" if folder.exists() else "does not exist"
            raise InputError(f"{folder} {what}; give the folder that `windtunnel train` printed")
        missing = [name for name in ("run.yaml", "steps.jsonl", "timeline") if not (folder / name).exists()]
        if missing:
            raise InputError(f"{folder} is not the folder of a finished run: it has no {', '.join(missing)}")
        return cls(folder)

    def run(self) -> Run:
        """The run as it was trained."""
        return load(self.path / "run.yaml")

    def step_times_s(self) -> list[float]:
        """Every step's time, in order."""
        from reports.measured import read_steps

        return [float(step["step_time_s"]) for step in read_steps(self.path / "steps.jsonl")]

    def timeline(self) -> Timeline:
        """The recorded steps of all ranks as one timeline (of a long run the last steps)."""
        from program.timeline import load as load_timeline
        from program.timeline import merge

        steps = list(self._recorded().values())[-MOST_STEPS:]
        return merge([load_timeline(file) for files in steps for file in files])

    def recorded_steps(self) -> Iterator[Timeline]:
        """The recorded steps in order, each as one timeline of all ranks. Of a long run the last, as many as
        MOST_BYTES of files hold."""
        from program.timeline import load as load_timeline
        from program.timeline import merge

        kept: list[list[Path]] = []
        room = MOST_BYTES
        for files in reversed(self._recorded().values()):
            room -= sum(file.stat().st_size for file in files)
            if room < 0 and len(kept) >= MOST_STEPS:
                break
            kept.append(files)
        for files in reversed(kept):
            yield merge([load_timeline(file) for file in files])

    def _recorded(self) -> dict[str, list[Path]]:
        """The timeline files of each recorded step, in order."""
        steps: dict[str, list[Path]] = {}
        for file in sorted((self.path / "timeline").rglob("*.json.gz")):
            steps.setdefault(_step(file), []).append(file)
        if not steps:
            raise InputError(
                f"{self.path / 'timeline'} is empty: no step was recorded (train.record_every says which are)"
            )
        return dict(sorted(steps.items()))


@contextmanager
def held(folder: Path, reuse: bool = False) -> Iterator[int]:
    """Make `folder` this job's until the block ends; gives the lock's file descriptor. The lock ends with the last
    process that has it open, however that ends.

    Raises InputError, before a byte is written, when another job has the folder, or it holds something. What a killed
    job left is no obstacle, with `reuse` nothing is.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (reuse or (folder / LOCK).exists()):
            _check_empty(folder)
        lock = _locked(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None
    left, refused = os.fstat(lock).st_size > 0, False  # left: by a job that was killed; else the file is new
    try:
        if not (reuse or left):
            _check_empty(folder)
        _sign(folder, lock)
        yield lock
    except InputError:
        refused = True
        raise
    finally:
        if not (left and refused):  # what a killed job left stays as it was
            with suppress(OSError):
                (folder / LOCK).unlink()
        os.close(lock)


def _sign(folder: Path, lock: int) -> None:
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None


def _check_empty(folder: Path) -> None:
    if any(path.name != LOCK for path in folder.iterdir()):
        raise InputError(f"{folder} is not empty; give a new folder, or none for the next free one under runs/")


def _locked(folder: Path) -> int:
    """The lock's file descriptor. The file is opened again when another job has removed it meanwhile; where the file
    system knows no locks, it is open and no more."""
    from fcntl import LOCK_EX, LOCK_NB, flock  # not on Windows

    while True:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            flock(lock, LOCK_EX | LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(folder / LOCK)):
                return lock
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
            os.close(lock)
            raise InputError(f"{folder} is in use by {holder}: a run folder holds one job; give another one") from None
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                return lock
            raise
        os.close(lock)


def new_folder(root: Path = Path("runs"), name: str = "") -> Path:
    """Create the next free folder `runs/<name>0001` and return it. Raises InputError when it cannot be created."""
    number = 1 + max((_number(path.name, name) for path in root.glob(f"{name}[0-9]*")), default=0)
    while True:
        folder = root / f"{name}{number:04d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        except OSError as error:
            raise InputError(f"{folder} cannot be created: {error.strerror}") from None
        return folder


def _number(found: str, name: str) -> int:
    rest = found.removeprefix(name)
    return int(rest) if rest.isdecimal() else 0


def _step(file: Path) -> str:
    """`step-000007.rank-0001.json.gz` is of `step-000007`."""
    return file.name.partition(".")[0]
