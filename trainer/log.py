"""What a run writes about itself: `run.yaml` as resolved, `steps.jsonl` with one object a step, `log.txt` for people.

Only rank 0 writes. Keys of a step: `step` (from 0), `loss`, `grad_norm` (before clipping), `lr`, `step_time_s`,
`tokens_per_s`, `mfu` (null where no data sheet states the device's peak), `peak_allocated_gib` (this rank's),
`recorded`, `skipped` (steps so far that `train.nonfinite` left out).
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TextIO

import yaml

from plan.cluster import GIB
from plan.flops import model_flops_per_step
from plan.run import Run
from trainer.executor import StepResult
from trainer.schedule_lr import learning_rate


class RunLog:
    """The files of a run folder."""

    def __init__(self, run: Run, folder: Path, program_hash: str) -> None:
        self.run, self.folder = run, folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.yaml").write_text(yaml.safe_dump(plain(run.to_dict()), sort_keys=False, allow_unicode=True))
        (folder / "timeline").mkdir(exist_ok=True)
        self._steps: TextIO = (folder / "steps.jsonl").open("w")
        self._text: TextIO = (folder / "log.txt").open("a")
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
        self._steps.write(json.dumps(line, allow_nan=False) + "\n")
        self._steps.flush()
        return line

    def say(self, text: str) -> None:
        """A dated line for people."""
        self._text.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        self._text.flush()

    def close(self) -> None:
        """Close the files."""
        self._steps.close()
        self._text.close()


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
