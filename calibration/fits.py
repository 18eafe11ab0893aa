"""Fitting the forms to measured points, by relative least squares and never below zero.

Sigmas are relative: for a table they come from leaving each point out and predicting it from the others, together with
the spread of its own repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import nnls

from calibration.lookup import Curve, Line, Scatter


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
