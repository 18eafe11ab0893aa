"""Interpolation: how a few measured points answer for every size between them.

Two rules, both exact at a measured point and both leaning on a fitted *form* (a physical model with two to five
parameters) away from the points:

* `Curve`: seconds against one size (bytes). Straight lines in log-log between points; outside them the form's shape,
  continued from the last point.
* `Scatter`: a correction measured / form on points in several dimensions (m, n, k). The log of the correction is a
  weighted mean of the points' logs, weights falling with the fourth power of the distance in octaves; a shape farther
  than about `REACH_OCTAVES` from every point is the form's alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

REACH_OCTAVES = 2.0  # the form weighs as much as one point at this distance

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = launch_s + size x seconds_per_unit: the two-parameter model of a memory-bound kernel or a link."""

    launch_s: float
    seconds_per_unit: float

    def seconds(self, size: float) -> float:
        """Time at `size` (bytes, usually)."""
        return self.launch_s + size * self.seconds_per_unit


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured (size, seconds) points over a line. With no points it is the line."""

    line: Line
    sizes: tuple[float, ...] = ()
    times_s: tuple[float, ...] = ()
    _log_sizes: tuple[float, ...] = field(default=(), repr=False)
    _log_times: tuple[float, ...] = field(default=(), repr=False)

    @staticmethod
    def of(line: Line, points: Sequence[tuple[float, float]] = ()) -> Curve:
        """A curve through `points` (any order; sizes and times above zero)."""
        kept = sorted((float(size), float(time)) for size, time in points)
        sizes, times = tuple(p[0] for p in kept), tuple(p[1] for p in kept)
        return Curve(line, sizes, times, tuple(map(math.log, sizes)), tuple(map(math.log, times)))

    def seconds(self, size: float) -> float:
        """Time at `size`: exact at a point, log-log between points, the line's shape outside them."""
        sizes = self.sizes
        if not sizes:
            return self.line.seconds(size)
        if size <= sizes[0]:
            return self._continued(0, size)
        if size >= sizes[-1]:
            return self._continued(-1, size)
        right = bisect_right(sizes, size)
        left = right - 1
        if sizes[left] == size:
            return self.times_s[left]
        x0, x1 = self._log_sizes[left], self._log_sizes[right]
        y0, y1 = self._log_times[left], self._log_times[right]
        return math.exp(y0 + (y1 - y0) * (math.log(size) - x0) / (x1 - x0))

    def _continued(self, end: int, size: float) -> float:
        if size == self.sizes[end]:
            return self.times_s[end]
        at_end = self.line.seconds(self.sizes[end])
        return self.times_s[end] * self.line.seconds(size) / at_end if at_end > 0 else self.times_s[end]

    def overshoot(self, size: float) -> float:
        """Factor by which `size` lies outside the measured sizes (1 inside; 1 also when nothing but the line was
        given)."""
        if not self.sizes or size <= 0:
            return 1.0
        return max(1.0, self.sizes[0] / size, size / self.sizes[-1])


@dataclass(frozen=True, slots=True)
class Scatter:
    """log2(measured / form) at points in log2 coordinates, shape (points, dimensions)."""

    coordinates: Array
    log_ratios: Array
    low: tuple[float, ...]
    high: tuple[float, ...]

    @staticmethod
    def of(points: Sequence[tuple[Sequence[float], float]], form: Callable[..., float]) -> Scatter:
        """Corrections of `form(*shape)` at measured ((shape), seconds) points."""
        coordinates = np.log2(np.array([shape for shape, _ in points], dtype=float))
        ratios = [time / form(*shape) for shape, time in points]
        return Scatter(
            coordinates, np.log2(np.array(ratios)), tuple(coordinates.min(axis=0)), tuple(coordinates.max(axis=0))
        )

    def correction(self, shape: Sequence[float]) -> float:
        """Factor on the form at `shape`: exact at a measured point, 1 far from all of them."""
        apart: Any = self.coordinates - [math.log2(extent) for extent in shape]
        squares = np.einsum("ij,ij->i", apart, apart)
        nearest = int(squares.argmin())
        if squares[nearest] < 1e-18:
            return float(2.0 ** self.log_ratios[nearest])
        weights = 1.0 / (squares * squares)
        return float(2.0 ** (weights.dot(self.log_ratios) / (weights.sum() + REACH_OCTAVES**-4)))

    def overshoot(self, shape: Sequence[float]) -> float:
        """Largest factor by which one extent of `shape` lies outside the measured box (1 inside)."""
        octaves: float = 0.0
        for extent, low, high in zip(shape, self.low, self.high, strict=True):
            x = math.log2(extent)
            octaves = max(octaves, low - x, x - high)
        return math.exp2(octaves)
