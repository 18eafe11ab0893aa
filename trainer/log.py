"""What a run writes about itself while it trains: `steps.jsonl` with one object a step, `log.txt` for people.

Only rank 0 writes, whole lines at once. Keys of a step: `step` (from 0), `loss`, `grad_norm` (before clipping), `lr`,
`step_time_s`, `tokens_per_s`, `mfu` (null where no data sheet states the device's peak), `peak_allocated_gib` (this
rank's), `recorded`, `skipped` (steps so far that `train.nonfinite` left out).
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

from plan.flops import model_flops_per_step
from plan.run import Run
from program.cluster import GIB
from trainer.executor import StepResult
from trainer.schedule_lr import learning_rate


class RunLog:
    """The files of a run folder."""

    def __init__(self, run: Run, folder: Path, program_hash: str) -> None:
        self.run, self.folder = run, folder
        self._steps, self._text = folder / "steps.jsonl", folder / "log.txt"
        self._files: dict[Path, BinaryIO] = {path: path.open("ab", buffering=0) for path in (self._steps, self._text)}
        peak = run.cluster.peak_flops(run.plan.precision)
        self._peak = None if peak is None else peak * run.plan.world
        self.say(
            f"{run.model.name}: {run.model.parameters():,} parameters, {run.plan.world} ranks, program {program_hash}"
        )

    def step(self, step: int, result: StepResult, peak_bytes: int, recorded: bool) -> dict[str, object]:
        """Write a step's line; returns what it says."""
        flops = model_flops_per_step(self.run)
        line: dict[str, object] = {
            "step": step,
            "loss": finite(result.loss),
            "grad_norm": finite(result.grad_norm),
            "lr": learning_rate(self.run.optimizer, step),
            "step_time_s": result.time_s,
            "tokens_per_s": self.run.tokens_per_step / result.time_s,
            "mfu": None if self._peak is None else flops / result.time_s / self._peak,
            "peak_allocated_gib": peak_bytes / GIB,
            "recorded": recorded,
            "skipped": result.skipped,
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
