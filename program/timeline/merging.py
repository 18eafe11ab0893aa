"""One timeline of several: each rank writes its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from program.errors import InputError
from program.timeline.instruction_rows import COLUMNS, WORDS, Header, Timeline


def merge(timelines: Sequence[Timeline]) -> Timeline:
    """One timeline of several of the same program (each rank writes its own); clocks and probes are united.

    Raises InputError when there is none, or when they are of different programs or sources.
    """
    if not timelines:
        raise InputError("there is no timeline to merge")
    first = timelines[0].header
    for other in timelines[1:]:
        if (other.header.program_hash, other.header.source) != (first.program_hash, first.source):
            raise InputError(
                f"timelines of program {first.program_hash} ({first.source}) and {other.header.program_hash} "
                f"({other.header.source}) cannot be merged: record all ranks in one run"
            )
    clocks = {rank: clock for t in timelines for rank, clock in t.header.clocks.items()}
    steps = dict(sorted({pair for t in timelines for pair in _steps(t.header)}))
    header = Header(**{f.name: getattr(first, f.name) for f in fields(Header)} | {
        "clocks": dict(sorted(clocks.items())),
        "steps": tuple(steps),
        "step_times_s": tuple(time for time in steps.values() if time is not None),
    })  # fmt: skip
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        if name in WORDS:
            columns[name] = [word for t in timelines for word in t.text(name)]
        else:
            columns[name] = np.concatenate([t.columns[name] for t in timelines])
    return Timeline.from_columns(header, columns)


def _steps(header: Header) -> list[tuple[int, float | None]]:
    times: tuple[float | None, ...] = header.step_times_s or (None,) * len(header.steps)
    return list(zip(header.steps, times, strict=False))
