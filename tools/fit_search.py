"""Fitting a form's few parameters to published rows: a search inside bounds.

Every parameter is physical and bounded; a fit that runs into a bound is refused: the model is wrong then, or the data
is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

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
