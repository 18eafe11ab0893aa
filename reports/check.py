"""The gate: has a run become slower than its baseline, beyond what the plan, the tolerance and the spread explain?

Two runs are compared through their twins, the forecasts of both from one profile: what is expected of the run is its
forecast times the baseline's measured / predicted. With an equal program on both sides this is the plain step-time
regression; with a baseline on one device it is the scaling efficiency T(1) / (N·T(N)) held against the efficiency the
twin predicts, because E_measured / E_twin is the same quotient.

The gate fails when the steps, or the recorded times of one operation class, are slower than the tolerance allows even
at the lower end of what their spread leaves open (`reports.check_spread`). All tests together call two runs of equal
speed a regression with a chance of at most LEVEL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from program.errors import InputError
from program.timeline import Header
from reports.check_classes import class_changes
from reports.check_side import Side, Work
from reports.check_spread import FEWEST, QUANTILES, change, level
from reports.compare import Comparison
from reports.described import DESCRIBED
from reports.measured import MOST_WARM_UP_STEPS

LEVEL = 0.05
"""Half of it for the steps, half for the classes."""
WORTH = 0.005
"""A class regresses when its excess is worth this share of the step."""


@dataclass(frozen=True, slots=True)
class StepChange:
    """How much slower the steps are than expected, at one quantile of them."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    quantile: str
    """median | lower quartile"""
    slowdown: float
    at_least: float
    """The lower end of what the spread of both runs' steps leaves open; above the tolerance the gate fails."""
    at_most: float
    detectable: float
    """The smallest slowdown that would be called a regression in 9 of 10 such pairs of runs."""


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
    recorded_steps: int
    """Steps in which it was recorded, in the run that recorded fewer."""
    slowdown: float | None
    """Of its instructions where the machine disturbed them least; null where the class is not judged by itself."""
    at_least: float | None
    """The lower end of what the spread of its recorded times leaves open; null as above."""
    regressed: bool
    """Whether the gate fails by this class alone."""


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
    level: float
    """The chance that runs of equal speed are called a regression, of all tests together."""
    steps: tuple[int, int]
    """Steps after warm-up: of the baseline, of the run."""
    step_changes: tuple[StepChange, ...]
    differences: tuple[str, ...]
    """What else differs between the runs: machine, versions, the speed that the machine's probe found."""


def check(baseline: Side, run: Side, tolerance: float = 0.1) -> Verdict:
    """Judge `run` against `baseline`; both were compared with forecasts from the same profile.

    Raises InputError when they were not, and when one has too few steps to tell.
    """
    before, after = baseline.comparison, run.comparison
    _refuse(baseline, run)
    residual = before.step_time.measured_s / before.step_time.predicted_s
    expected = after.step_time.predicted_s * residual
    changes = tuple(_step_changes(baseline, run, tolerance))
    classes = _moved(baseline, run, residual, tolerance, max(found.at_most for found in changes))
    passed = not any(found.at_least > tolerance for found in changes) and not any(row.regressed for row in classes)
    return Verdict(
        passed=passed,
        same_program=before.program_hash == after.program_hash,
        tolerance=tolerance,
        step_time_s=after.step_time.measured_s,
        expected_s=expected,
        slowdown=after.step_time.measured_s / expected - 1,
        baseline_s=before.step_time.measured_s,
        predicted_s=after.step_time.predicted_s,
        baseline_predicted_s=before.step_time.predicted_s,
        efficiency=_efficiency(before, after, run.work, baseline.work),
        moved=None if passed or not classes else max(classes, key=lambda row: (row.regressed, row.excess_s)).name,
        classes=classes,
        level=LEVEL,
        steps=(len(baseline.kept_s), len(run.kept_s)),
        step_changes=changes,
        differences=tuple(_differences(baseline.header, run.header)),
    )


def _refuse(baseline: Side, run: Side) -> None:
    before, after = baseline.comparison, run.comparison
    if before.predicted_by != after.predicted_by:
        raise InputError(
            f"the baseline's twin is priced by profile {before.predicted_by}, the run's by {after.predicted_by}: "
            "name one for both with --profile"
        )
    if before.step_time.predicted_s <= 0 or after.step_time.predicted_s <= 0:
        raise InputError("a forecast of 0 s cannot be a yardstick: the profile prices everything at zero")
    few = [
        f"the {name} has {len(side.times_s)} steps, {len(side.kept_s)} of them after warm-up"
        for name, side in (("baseline", baseline), ("run", run))
        if len(side.kept_s) < FEWEST
    ]
    if few:
        raise InputError(
            f"cannot tell: {'; '.join(few)}. The spread of the steps is known from {FEWEST} after warm-up: train both "
            f"for at least {FEWEST + MOST_WARM_UP_STEPS} steps (train.steps)"
        )


