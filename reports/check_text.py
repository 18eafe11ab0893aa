"""The gate's verdict as text: the answer first, then the steps, the efficiency and the classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reports import tables
from reports.check import Verdict
from reports.check_spread import FEWEST
from reports.tables import milliseconds, percent, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType


def check_text(verdict: Verdict, width: int = 100, colour: bool = False) -> str:
    """The report of `windtunnel check`."""
    columns = ("operation class (ms a step, mean over ranks)", "expected", "measured", "excess", "slower by at least")
    rows = [
        (r.name, *map(milliseconds, (r.expected_s, r.measured_s, r.excess_s)), percent(r.at_least, signed=True))
        for r in verdict.classes
    ]
    parts: list[RenderableType] = ["\n".join(_head(verdict)), tables.table("", columns, rows)]
    return tables.render(tables.spaced(parts), width, colour)


def _head(verdict: Verdict) -> Iterator[str]:
    program = "the same program" if verdict.same_program else "another plan, judged through its twin"
    answer = "passed" if verdict.passed else f"REGRESSION: {verdict.moved or 'the step'} moved most"
    slower, allowed = percent(verdict.slowdown, signed=True), percent(verdict.tolerance)
    twin, own_twin = seconds(verdict.baseline_predicted_s), seconds(verdict.predicted_s)
    yield f"{answer} ({slower} against the expected step time; {allowed} allowed)"
    yield f"step time  measured {seconds(verdict.step_time_s)}, expected {seconds(verdict.expected_s)}"
    for change in verdict.step_changes:
        least, most = percent(change.at_least, signed=True), percent(change.at_most, signed=True)
        yield (
            f"{change.quantile} of the steps: {percent(change.slowdown, signed=True)}, with their spread {least} to "
            f"{most}; a slowdown of {percent(change.detectable)} would be found"
        )
    yield f"baseline   measured {seconds(verdict.baseline_s)}, twin {twin}; this run's twin {own_twin} ({program})"
    efficiency = verdict.efficiency
    if efficiency.one_device_s is not None:
        yield (
            f"scaling efficiency on {efficiency.ranks} ranks: measured {percent(efficiency.measured)}, "
            f"twin {percent(efficiency.twin)} "
            f"(T(1) {seconds(efficiency.one_device_s)} from the {efficiency.one_device_from})"
        )
    yield from (f"differs    {difference}" for difference in verdict.differences)
    recorded = min((row.recorded_steps for row in verdict.classes), default=0)
    if recorded < FEWEST:
        yield (
            f"{recorded} recorded steps say little about a class; from {FEWEST} on their own spread counts "
            "(train.record_every: 1)"
        )
