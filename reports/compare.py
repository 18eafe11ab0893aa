"""Predicted against measured: step time, operation classes, pieces, single instructions; worst residuals first,
skew apart.

    comparison = compare(predicted, measured, step_times_s)
    print(comparison.step_time.error, comparison.classes[0].name)

Both timelines come from the same step program (equal hashes), so every instruction has one forecast and one
measurement of the same work, and a difference is a difference in a cost. Errors are predicted − measured; relative
ones are divided by the measured value: +10 % means the forecast was 10 % too slow. Times of a class are sums over
its instructions, as a mean over ranks; they overlap in time, so classes do not sum to the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from program.errors import InputError
from program.timeline import Timeline
from reports.described import DESCRIBED
from reports.joining import Joined, join
from reports.measured import Measured, measure


@dataclass(frozen=True, slots=True)
class StepTime:
    """One optimizer step, predicted and measured."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    predicted_s: float
    """What the simulator says."""
    predicted_interval_s: tuple[float, float] | None
    """Its interval [low, high], where the forecast has one."""
    measured_s: float
    """Median over the steps after warm-up."""
    measured_quartiles_s: tuple[float, float]
    """The middle half of those steps."""
    measured_range_s: tuple[float, float]
    """Fastest and slowest of those steps."""
    steps: int
    """How many steps after warm-up."""
    recorded_s: float | None
    """Median of the steps that were recorded instruction by instruction (recording costs time)."""
    error: float
    """(predicted − measured) / measured."""


@dataclass(frozen=True, slots=True)
class ClassRow:
    """All work of one operation class or piece in a step, mean over ranks."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    name: str
    communication: bool
    instructions: int
    """Instructions of the class over all ranks."""
    predicted_s: float
    measured_s: float
    error_s: float
    """Predicted minus measured, seconds a rank and step."""
    error: float | None
    """Relative to the measured time; null when nothing was measured."""


@dataclass(frozen=True, slots=True)
class InstructionRow:
    """One instruction on one rank: its work without waiting for others."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    rank: int
    id: int
    """The program's global instruction id on that rank."""
    label: str
    """Text form: phase, kind, micro-batch.unit, piece."""
    stream: str
    predicted_s: float
    measured_s: float
    """Median over the recorded steps."""
    measured_range_s: tuple[float, float]
    error_s: float
    error: float | None


