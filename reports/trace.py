"""Timelines as a Chrome/Perfetto trace file: open it in https://ui.perfetto.dev, forecast and measurement of a rank
one above the other."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

from plan.errors import InputError
from plan.timeline import Timeline, to_chrome


def last_step(timeline: Timeline) -> Timeline:
    """The rows of the last recorded step alone, so that it stands beside a forecast of one step."""
    steps = timeline.columns["step"]
    return timeline.select(steps == steps.max()) if len(timeline) else timeline


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
