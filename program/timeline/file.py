"""A timeline as a .json.gz file: same rows, same bytes."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program.errors import InputError
from program.files import chunks_of
from program.nearest import did_you_mean, shown
from program.timeline.instruction_rows import COLUMNS, DTYPES, Timeline
from program.timeline.scanning import Scanner

FORMAT = "windtunnel-timeline"
VERSION = 1
KEYS = ("format", "version", "header", "words", "columns")


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
    """Read what `save` wrote, as a stream of at most `program.files.most_bytes()`. Raises InputError when the file is
    missing, damaged, too long, of another format or internally inconsistent.
    """
    from program.timeline.timeline_schema import (
        column_problems,
        header_of,
    )  # pydantic, where there is something to read

    content = _content(Scanner(chunks_of(Path(path), packed=True), f"timeline {path}"))
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise InputError(
            f"{path} holds {shown(content.get('format'))} version {shown(content.get('version'))}; expected format "
            f"{FORMAT!r} version {VERSION}, as `windtunnel train` writes it"
        )
    header = header_of(content.get("header"), f"timeline {path}")
    words, columns = content.get("words"), content.get("columns") or {}
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"timeline {path} has no list of words")
    problems = list(column_problems(columns, len(words)))
    if not problems:
        stored = {name: columns[name].astype(DTYPES[name]) for name in COLUMNS}
        timeline = Timeline(header, stored, tuple(words))
        problems = list(_problems(timeline))
    if problems:
        raise InputError(f"timeline {path} {problem}" for problem in problems)
    return timeline


def _content(scanner: Scanner) -> dict[str, Any]:
    """The keys of a file, columns as arrays."""
    content: dict[str, Any] = {}
    for key in scanner.fields():
        known = key in ("format", "version", "header", "words")
        content[key] = scanner.value() if known else _columns(scanner, key)
    scanner.end()
    return content


def _columns(scanner: Scanner, key: str) -> dict[str, NDArray[Any]]:
    if key != "columns":
        raise InputError(f"{scanner.where} has an unknown key {shown(key)}; {did_you_mean(key, KEYS)}")
    columns = {}
    for name in scanner.fields():
        if name not in COLUMNS:
            raise InputError(f"{scanner.where} has an unknown column {shown(name)}; {did_you_mean(name, COLUMNS)}")
        columns[name] = scanner.numbers()
    return columns


def _problems(timeline: Timeline) -> Iterator[str]:
    start, end = timeline.columns["start_s"], timeline.columns["end_s"]
    wrong = np.flatnonzero(~(start <= end))
    if len(wrong):
        row = int(wrong[0])
        who = f"rank {timeline.ints('rank')[row]}, {timeline.labels()[row]}"
        yield f"row {row} ({who}) ends at {end[row]} s, not after its start at {start[row]} s"
