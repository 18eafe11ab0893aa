"""The step time that a run really took: the median over the steps after warm-up, with its spread.

The first steps pay for allocation, thread pools and caches, so a quarter of the run, at most 5 steps and at least
1, is left out. The spread is the middle half (quartiles) and the full range: on a shared machine the range says
more about the neighbours than about the program.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from program.errors import InputError
from program.files import chunks_of

MOST_WARM_UP_STEPS = 5
LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured step time: median, quartiles and range in seconds over `steps` steps, `warm_up` of them left out
    before."""

    median_s: float
    quartiles_s: tuple[float, float]
    range_s: tuple[float, float]
    steps: int
    warm_up: int

    @property
    def relative_spread(self) -> float:
        """Half the middle half, relative to the median."""
        return (self.quartiles_s[1] - self.quartiles_s[0]) / 2 / self.median_s if self.median_s else 0.0


def warm_up_steps(steps: int) -> int:
    """How many first steps are left out of a run of `steps`."""
    return min(MOST_WARM_UP_STEPS, max(1, steps // 4)) if steps > 1 else 0


def measure(times_s: Sequence[float]) -> Measured:
    """Median and spread after warm-up. Raises InputError when there is no time, or one that is not a positive
    number."""
    if not times_s:
        raise InputError("no step was measured: the run has no step times")
    wrong = [value for value in times_s if not (math.isfinite(value) and value > 0)]
    if wrong:
        raise InputError(f"a step time of {wrong[0]} s is not a positive number")
    skipped = warm_up_steps(len(times_s))
    kept = np.asarray(times_s[skipped:], dtype=np.float64)
    low, median, high = (float(q) for q in np.percentile(kept, (25, 50, 75)))
    return Measured(median, (low, high), (float(kept.min()), float(kept.max())), len(kept), skipped)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The objects of a steps.jsonl file, one a step, read as a stream of at most `program.files.most_bytes()`. Raises
    InputError when it is missing, empty, damaged or too long."""
    steps = [_step(line, number, path) for number, line in _lines(path) if line.strip()]
    if not steps:
        raise InputError(f"{path} is empty: no step finished")
    return steps


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number, rest = 0, b""
    for chunk in chunks_of(path):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            number += 1
            yield number, line
        if len(rest) > LONGEST_LINE:
            raise InputError(f"{path} line {number + 1} is longer than {LONGEST_LINE} bytes, more than any step")
    yield number + 1, rest


def _step(line: bytes, number: int, path: Path) -> dict[str, Any]:
    from program.timeline.timeline_schema import step_of  # pydantic, where there is something to read

    where = f"{path} line {number}"
    try:
        step = json.loads(line)
    except UnicodeDecodeError:
        raise InputError(f"{where} is not text") from None
    except RecursionError:
        raise InputError(f"{where} nests lists or objects too deeply to be read") from None
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {str(error).partition('; use sys.')[0]}") from None
    return step_of(step, where)
