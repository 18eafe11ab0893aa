"""Scores forecasts against published measurements: errors per source, for step time and for memory.

    board = scoreboard(published.read())
    board.sources[0].step_time.mean_absolute

Every row of every source is accounted for: scored, or counted under the reason why not. Errors are (predicted −
measured) / measured. A row whose id the profile names as calibration data is counted apart, never scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from program.errors import InputError
from reports.described import DESCRIBED
from validation.conventions import CONVENTIONS, Convention
from validation.feasibility import Feasibility
from validation.forecaster import Forecaster, Predicted
from validation.published import Published
from validation.rows import Case, convert


@dataclass(frozen=True, slots=True)
class RowScore:
    """One row, predicted and measured."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    id: str
    source: str
    anomalous: str
    """Why no model can be held to this row; empty for an ordinary one."""
    measured_step_time_s: float | None
    predicted_step_time_s: float
    interval_s: tuple[float, float]
    step_time_error: float | None
    """(predicted − measured) / measured."""
    measured_memory_gib: float | None
    predicted_memory_gib: float
    """Counted as the source counts: live tensors, held by the allocator, or the whole device."""
    memory_error: float | None
    time: dict[str, float]
    """Where the predicted step goes, fractions."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """Rows left out for one reason."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors over a set of rows, as fractions."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    rows: int
    mean_absolute: float
    median_absolute: float
    bias: float
    """Mean signed error: negative when forecasts are too fast, or too small."""
    worst_row: str
    worst: float
    rank_correlation: float | None
    """Spearman's, of predicted against measured; null below three rows."""
    inside_interval: float | None
    """Share of rows whose measurement lies inside the stated interval; null for memory, which states none."""
    interval_width: float | None
    """Mean of (high − low) / forecast: a wide interval holds everything and says nothing."""


