"""Timing one thing well on a machine that others use: warm up, repeat inside a time budget, report the median and the
spread.

Inputs rotate between several sets, so that a call finds its data out of the nearest caches, as it would inside a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one execution over `repetitions`: the median, the 20th and 80th percentiles, and the 25th (`quiet_s`),
    the time when nothing else took the core: other work only ever adds, and a lost time slice adds milliseconds."""

    median_s: float
    quiet_s: float
    p20_s: float
    p80_s: float
    repetitions: int

    @property
    def best_s(self) -> float:
        """The number to use: the median, or `quiet_s` where the median lies so far above it that other work
        interfered."""
        return self.median_s if self.median_s < 1.15 * self.quiet_s else self.quiet_s

    @property
    def spread(self) -> float:
        """Half the distance between the outer percentiles, relative to the median: 0.84 sigma of a normal law."""
        return (self.p80_s - self.p20_s) / (2 * self.median_s) if self.median_s > 0 else 0.0

    @property
    def uncertainty(self) -> float:
        """Relative standard error of the number used: the spread over the root of the repetitions."""
        return float(self.spread / self.repetitions**0.5)


def summary(samples_s: Sequence[float]) -> Timed:
    """Median and percentiles of samples."""
    ordered = sorted(samples_s)
    last = len(ordered) - 1
    return Timed(
        ordered[last // 2], ordered[last // 4], ordered[round(0.2 * last)], ordered[round(0.8 * last)], len(ordered)
    )


def repeat(runs: Sequence[Callable[[], object]], budget_s: float, least: int = 3, most: int = 40) -> Timed:
    """Time `runs` in rotation for about `budget_s` seconds, at least `least` and at most `most` samples.

    Calls shorter than 20 µs are timed several to a sample, so that the clock does not count.
    """
    clock = time.perf_counter
    start = clock()
    for run in runs:
        run()
    first_s = max((clock() - start) / len(runs), 1e-7)
    start = clock()
    runs[0]()
    once_s = max(min(first_s, clock() - start), 1e-7)
    inner = max(1, min(32, int(20e-6 / once_s)))
    samples: list[float] = []
    deadline = clock() + budget_s
    index = 0
    while len(samples) < least or (len(samples) < most and clock() < deadline):
        begin = clock()
        for _ in range(inner):
            runs[index % len(runs)]()
            index += 1
        samples.append((clock() - begin) / inner)
    return summary(samples)
