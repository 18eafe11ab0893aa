"""How far the times of two runs are apart, and how far apart their spread alone would put them.

A busy machine adds time in spells of several steps, so single steps are no independent samples. A run's times are cut
into batches of consecutive steps. Of steps, the spread of the batches' levels, and how alike neighbours are, say how
well the run's level is known. Of an operation class, whose instructions the machine leaves alone in some steps, the
level is taken from all recorded steps, and each batch left out in turn says how much it rests on few of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BATCHES = 8
FEWEST = 3 * BATCHES
"""Steps a run must have after warm-up: a batch of fewer than 3 has no lower quartile of its own."""
FEWEST_RECORDED = 3
"""Recorded steps below which a class has no spread at all."""
QUANTILES = {"median": 0.5, "lower quartile": 0.25}
"""The typical step, and one that the machine disturbed less."""
UNDISTURBED = 0.1
"""An instruction is short: the machine leaves some of its executions alone."""
POWER = 0.9


@dataclass(frozen=True, slots=True)
class Level:
    """The level of a run's times: log seconds, its standard error and the error's degrees of freedom. `parts`: what
    each batch has in the error, of which it is the root sum of squares about their mean; empty where there are none."""

    log_s: float
    error: float
    freedom: int
    parts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """The log ratio of two levels beyond what is expected, with its standard error and degrees of freedom."""

    log_ratio: float
    error: float
    freedom: float

    @property
    def slowdown(self) -> float:
        """The ratio − 1."""
        return math.expm1(self.log_ratio)

    def bounds(self, level: float) -> tuple[float, float]:
        """The slowdown is at least the first and at most the second, each but for a chance of `level`."""
        reach = t_quantile(1 - level, self.freedom) * self.error
        return math.expm1(self.log_ratio - reach), math.expm1(self.log_ratio + reach)

    def detectable(self, level: float, allowed: float) -> float:
        """The smallest slowdown that is found to exceed `allowed` in 9 of 10 such pairs of runs."""
        margin = t_quantile(1 - level, self.freedom) + t_quantile(POWER, self.freedom)
        return math.expm1(math.log1p(allowed) + margin * self.error)


def level(times_s: Sequence[float] | Floats, quantile: float) -> Level:
    """The level of times [steps], of at least FEWEST steps in order: the mean of the batches' levels at this
    quantile."""
    parts = np.array_split(np.asarray(times_s, dtype=np.float64), BATCHES)
    levels = np.log([float(np.quantile(part, quantile)) for part in parts])
    return _level(float(levels.mean()), levels / math.sqrt(BATCHES * (BATCHES - 1)))


def _level(log_s: float, parts: Floats) -> Level:
    return Level(log_s, math.sqrt(_squares(parts)), len(parts) - 1, tuple(parts.tolist()))


def _squares(levels: Floats) -> float:
    """The sum of squares about the mean. Neighbours are alike where a slow spell outlasts a batch: fewer batches are
    then independent, and the sum counts for more."""
    away = levels - levels.mean()
    squares = float(away @ away)
    return squares + 2 * max(0.0, float(away[1:] @ away[:-1]))


def undisturbed_level(times_s: Floats, beside_s: Floats | None = None) -> Level:
    """The level of a class in at least FEWEST recorded steps, [instructions, steps]: what its instructions take
    together, each where the machine disturbs it least. With `beside_s` of other instructions, in the same steps, the
    level is the ratio to theirs. The error is the jackknife's (Tukey 1958), a batch left out at a time."""
    parts = np.array_split(np.arange(times_s.shape[1]), BATCHES)
    kept = [np.concatenate(parts[:left] + parts[left + 1 :]) for left in range(BATCHES)]

    def found(steps: NDArray[np.intp]) -> float:
        beside = 0.0 if beside_s is None else _log_sum(beside_s[:, steps], UNDISTURBED)
        return _log_sum(times_s[:, steps], UNDISTURBED) - beside

    without = np.array([found(steps) for steps in kept])
    return _level(found(np.concatenate(parts)), without * math.sqrt((BATCHES - 1) / BATCHES))


def sparse_level(times_s: Floats, steps_s: Sequence[float]) -> Level:
    """The level of a few recorded steps, [instructions, steps]. They may lie in one slow spell, which they cannot know
    themselves: their own error grows by how far stretches of as many consecutive steps of the run differ."""
    recorded, steps = times_s.shape[1], np.asarray(steps_s, dtype=np.float64)
    stretches = np.array_split(steps[None, :], max(2, len(steps) // recorded), axis=1)
    spell = float(np.std([_log_sum(part, UNDISTURBED) for part in stretches], ddof=1))
    own = float(np.log(times_s.sum(axis=0)).std(ddof=1) / math.sqrt(recorded))
    return Level(_log_sum(times_s, UNDISTURBED), math.hypot(own, spell), recorded - 1)


def _log_sum(rows: Floats, quantile: float) -> float:
    return math.log(float(np.quantile(rows, quantile, axis=1).sum()))


def change(before: Level, after: Level, expected_log_ratio: float = 0.0) -> Change:
    """How much longer the times of `after` are, beyond what is expected. Batches are held against those of the same
    place in the other run: what both runs have in common (they took turns, or one is the other with something added)
    is then no spread, and nothing is lost where they have nothing in common."""
    log_ratio = after.log_s - before.log_s - expected_log_ratio
    if before.parts and after.parts:
        parts = np.array(after.parts) - np.array(before.parts)
        return Change(log_ratio, math.sqrt(_squares(parts)), len(parts) - 1)
    a, b = before.error**2, after.error**2
    freedom = (a + b) ** 2 / (a**2 / before.freedom + b**2 / after.freedom) if a + b > 0 else math.inf
    return Change(log_ratio, math.sqrt(a + b), freedom)


def t_quantile(probability: float, freedom: float) -> float:
    """Student's t, by the expansion of Cornish and Fisher. For 2 degrees of freedom, where it is too small in the
    tails, the closed form."""
    if freedom < 3:
        x = 2 * probability - 1
        return x * math.sqrt(2 / (1 - x * x))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (3 * z + 16 * z**3 + 5 * z**5) / 96,
        (-15 * z + 17 * z**3 + 19 * z**5 + 3 * z**7) / 384,
        (-945 * z - 1920 * z**3 + 1482 * z**5 + 776 * z**7 + 79 * z**9) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