@dataclass(frozen=True, slots=True)
class SourceScore:
    """One source: how many of its rows count, and how far off the forecasts are."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    source: str
    rows: int
    scored: int
    unscored: tuple[Unscored, ...]
    step_time: Errors | None
    step_time_ordinary: Errors | None
    """The same without anomalous rows; null where there are none."""
    memory: Errors | None
    presumed: tuple[str, ...]
    """What the source does not say and was filled in."""
    reading: str
    """How its rows are read."""


@dataclass(frozen=True, slots=True)
class ProfileUsed:
    """A profile that priced rows."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    profile: str
    free_parameters: int
    """Numbers fitted to measurements (measured points are data, not parameters)."""
    calibrated_on: tuple[str, ...]
    """Published training runs used in its fits, by id: none of them is scored."""


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """`windtunnel validate`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    sources: tuple[SourceScore, ...]
    profiles: tuple[ProfileUsed, ...]
    rows: tuple[RowScore, ...]
    feasibility: tuple[Feasibility, ...] = ()
    """Runs that worked or failed against the forecast of memory; empty unless asked for."""


Progress = Callable[[Iterable[Case]], Iterable[Case]]


def scoreboard(
    published: Sequence[Published], forecaster: Forecaster | None = None, progress: Progress | None = None
) -> Scoreboard:
    """Simulate and score rows. `progress` wraps the loop over cases, for a bar on a terminal.

    Raises InputError when a profile that a cluster names does not exist.
    """
    forecaster = forecaster or Forecaster()
    cases = [convert(row) for row in published]
    ready = [case for case in cases if case.run is not None]
    used = profiles_used(ready, forecaster, [row.id for row in published])
    held_out = {name for profile in used for name in profile.calibrated_on}
    reasons = {case.row.id: case.reason for case in cases if case.run is None}
    reasons |= {case.row.id: "calibration data of the profile" for case in ready if case.row.id in held_out}
    scores: list[RowScore] = []
    for case in (progress or list)([case for case in ready if case.row.id not in held_out]):
        try:
            scores.append(score(case, forecaster))
        except InputError as error:  # what a profile cannot price is a reason too
            reasons[case.row.id] = f"cannot be priced: {error.problems[0]}"
    return Scoreboard(_sources(cases, reasons, scores), used, tuple(scores))


def profiles_used(cases: Iterable[Case], forecaster: Forecaster, ids: Sequence[str]) -> tuple[ProfileUsed, ...]:
    """The profiles that price these cases, each once, with those of the rows `ids` that they were fitted on."""
    found: dict[str, ProfileUsed] = {}
    for case in cases:
        assert case.run is not None
        profile = forecaster.profile_of(case.run)
        if profile.name not in found:
            named = [row for source in profile.provenance.values() for row in source.rows]
            found[profile.name] = ProfileUsed(profile.name, profile.free_parameters, training_runs(named, ids))
    return tuple(found.values())


def training_runs(named: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """Of `ids`, in the order of their table, those a profile names, singly or as a range `first..last`. What it names
    of other tables (GEMM rates, collectives) is none of them."""
    place = {name: index for index, name in enumerate(ids)}
    found: set[int] = set()
    for name in named:
        first, _, last = name.partition("..")
        if first in place and (last or first) in place:
            found |= set(range(place[first], place[last or first] + 1))
    return tuple(ids[index] for index in sorted(found))


def score(case: Case, forecaster: Forecaster) -> RowScore:
    """Simulate one case and hold it against what was measured."""
    assert case.run is not None
    predicted: Predicted = forecaster.simulate(case.run)
    memory = predicted.memory_bytes[case.memory_kind]
    return RowScore(
        id=case.row.id,
        source=case.source,
        anomalous=_convention(case.source).anomalous.get(case.row.id, ""),
        measured_step_time_s=case.step_time_s,
        predicted_step_time_s=predicted.step_time_s,
        interval_s=predicted.interval_s,
        step_time_error=_error(predicted.step_time_s, case.step_time_s),
        measured_memory_gib=None if case.memory_bytes is None else case.memory_bytes / 2**30,
        predicted_memory_gib=memory / 2**30,
        memory_error=_error(memory, case.memory_bytes),
        time=predicted.breakdown,
    )


def _error(predicted: float, measured: float | None) -> float | None:
    return None if not measured else predicted / measured - 1.0


def _convention(source: str) -> Convention:
    return next(known for known in CONVENTIONS if known.name == source)


def _sources(cases: Sequence[Case], reasons: dict[str, str], scores: Sequence[RowScore]) -> tuple[SourceScore, ...]:
    return tuple(_source(name, cases, reasons, scores) for name in dict.fromkeys(case.source for case in cases))


def _source(name: str, cases: Sequence[Case], reasons: dict[str, str], scores: Sequence[RowScore]) -> SourceScore:
    own = [case for case in cases if case.source == name]
    rows = [row for row in scores if row.source == name]
    why = Counter(reasons[case.row.id] for case in own if case.row.id in reasons)
    ordinary = [row for row in rows if not row.anomalous]
    known = next((entry for entry in CONVENTIONS if entry.name == name), None)
    return SourceScore(
        source=name,
        rows=len(own),
        scored=len(rows),
        unscored=tuple(Unscored(reason, number) for reason, number in why.most_common()),
        step_time=step_time_errors(rows),
        step_time_ordinary=step_time_errors(ordinary) if len(ordinary) < len(rows) else None,
        memory=memory_errors(rows),
        presumed=tuple(dict.fromkeys(note for case in own if case.run is not None for note in case.presumed)),
        reading=known.why if known else "",
    )


def step_time_errors(rows: Sequence[RowScore]) -> Errors | None:
    """Errors of step time over the rows that have one."""
    timed = [row for row in rows if row.step_time_error is not None and row.measured_step_time_s is not None]
    found = errors(
        [row.id for row in timed],
        [row.predicted_step_time_s for row in timed],
        [row.measured_step_time_s or 0.0 for row in timed],
    )
    if found is None:
        return None
    inside = [row.interval_s[0] <= (row.measured_step_time_s or 0.0) <= row.interval_s[1] for row in timed]
    width = [(row.interval_s[1] - row.interval_s[0]) / row.predicted_step_time_s for row in timed]
    return replace(found, inside_interval=float(np.mean(inside)), interval_width=float(np.mean(width)))


def memory_errors(rows: Sequence[RowScore]) -> Errors | None:
    """Errors of memory over the rows that print it."""
    sized = [row for row in rows if row.measured_memory_gib is not None]
    return errors(
        [row.id for row in sized],
        [row.predicted_memory_gib for row in sized],
        [row.measured_memory_gib or 0.0 for row in sized],
    )


def errors(ids: Sequence[str], predicted: Sequence[float], measured: Sequence[float]) -> Errors | None:
    """Summary of relative errors; None without rows."""
    if not ids:
        return None
    relative = np.array(predicted) / np.array(measured) - 1.0
    worst = int(np.argmax(np.abs(relative)))
    return Errors(
        rows=len(ids),
        mean_absolute=float(np.mean(np.abs(relative))),
        median_absolute=float(np.median(np.abs(relative))),
        bias=float(np.mean(relative)),
        worst_row=ids[worst],
        worst=float(relative[worst]),
        rank_correlation=rank_correlation(predicted, measured),
        inside_interval=None,
        interval_width=None,
    )


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties given their mean rank; None below three pairs or when one side is constant."""
    if len(a) < 3:
        return None
    first, second = _ranks(a), _ranks(b)
    first, second = first - first.mean(), second - second.mean()
    norm = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / norm if norm > 0 else None


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    _, place, count = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2.0)[place], float)
