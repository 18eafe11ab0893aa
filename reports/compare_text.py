"""A comparison as text: the step, then classes, pieces and instructions with the worst residual first, then waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports import tables
from reports.compare import ClassRow, Comparison, InstructionRow
from reports.tables import milliseconds, percent, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def compare_text(comparison: Comparison, width: int = 100, colour: bool = False, pieces: int = 12) -> str:
    """The report of `windtunnel compare`."""
    columns = ("rank", "instruction", "stream", "predicted", "measured", "lowest", "highest", "error")
    parts: list[RenderableType] = [
        _head(comparison),
        _classes("Operation classes, worst first (ms a step, mean over ranks)", comparison.classes),
        _classes("Pieces, worst first", comparison.pieces[:pieces]),
        tables.table("Instructions, worst first (ms)", columns, map(_instruction, comparison.instructions), left=3),
    ]
    if comparison.skew:
        rows = [(row.name, milliseconds(row.predicted_s), milliseconds(row.measured_s)) for row in comparison.skew]
        parts += [
            tables.table(
                "Skew: waiting for late members, not part of the errors above (ms)",
                ("waiting in", "predicted", "measured"),
                rows,
            )
        ]
    return tables.render(tables.spaced(parts), width, colour)


def _head(comparison: Comparison) -> str:
    step = comparison.step_time
    interval = ""
    if step.predicted_interval_s:
        low, high = step.predicted_interval_s
        inside = "inside" if low <= step.measured_s <= high else "outside"
        interval = f" [{seconds(low)}, {seconds(high)}], measured is {inside}"
    quarter, three_quarters, lowest, highest = map(seconds, step.measured_quartiles_s + step.measured_range_s)
    idle, real_idle = map(seconds, comparison.compute_idle_s)
    lines = [
        f"program {comparison.program_hash[:16]}, {comparison.world} ranks",
        f"forecast from profile {comparison.predicted_by}; measured on {comparison.measured_on}",
        f"step time  predicted {seconds(step.predicted_s)}{interval}",
        f"           measured  {seconds(step.measured_s)}, median of {step.steps} steps after warm-up",
        f"                     middle half {quarter} to {three_quarters}, range {lowest} to {highest}",
        f"           error     {percent(step.error, signed=True)}   ((predicted − measured) / measured)",
        f"compute stream idle: predicted {idle}, measured {real_idle} a step",
    ]
    if step.recorded_s is not None:
        steps = ", ".join(map(str, comparison.recorded_steps))
        lines.append(f"instructions were recorded in steps {steps}, which took {seconds(step.recorded_s)} (median)")
    if comparison.machine_drift:
        drift = ", ".join(f"{name} {ratio:.2f}" for name, ratio in comparison.machine_drift.items())
        lines.append(f"machine probe of the day over the profile's: {drift} (1 = as fast as when it was calibrated)")
    if comparison.only_predicted or comparison.only_measured:
        lines.append(
            f"not compared: {comparison.only_predicted} instructions only in the forecast, "
            f"{comparison.only_measured} only in the measurement"
        )
    return "\n".join(lines)


def _classes(title: str, rows: tuple[ClassRow, ...]) -> RenderableType:
    columns = ("", "instructions", "predicted", "measured", "difference", "error")
    return tables.table(title, columns, [_class(row) for row in rows])


def _class(row: ClassRow) -> tuple[str, ...]:
    times = (milliseconds(row.predicted_s), milliseconds(row.measured_s), milliseconds(row.error_s))
    return (row.name, str(row.instructions), *times, percent(row.error, signed=True))


def _instruction(row: InstructionRow) -> tuple[str, ...]:
    times = (milliseconds(row.predicted_s), milliseconds(row.measured_s), *map(milliseconds, row.measured_range_s))
    return (str(row.rank), f"{row.id} {row.label}", row.stream, *times, percent(row.error, signed=True))
