"""Does the forecast know which runs do not fit? Sources that print failed runs, held against the forecast of memory.

A run that worked must be forecast to fit. A run that failed is weaker evidence: the source has one mark for crashes and
for running out of memory, so the share of failed runs forecast not to fit is a lower bound on nothing and only says
whether the forecast can tell the two groups apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plan.run import Run, load
from program.errors import InputError
from reports.described import DESCRIBED
from validation.conventions import convention
from validation.forecaster import Forecaster
from validation.published import Published
from validation.rows import run_dict

FAILED = "dev-feasibility"


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
    undecided: int
    """Rows that are no run the language can say."""


def feasibility(rows: Sequence[Published], forecaster: Forecaster) -> tuple[Feasibility, ...]:
    """Every source among `rows` that has failed runs."""
    sources = {known.name for row in rows if row.set == FAILED and (known := convention(row)) is not None}
    return tuple(_source(name, rows, forecaster) for name in sorted(sources))


def _source(name: str, rows: Iterable[Published], forecaster: Forecaster) -> Feasibility:
    counts = {"ran": [0, 0], "failed": [0, 0]}
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
        outcome = counts["failed" if row.set == FAILED else "ran"]
        outcome[0] += 1
        outcome[1] += fits(run, forecaster)
    (ran, ran_fits), (failed, failed_fits) = counts["ran"], counts["failed"]
    return Feasibility(name, ran, ran_fits, failed, failed - failed_fits, undecided)


def fits(run: Run, forecaster: Forecaster) -> bool:
    """Whether the forecast says the run fits: memory held by the allocator and the device context within the card."""
    return forecaster.memory(run)["device"] <= run.cluster.gpu_memory_gib * 2**30
