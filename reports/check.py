"""The scaling-efficiency gate: has a run become slower than its baseline, beyond what the change of plan explains?

Two runs are compared through their twins, the forecasts of both from one profile. A run's *residual* is measured /
predicted step time; the gate fails when the residual grew by more than the tolerance over the baseline's. With an
equal program on both sides this is the plain step-time regression; with a baseline on one device it is the scaling
efficiency E = T(1) / (N·T(N)) held against the efficiency the twin predicts, because E_measured / E_twin is the
same quotient. The verdict names the operation class that moved most: the one whose measured time exceeds, by the
most seconds, its forecast times the baseline's residual of that class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plan.errors import InputError
from reports.compare import Comparison
from reports.described import DESCRIBED


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does in a step: its ranks, its tokens, and the time one device would take according to the twin."""

    world: int
    tokens: int
    one_device_s: float | None


@dataclass(frozen=True, slots=True)
class MovedClass:
    """An operation class in both runs, seconds a step and rank."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    name: str
    measured_s: float
    expected_s: float
    """The run's forecast of the class times the baseline's measured / predicted of it."""
    excess_s: float
    """measured − expected: positive means slower. Of idle time, what slower communication does not explain."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Scaling efficiency T(1) / (N·T(N)) of a step with equal tokens."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    ranks: int
    one_device_s: float | None
    """T(1): measured by the baseline when it ran on one device with the same tokens, else the twin's forecast."""
    one_device_from: str
    """baseline | twin | unknown"""
    measured: float | None
    twin: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of the gate."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    passed: bool
    same_program: bool
    """Whether both runs executed the same step program."""
    tolerance: float
    step_time_s: float
    """Measured, median after warm-up."""
    expected_s: float
    """The run's forecast times the baseline's measured / predicted."""
    slowdown: float
    """step_time_s / expected_s − 1."""
    baseline_s: float
    predicted_s: float
    baseline_predicted_s: float
    efficiency: Efficiency
    moved: str | None
    """The operation class that moved most, when the gate failed."""
    classes: tuple[MovedClass, ...]
    """Every class, largest excess first."""


def check(baseline: Comparison, run: Comparison, work: Work, baseline_work: Work, tolerance: float = 0.1) -> Verdict:
    """Judge `run` against `baseline`; both were compared with forecasts from the same profile.

    Raises InputError when they were not, or when the baseline has more ranks than the run under another program.
    """
    _refuse(baseline, run)
    residual = baseline.step_time.measured_s / baseline.step_time.predicted_s
    expected = run.step_time.predicted_s * residual
    slowdown = run.step_time.measured_s / expected - 1
    classes = _moved(baseline, run, residual)
    passed = slowdown <= tolerance
    return Verdict(
        passed=passed,
        same_program=baseline.program_hash == run.program_hash,
        tolerance=tolerance,
        step_time_s=run.step_time.measured_s,
        expected_s=expected,
        slowdown=slowdown,
        baseline_s=baseline.step_time.measured_s,
        predicted_s=run.step_time.predicted_s,
        baseline_predicted_s=baseline.step_time.predicted_s,
        efficiency=_efficiency(baseline, run, work, baseline_work),
        moved=None if passed or not classes else classes[0].name,
        classes=classes,
    )


def _refuse(baseline: Comparison, run: Comparison) -> None:
    if baseline.predicted_by != run.predicted_by:
        raise InputError(
            f"the baseline's twin is priced by profile {baseline.predicted_by}, the run's by {run.predicted_by}: "
            "name one for both with --profile"
        )
    if baseline.step_time.predicted_s <= 0 or run.step_time.predicted_s <= 0:
        raise InputError("a forecast of 0 s cannot be a yardstick: the profile prices everything at zero")


def _moved(baseline: Comparison, run: Comparison, residual: float) -> tuple[MovedClass, ...]:
    """A class the baseline does not have (no tensor parallelism on one device) is expected to err as the whole step
    did."""
    ratios: Mapping[str, float] = {
        row.name: row.measured_s / row.predicted_s for row in baseline.classes if row.predicted_s > 0
    }
    rows = []
    for row in run.classes:
        expected = row.predicted_s * ratios.get(row.name, residual)
        rows.append(MovedClass(row.name, row.measured_s, expected, row.measured_s - expected))
    old_idle, idle = baseline.compute_idle_s, run.compute_idle_s
    same = baseline.program_hash == run.program_hash
    expected_idle = old_idle[1] if same else max(0.0, idle[0]) * residual
    # Exposed communication also shows as idle time: only what its excess does not explain counts as idle's own.
    slower = sum(max(0.0, row.excess_s) for row, made in zip(rows, run.classes, strict=True) if made.communication)
    excess = idle[1] - expected_idle
    rows.append(MovedClass("compute stream idle", idle[1], expected_idle, max(min(excess, 0.0), excess - slower)))
    return tuple(sorted(rows, key=lambda row: (-row.excess_s, row.name)))


def _efficiency(baseline: Comparison, run: Comparison, work: Work, baseline_work: Work) -> Efficiency:
    measured_one = baseline_work.world == 1 and baseline_work.tokens == work.tokens
    twin_one = baseline.step_time.predicted_s if measured_one else work.one_device_s
    one = baseline.step_time.measured_s if measured_one else twin_one
    return Efficiency(
        ranks=work.world,
        one_device_s=one,
        one_device_from="baseline" if measured_one else "unknown" if one is None else "twin",
        measured=None if one is None else one / (work.world * run.step_time.measured_s),
        twin=None if twin_one is None else twin_one / (work.world * run.step_time.predicted_s),
    )
