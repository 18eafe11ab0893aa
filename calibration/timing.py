"""Timing one thing well on a machine that others use: warm up, repeat inside a time budget, report what was
undisturbed.

Two defences against other work on the cores. A kernel on one thread is timed by its thread's processor clock, which
stands still while another process has the core. What must be timed by the wall (several threads, two processes) keeps
the samples within `NEAR` of the tenth percentile: other work only ever adds, and a lost time slice adds milliseconds.
Kernels are timed in turn with others (`in_turn`), never one alone in a loop: inside a step a kernel finds the caches
full of what ran before it, and memory-bound ones then take up to twice as long as in a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NEAR = 1.3
TICK_S = 20e-6  # calls shorter than this are timed several to a sample, so that the clock does not count
Clock = Callable[[], float]
Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one execution. `best_s`: median of the undisturbed samples, the number to use; `spread`: their
    relative standard deviation; `kept` of `repetitions` were undisturbed; `median_s`: of all samples."""

    best_s: float
    spread: float
    kept: int
    repetitions: int
    median_s: float

    @property
    def uncertainty(self) -> float:
        """Relative standard error of `best_s`."""
        return float(self.spread / self.kept**0.5)


def summary(samples_s: Sequence[float]) -> Timed:
    """What samples say, other work apart."""
    ordered = sorted(samples_s)
    last = len(ordered) - 1
    near = [s for s in ordered if s <= NEAR * ordered[round(0.1 * last)]]
    middle = near[(len(near) - 1) // 2]
    mean = sum(near) / len(near)
    deviation = (sum((s - mean) ** 2 for s in near) / len(near)) ** 0.5
    return Timed(middle, deviation / mean if mean > 0 else 0.0, len(near), len(ordered), ordered[last // 2])


def repeat(
    runs: Sequence[Run],
    budget_s: float,
    clock: Clock = time.perf_counter,
    least: int = 3,
    most: int = 40,
) -> Timed:
    """Time `runs` in rotation by `clock` for about `budget_s` seconds of the wall, `least` to `most` samples."""
    for run in runs:
        run()
    start = clock()
    runs[0]()
    once_s = max(clock() - start, 1e-7)
    inner = max(1, min(32, int(TICK_S / once_s)))
    samples: list[float] = []
    deadline = time.perf_counter() + budget_s
    index = 0
    while len(samples) < least or (len(samples) < most and time.perf_counter() < deadline):
        begin = clock()
        for _ in range(inner):
            runs[index % len(runs)]()
            index += 1
        samples.append((clock() - begin) / inner)
    return summary(samples)


def in_turn(
    many: Sequence[Sequence[Run]],
    budget_s: float,
    clock: Clock = time.perf_counter,
    least: int = 5,
    most: int = 40,
) -> list[Timed]:
    """Time several calls in turn, each with its own rotation of inputs, for about `budget_s` seconds of the wall each,
    `least` to `most` samples. One result a call."""
    for runs in many:
        for run in runs:
            run()
    samples: list[list[float]] = [[] for _ in many]
    deadline = time.perf_counter() + budget_s * len(many)
    turn = 0
    while turn < least or (turn < most and time.perf_counter() < deadline):
        for runs, found in zip(many, samples, strict=True):
            run = runs[turn % len(runs)]
            begin = clock()
            run()
            found.append(clock() - begin)
        turn += 1
    return [summary(found) for found in samples]
