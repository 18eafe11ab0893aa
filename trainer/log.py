"""What a run writes about itself while it trains: `steps.jsonl` with one object a step, `log.txt` for people.

Only rank 0 writes, whole lines at once. Keys of a step: `step` (from 0), `loss`, `grad_norm` (before clipping), `lr`,
`step_time_s`, `tokens_per_s`, `mfu` (null where no data sheet states the device's peak), `peak_allocated_gib` (this
rank's), `recorded`, `skipped` (steps so far that `train.nonfinite` or the loss scale left out), `loss_scale` (null
without one).
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from program import StepProgram
from program.cluster import GIB
from trainer.executor import StepResult
from trainer.job import Job
from trainer.schedule_lr import learning_rate


class RunLog:
    """The files of a run folder."""

    def __init__(self, job: Job, folder: Path, program: StepProgram) -> None:
        self.job, self.folder = job, folder
        self._steps, self._text = folder / "steps.jsonl", folder / "log.txt"
        self._files: dict[Path, BinaryIO] = {path: path.open("ab", buffering=0) for path in (self._steps, self._text)}
        self.say(f"{job.name}: {job.parameters:,} parameters, {program.world} ranks, program {program.hash}")

    def step(self, step: int, result: StepResult, peak_bytes: int, recorded: bool) -> dict[str, object]:
        """Write a step's line; returns what it says."""
        job, time_s = self.job, result.time_s
        line: dict[str, object] = {
            "step": step,
            "loss": finite(result.loss),
            "grad_norm": finite(result.grad_norm),
            "lr": learning_rate(job.rate, step),
            "step_time_s": time_s,
            "tokens_per_s": job.tokens_per_step / time_s,
            "mfu": None if job.peak_flops is None else job.flops_per_step / time_s / job.peak_flops,
            "peak_allocated_gib": peak_bytes / GIB,
            "recorded": recorded,
            "skipped": result.skipped,
            "loss_scale": result.loss_scale,
        }
        self._append(self._steps, json.dumps(line, allow_nan=False))
        return line

    def say(self, text: str) -> None:
        """A dated line for people."""
        self._append(self._text, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def _append(self, path: Path, line: str) -> None:
        """Write a whole line or none. Raises OSError when the disk is full, or the file was removed."""
        file, content = self._files[path], f"{line}\n".encode()
        found = os.fstat(file.fileno())
        if not found.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "was removed", str(path))
        try:
            while content:
                content = content[file.write(content) :]
        except OSError as error:
            with suppress(OSError):
                file.truncate(found.st_size)  # half a line would spoil those before it
            error.filename = str(path)
            raise

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def kept(folder: Path) -> str:
    """What of a run its folder holds, as a sentence."""
    try:
        steps = (folder / "steps.jsonl").read_bytes().count(b"\n")
        timelines = len({path.name.partition(".")[0] for path in (folder / "timeline").iterdir()})
    except OSError:
        return f"Nothing is kept: {folder} holds no run any more" if not folder.is_dir() else "No step is kept"
    return f"Kept in {folder}: log.txt, {steps} steps in steps.jsonl, timelines of {timelines} steps"


def finite(value: float) -> float | None:
    """The number, or None (null in JSON) where training has diverged."""
    return value if math.isfinite(value) else None


def plain(value: object) -> object:
    """Tuples as lists, so that YAML writes them as anybody would."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value