def _step_changes(baseline: Side, run: Side, tolerance: float) -> Iterator[StepChange]:
    forecast = math.log(run.comparison.step_time.predicted_s / baseline.comparison.step_time.predicted_s)
    share = LEVEL / 2 / len(QUANTILES)
    for name, quantile in QUANTILES.items():
        found = change(level(baseline.kept_s, quantile), level(run.kept_s, quantile), forecast)
        yield StepChange(name, found.slowdown, *found.bounds(share), found.detectable(share, tolerance))


def _moved(baseline: Side, run: Side, residual: float, tolerance: float, step_at_most: float) -> tuple[MovedClass, ...]:
    """A class the baseline does not have (no tensor parallelism on one device) is expected to err as the whole step
    did."""
    before, after = baseline.comparison, run.comparison
    old = {row.name: row for row in before.classes if row.predicted_s > 0}
    step_s = after.step_time.predicted_s * residual
    rows = []
    for row in after.classes:
        known = old.get(row.name)
        expected = row.predicted_s * (known.measured_s / known.predicted_s if known else residual)
        found = [] if known is None else class_changes(known, row, baseline, run)
        least = min((one.bounds(LEVEL / 2 / len(after.classes))[0] for one in found), default=None)
        slowdown = found[0].slowdown if found else None
        worth = 0.0 if slowdown is None else slowdown * expected / step_s
        # Communication that is slower beside compute costs nothing: the steps must leave room for its excess.
        hidden = row.communication and worth > step_at_most
        regressed = least is not None and least > tolerance and worth >= WORTH and not hidden
        recorded = min(side.recorded(row.name) for side in (baseline, run))
        rows.append(
            MovedClass(
                row.name, row.measured_s, expected, row.measured_s - expected, recorded, slowdown, least, regressed
            )
        )
    rows.append(_idle(before, after, residual, rows))
    return tuple(sorted(rows, key=lambda row: (-row.excess_s, row.name)))


def _idle(before: Comparison, after: Comparison, residual: float, rows: Sequence[MovedClass]) -> MovedClass:
    old_idle, idle = before.compute_idle_s, after.compute_idle_s
    expected = old_idle[1] if before.program_hash == after.program_hash else max(0.0, idle[0]) * residual
    # Exposed communication also shows as idle time: only what its excess does not explain counts as idle's own.
    slower = sum(max(0.0, row.excess_s) for row, made in zip(rows, after.classes, strict=True) if made.communication)
    excess = idle[1] - expected
    own = max(min(excess, 0.0), excess - slower)
    return MovedClass("compute stream idle", idle[1], expected, own, len(after.recorded_steps), None, None, False)


def _efficiency(before: Comparison, after: Comparison, work: Work, baseline_work: Work) -> Efficiency:
    measured_one = baseline_work.world == 1 and baseline_work.tokens == work.tokens
    twin_one = before.step_time.predicted_s if measured_one else work.one_device_s
    one = before.step_time.measured_s if measured_one else twin_one
    return Efficiency(
        ranks=work.world,
        one_device_s=one,
        one_device_from="baseline" if measured_one else "unknown" if one is None else "twin",
        measured=None if one is None else one / (work.world * after.step_time.measured_s),
        twin=None if twin_one is None else twin_one / (work.world * after.step_time.predicted_s),
    )


def _differences(before: Header, after: Header) -> Iterator[str]:
    """Machine and versions as the recorded timelines name them; a probe more than a tenth apart."""
    if before.device != after.device:
        yield f"machine: {before.device}, now {after.device}"
    for name in sorted(before.versions.keys() | after.versions.keys()):
        old, new = (header.versions.get(name, "unknown") for header in (before, after))
        if old != new:
            yield f"{name}: {old}, now {new}"
    for name in sorted(before.machine_probe.keys() & after.machine_probe.keys()):
        old_s, new_s = before.machine_probe[name], after.machine_probe[name]
        if old_s > 0 and abs(new_s / old_s - 1) > 0.1:
            yield f"the machine's {name.removesuffix('_s')} probe took {new_s / old_s:.2f} times the baseline's"
