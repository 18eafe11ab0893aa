"""A timeline as a .json.gz file: same rows, same bytes."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plan.errors import InputError
from plan.timeline.rows import COLUMNS, DTYPES, WORDS, Clock, Header, Timeline

FORMAT = "windtunnel-timeline"
VERSION = 1


def save(timeline: Timeline, path: str | Path) -> None:
    """Write a .json.gz file. The bytes depend on the timeline alone: no file name, no time stamp."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "header": asdict(timeline.header),
        "words": list(timeline.words),
        "columns": {name: _plain(timeline.columns[name]) for name in COLUMNS},
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as stream:
        stream.write(text.encode())
    target.write_bytes(buffer.getvalue())


def _plain(column: NDArray[Any]) -> list[Any]:
    """JSON has no NaN: an unobserved time is null."""
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f" and np.isnan(column).any():
        values = [None if value != value else value for value in values]
    return values


def load(path: str | Path) -> Timeline:
    """Read what `save` wrote. Raises InputError when the file is missing, damaged, of another format or internally
    inconsistent.
    """
    try:
        with gzip.open(path, "rb") as stream:
            content = json.loads(stream.read())
    except FileNotFoundError:
        raise InputError(f"timeline {path} does not exist") from None
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise InputError(f"timeline {path} is not a gzipped JSON file: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise InputError(
            f"{path} holds {found!r}; expected format {FORMAT!r} version {VERSION}, as `windtunnel train` writes it"
        )
    try:
        columns = {name: np.asarray(content["columns"][name], dtype=DTYPES[name]) for name in COLUMNS}
        timeline = Timeline(_header_of(content["header"]), columns, tuple(content["words"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"timeline {path} is damaged: {error!r}") from None
    problems = list(_problems(timeline))
    if problems:
        raise InputError(f"timeline {path} {problem}" for problem in problems)
    return timeline


def _header_of(raw: Mapping[str, Any]) -> Header:
    values = dict(raw)
    values["clocks"] = {int(rank): Clock(**clock) for rank, clock in values["clocks"].items()}
    values["groups"] = {role: tuple(tuple(ranks) for ranks in groups) for role, groups in values["groups"].items()}
    values["stands_for"] = {int(rank): tuple(ranks) for rank, ranks in values["stands_for"].items()}
    values["steps"], values["step_times_s"] = tuple(values["steps"]), tuple(values["step_times_s"])
    return Header(**values)


def _problems(timeline: Timeline) -> Iterator[str]:
    lengths = {name: len(column) for name, column in timeline.columns.items()}
    if len(set(lengths.values())) > 1:
        yield f"has columns of different lengths: {lengths}"
        return
    for name in WORDS:
        codes = timeline.columns[name]
        if len(codes) and (codes.min() < 0 or codes.max() >= len(timeline.words)):
            yield f"column {name} names words outside its table of {len(timeline.words)}"
            return
    start, end = timeline.columns["start_s"], timeline.columns["end_s"]
    wrong = np.flatnonzero(~(start <= end))
    if len(wrong):
        row = int(wrong[0])
        who = f"rank {timeline.ints('rank')[row]}, {timeline.labels()[row]}"
        yield f"row {row} ({who}) ends at {end[row]} s, not after its start at {start[row]} s"
