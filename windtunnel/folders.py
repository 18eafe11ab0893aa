"""A run folder, as `windtunnel train` leaves it: run.yaml, steps.jsonl, timeline/, log.txt.

folder = RunFolder.open("runs/0001")
folder.run(), folder.step_times_s(), folder.timeline()
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plan.errors import InputError
from plan.run import Run, load

if TYPE_CHECKING:
    from plan.timeline import Timeline

MOST_STEPS = 8


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
        from plan.timeline import load as load_timeline
        from plan.timeline import merge

        files = sorted((self.path / "timeline").rglob("*.json.gz"))
        if not files:
            raise InputError(
                f"{self.path / 'timeline'} is empty: no step was recorded (train.record_every says which are)"
            )
        steps = sorted({_step(file) for file in files})[-MOST_STEPS:]
        return merge([load_timeline(file) for file in files if _step(file) in steps])


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
