"""Does the forecast know which runs do not fit? Sources that print failed runs, held against the forecast of memory.

A run that worked must be forecast to fit. A run that failed is weaker evidence: the source has one mark for crashes and
for running out of memory, so the share of failed runs forecast not to fit is a lower bound on nothing and only says
whether the forecast can tell the two groups apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plan.run import Run, load
from program.errors import InputError
from reports.described import DESCRIBED
from validation.conventions import convention
from validation.forecaster import Forecaster
from validation.published import Published
from validation.rows import run_dict

FAILED = "dev-feasibility"
Verdict = Literal["fits", "borderline", "does not fit"]


@dataclass(frozen=True, slots=True)
class Feasibility:
    """One source's runs by outcome and forecast."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    source: str
    ran: int
    ran_forecast_to_fit: int
    failed: int
    """Crashed or out of memory: the source does not say which."""
    failed_forecast_not_to_fit: int
    ran_borderline: int
    failed_borderline: int
    """Borderline verdicts, which the counts above leave out of those forecast to fit and not to fit."""
    undecided: int
    """Rows that are no run the language can say."""


def feasibility(rows: Sequence[Published], forecaster: Forecaster) -> tuple[Feasibility, ...]:
    """Every source among `rows` that has failed runs."""
    sources = {known.name for row in rows if row.set == FAILED and (known := convention(row)) is not None}
    return tuple(_source(name, rows, forecaster) for name in sorted(sources))


def _source(name: str, rows: Iterable[Published], forecaster: Forecaster) -> Feasibility:
    counts = {(failed, said): 0 for failed in (False, True) for said in ("fits", "borderline", "does not fit")}
    undecided = 0
    for row in rows:
        known = convention(row)
        if known is None or known.name != name:
            continue
        try:
            run = load(run_dict(row))
        except InputError:
            undecided += 1
            continue
        counts[row.set == FAILED, verdict(run, forecaster)] += 1
    ran, failed = (sum(many for (f, _), many in counts.items() if f is which) for which in (False, True))
    return Feasibility(
        source=name,
        ran=ran,
        ran_forecast_to_fit=counts[False, "fits"],
        failed=failed,
        failed_forecast_not_to_fit=counts[True, "does not fit"],
        ran_borderline=counts[False, "borderline"],
        failed_borderline=counts[True, "borderline"],
        undecided=undecided,
    )


def verdict(run: Run, forecaster: Forecaster) -> Verdict:
    """What the forecast says of device memory."""
    held, capacity = forecaster.held(run), run.cluster.gpu_memory_gib * 2**30
    if held.borderline(capacity, 0.0):
        return "borderline"
    return "fits" if held.fits(capacity, 0.0) else "does not fit"