@dataclass(frozen=True, slots=True)
class SkewRow:
    """Waiting of a communication class for its last member: somebody's lateness, not a transfer cost."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    name: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A forecast held against a measurement of the same program."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    program_hash: str
    predicted_by: str
    """The profile that priced the forecast."""
    measured_on: str
    """The machine that ran it."""
    world: int
    ranks: tuple[int, ...]
    """Ranks that recorded a timeline."""
    recorded_steps: tuple[int, ...]
    step_time: StepTime
    classes: tuple[ClassRow, ...]
    """By operation class, worst first."""
    pieces: tuple[ClassRow, ...]
    """By phase, kind and piece, worst first."""
    instructions: tuple[InstructionRow, ...]
    """The worst single instructions, largest |error_s| first."""
    skew: tuple[SkewRow, ...]
    """Waiting for late members, largest first."""
    compute_idle_s: tuple[float, float]
    """Time a step without work on the compute stream, mean over ranks: predicted, measured (recorded steps)."""
    machine_drift: dict[str, float]
    """Machine probe at training over the profile's (gemm, copy, launch): above 1 the machine was slower than
    calibrated."""
    only_predicted: int
    """Instructions of the recorded ranks that were forecast but not measured."""
    only_measured: int
    """Instructions measured but not forecast."""


def compare(
    predicted: Timeline,
    measured: Timeline,
    step_times_s: Sequence[float] = (),
    top: int = 12,
    interval_s: tuple[float, float] | None = None,
    probe: Mapping[str, float] | None = None,
) -> Comparison:
    """Hold two timelines of one program against each other.

    `step_times_s`: every step of the run (steps.jsonl), warm-up included; left out, the recorded steps alone count.
    `top`: how many single instructions to list. `probe`: the profile's machine probe. Raises InputError when the
    programs differ or nothing is common.
    """
    refuse_other_program(predicted, measured)
    joined = join(predicted, measured)
    if not joined.rows:
        raise InputError("the two timelines have no instruction in common: was one of them recorded on other ranks?")
    ranks = len(joined.ranks)
    step_time = _step_time(predicted, measured, step_times_s, interval_s)
    worst = sorted(joined.rows, key=lambda row: (-abs(row.error_s), row.rank, row.id))
    return Comparison(
        program_hash=measured.header.program_hash,
        predicted_by=predicted.header.device,
        measured_on=measured.header.device,
        world=_world(measured, joined.ranks),
        ranks=joined.ranks,
        recorded_steps=tuple(sorted(set(measured.ints("step")))),
        step_time=step_time,
        classes=_classes(joined.rows, ranks, "operation"),
        pieces=_classes(joined.rows, ranks, "piece"),
        instructions=tuple(_instruction(row) for row in worst[:top]),
        skew=_skew(joined.rows, ranks),
        compute_idle_s=_idle(joined.rows, ranks, step_time),
        machine_drift=_drift(measured.header.machine_probe, probe or {}),
        only_predicted=joined.only_predicted,
        only_measured=joined.only_measured,
    )


def refuse_other_program(predicted: Timeline, measured: Timeline) -> None:
    """Raise InputError unless both timelines are of one program and of the sources they are taken for."""
    simulated, ran = predicted.header, measured.header
    problems = []
    if simulated.source != "predicted":
        problems.append(f"the first timeline is {simulated.source}, not predicted; give PREDICTED, then MEASURED")
    if ran.source != "measured":
        problems.append(f"the second timeline is {ran.source}, not measured; give PREDICTED, then MEASURED")
    if simulated.program_hash != ran.program_hash:
        problems.append(
            f"the forecast is of program {simulated.program_hash[:16]}, the measurement of {ran.program_hash[:16]}: "
            "instructions with equal ids are not the same work. Was the run file edited, or does another version of "
            "Windtunnel compile it? Train again, or forecast with the version that trained"
        )
    if problems:
        raise InputError(problems)


def _step_time(
    predicted: Timeline, measured: Timeline, times_s: Sequence[float], interval_s: tuple[float, float] | None
) -> StepTime:
    if not predicted.header.step_times_s:
        raise InputError("the predicted timeline has no step time in its header")
    forecast = predicted.header.step_times_s[-1]
    recorded = [value for value in measured.header.step_times_s if value == value]
    found: Measured = measure(times_s or recorded)
    return StepTime(
        predicted_s=forecast,
        predicted_interval_s=interval_s,
        measured_s=found.median_s,
        measured_quartiles_s=found.quartiles_s,
        measured_range_s=found.range_s,
        steps=found.steps,
        recorded_s=float(np.median(recorded)) if recorded else None,
        error=(forecast - found.median_s) / found.median_s,
    )


def _world(measured: Timeline, ranks: tuple[int, ...]) -> int:
    groups = measured.header.groups.get("world") or measured.header.groups.get("model") or ()
    return max([len(ranks), *(rank + 1 for group in groups for rank in group)])


def _classes(rows: Iterable[Joined], ranks: int, by: str) -> tuple[ClassRow, ...]:
    sums: dict[tuple[str, bool], list[float]] = {}
    for row in rows:
        total = sums.setdefault((getattr(row, by), row.communication), [0, 0.0, 0.0])
        total[0] += 1
        total[1] += row.predicted_s / ranks
        total[2] += row.measured_s / ranks
    made = [ClassRow(*name, int(n), p, m, p - m, relative(p, m)) for name, (n, p, m) in sums.items()]
    return tuple(sorted(made, key=lambda row: (-abs(row.error_s), row.name)))


def _instruction(row: Joined) -> InstructionRow:
    return InstructionRow(
        rank=row.rank,
        id=row.id,
        label=row.label,
        stream=row.stream,
        predicted_s=row.predicted_s,
        measured_s=row.measured_s,
        measured_range_s=(row.measured_low_s, row.measured_high_s),
        error_s=row.error_s,
        error=relative(row.predicted_s, row.measured_s),
    )


def _skew(rows: Iterable[Joined], ranks: int) -> tuple[SkewRow, ...]:
    sums: dict[str, list[float]] = {}
    for row in rows:
        if row.predicted_wait_s or row.measured_wait_s:
            total = sums.setdefault(row.operation, [0.0, 0.0])
            total[0] += row.predicted_wait_s / ranks
            total[1] += row.measured_wait_s / ranks
    made = [SkewRow(name, p, m) for name, (p, m) in sums.items()]
    return tuple(sorted(made, key=lambda row: (-max(row.predicted_s, row.measured_s), row.name)))


def _idle(rows: Iterable[Joined], ranks: int, step: StepTime) -> tuple[float, float]:
    busy = [(row.predicted_s, row.measured_s) for row in rows if row.stream == "compute"]
    predicted = step.predicted_s - sum(p for p, _ in busy) / ranks
    measured = (step.recorded_s or step.measured_s) - sum(m for _, m in busy) / ranks
    return predicted, measured


def _drift(today: Mapping[str, float], profile: Mapping[str, float]) -> dict[str, float]:
    """Ratios of what both probed, `gemm_s` named `gemm`."""
    names = [name for name in today if profile.get(name, 0.0) > 0]
    return {name.removesuffix("_s"): today[name] / profile[name] for name in sorted(names)}


def relative(predicted_s: float, measured_s: float) -> float | None:
    """(predicted − measured) / measured, or None without a measurement."""
    return (predicted_s - measured_s) / measured_s if measured_s > 0 else None
