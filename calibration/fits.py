"""Fitting the forms to measured points, by relative least squares and never below zero.

Every parameter is physical and bounded; a fit that runs into a bound is refused: the model is wrong then, or the data
is. Sigmas are relative and honest: for a table they come from leaving
each point out and predicting it from the others, together with the spread of its own repetitions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize, nnls

from calibration.lookup import Curve, Line, Scatter

Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters by name, and relative residuals (predicted / measured - 1)."""

    values: dict[str, float]
    residuals: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error."""
        return float(np.mean(np.abs(self.residuals)))

    @property
    def sigma(self) -> float:
        """Root mean square of the logs of predicted / measured."""
        return float(np.sqrt(np.mean(np.log1p(self.residuals) ** 2)))


def linear(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], list[float]]:
    """Coefficients >= 0 that minimise the relative error of seconds = features x coefficients, and relative
    residuals."""
    rows = np.asarray(features, dtype=float)
    times = np.asarray(seconds, dtype=float)
    scale = np.maximum(rows.max(axis=0), 1e-300)
    coefficients, _ = nnls(rows / scale / times[:, None], np.ones(len(times)))
    coefficients = coefficients / scale
    return coefficients.tolist(), (rows @ coefficients / times - 1.0).tolist()


def line(points: Sequence[tuple[float, float]]) -> tuple[Line, list[float]]:
    """launch + size x seconds per unit through (size, seconds) points."""
    (launch, slope), residuals = linear([(1.0, size) for size, _ in points], [time for _, time in points])
    if slope <= 0.0:  # flat data: nothing was large enough to show a slope; the largest point bounds it
        size, time = max(points)
        slope = time / size
    return Line(launch, slope), residuals


def search(
    predicted: Callable[[dict[str, float]], Sequence[float]], seconds: Sequence[float], bounds: dict[str, Bounds]
) -> Fit:
    """Parameters inside `bounds` that minimise the mean absolute log of predicted / measured.

    Absolute, because published rows have outliers; a coarse grid first and a simplex from its best point, because
    tiles and waves make steps. Raises ValueError when a parameter ends on a bound, unless the bound is zero: an
    effect that is not there is an answer.
    """
    names = list(bounds)
    low = np.array([bounds[name][0] for name in names])
    high = np.array([bounds[name][1] for name in names])
    times = np.log(np.asarray(seconds, dtype=float))

    def values_at(unit: Any) -> dict[str, float]:
        return dict(zip(names, (low + np.clip(unit, 0.0, 1.0) * (high - low)).tolist(), strict=True))

    def residuals(unit: Any) -> Any:
        return np.log(np.asarray(predicted(values_at(unit)))) - times

    def loss(unit: Any) -> float:
        outside = float(np.sum(np.abs(unit - np.clip(unit, 0.0, 1.0))))
        return float(np.mean(np.abs(residuals(unit)))) + outside

    grid = itertools.product(*[np.linspace(0.1, 0.9, 5)] * len(names))
    start = min(map(np.array, grid), key=loss)
    solved: Any = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 2000, "xatol": 1e-5, "fatol": 1e-7})
    unit = np.clip(solved.x, 0.0, 1.0)
    values = values_at(unit)
    for name, at in zip(names, unit.tolist(), strict=True):
        if at > 1 - 1e-4 or (at < 1e-4 and bounds[name][0] > 0):
            raise ValueError(
                f"{name} = {values[name]:.4g} sits on its bound {bounds[name]}: the model or the rows are wrong"
            )
    return Fit(values, tuple(np.expm1(residuals(unit)).tolist()))


def scatter_sigma(points: Sequence[tuple[Sequence[float], float]], form: Callable[..., float]) -> float:
    """Relative sigma of a table of shapes: each point predicted from the others."""
    if len(points) < 3:
        return 0.0
    errors = []
    for i, (shape, time) in enumerate(points):
        rest = Scatter.of([*points[:i], *points[i + 1 :]], form)
        errors.append(math.log(form(*shape) * rest.correction(shape) / time))
    return float(np.sqrt(np.mean(np.square(errors))))


def curve_sigma(points: Sequence[tuple[float, float]], base: Line) -> float:
    """Relative sigma of reading between the points of a curve.

    Each inner point is predicted from its neighbours, over twice the gap a reading has to bridge; a line's error
    between points grows with the square of the gap, so a quarter of that is left.
    """
    if len(points) < 3:
        return 0.0
    ordered = sorted(points)
    errors = []
    for i in range(1, len(ordered) - 1):
        size, time = ordered[i]
        errors.append(math.log(Curve.of(base, [*ordered[:i], *ordered[i + 1 :]]).seconds(size) / time))
    return float(np.sqrt(np.mean(np.square(errors)))) / 4.0


def monotone(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points by size, equal sizes averaged, and times made non-decreasing by pooling neighbours that are out of
    order."""
    merged: dict[float, list[float]] = {}
    for size, time in points:
        merged.setdefault(float(size), []).append(float(time))
    blocks: list[list[float]] = []  # (sum of logs, count)
    for size in sorted(merged):
        logs = [math.log(t) for t in merged[size]]
        blocks.append([sum(logs) / len(logs), 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, weight = blocks.pop()
            before, count = blocks[-1]
            blocks[-1] = [(before * count + mean * weight) / (count + weight), count + weight]
    times = [math.exp(mean) for mean, count in blocks for _ in range(int(count))]
    return list(zip(sorted(merged), times, strict=True))
