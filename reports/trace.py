"""Timelines as a Chrome/Perfetto trace file: open it in https://ui.perfetto.dev, forecast and measurement of a rank
one above the other."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from program.errors import InputError
from program.timeline import Timeline
from program.timeline.chrome_trace import to_chrome


def last_step(timeline: Timeline) -> Timeline:
    """The rows of the last recorded step alone, so that it stands beside a forecast of one step."""
    steps = timeline.columns["step"]
    return timeline.select(steps == steps.max()) if len(timeline) else timeline


def for_ranks(timeline: Timeline, ranks: Sequence[int]) -> Timeline:
    """A folded forecast written out for each of `ranks`, so that every measured rank has its forecast beside it."""
    speaker = {rank: row for row, stands in timeline.header.stands_for.items() for rank in stands}
    columns = timeline.columns["rank"]
    picked = [(rank, np.flatnonzero(columns == speaker.get(rank, rank))) for rank in ranks]
    rows = np.concatenate([rows for _, rows in picked]) if picked else np.empty(0, dtype=np.int64)
    found = {name: column[rows] for name, column in timeline.columns.items()}
    found["rank"] = np.concatenate([np.full(len(rows), rank, dtype=columns.dtype) for rank, rows in picked])
    return Timeline(replace(timeline.header, stands_for={}), found, timeline.words)


def write_comparison(predicted: Timeline, measured: Timeline, path: str | Path) -> Path:
    """Forecast and measurement of every measured rank in one trace file."""
    return write_trace([for_ranks(predicted, sorted(set(measured.ints("rank")))), measured], path)


def write_trace(timelines: Sequence[Timeline], path: str | Path) -> Path:
    """Write the last step of each timeline as one trace; gzipped when the name ends in .gz. Raises InputError when
    it cannot be written."""
    target = Path(path)
    text = json.dumps(
        to_chrome(*(last_step(timeline) for timeline in timelines)), separators=(",", ":"), ensure_ascii=False
    )
    data = text.encode()
    if target.suffix == ".gz":
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream:
            stream.write(data)
        data = buffer.getvalue()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        raise InputError(f"the trace cannot be written to {target}: {error.strerror}") from None
    return target
