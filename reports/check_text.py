"""The gate's verdict as text: the answer first, then the step, the efficiency and the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports import tables
from reports.check import Verdict
from reports.tables import milliseconds, percent, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def check_text(verdict: Verdict, width: int = 100, colour: bool = False) -> str:
    """The report of `windtunnel check`."""
    columns = ("operation class (ms a step, mean over ranks)", "expected", "measured", "excess")
    rows = [(r.name, *map(milliseconds, (r.expected_s, r.measured_s, r.excess_s))) for r in verdict.classes]
    parts: list[RenderableType] = [_head(verdict), tables.table("", columns, rows)]
    return tables.render(tables.spaced(parts), width, colour)


def _head(verdict: Verdict) -> str:
    program = "the same program" if verdict.same_program else "another plan, judged through its twin"
    answer = "passed" if verdict.passed else f"REGRESSION: {verdict.moved or 'the step'} moved most"
    efficiency = verdict.efficiency
    slower, allowed = percent(verdict.slowdown, signed=True), percent(verdict.tolerance)
    twin, own_twin = seconds(verdict.baseline_predicted_s), seconds(verdict.predicted_s)
    lines = [
        f"{answer} ({slower} against the expected step time; {allowed} allowed)",
        f"step time  measured {seconds(verdict.step_time_s)}, expected {seconds(verdict.expected_s)}",
        f"baseline   measured {seconds(verdict.baseline_s)}, twin {twin}; this run's twin {own_twin} ({program})",
    ]
    if efficiency.one_device_s is not None:
        lines.append(
            f"scaling efficiency on {efficiency.ranks} ranks: measured {percent(efficiency.measured)}, "
            f"twin {percent(efficiency.twin)} "
            f"(T(1) {seconds(efficiency.one_device_s)} from the {efficiency.one_device_from})"
        )
    return "\n".join(lines)
