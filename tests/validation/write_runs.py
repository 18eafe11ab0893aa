"""Writes every FSDP row that the scoreboard prices as a run file: `python -m tests.validation.write_runs` at the root.

A source is one run file, `rows/SOURCE.yaml`, with what its rows have in common, and `rows/SOURCE.csv` with what each
row sets: `windtunnel forecast rows/SOURCE.yaml --set plan.micro_batch_size=2 …` is the row's forecast.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from validation import published
from validation.published import Published
from validation.rows import convert, run_dict

SOURCES = ("torchtitan", "fms-fsdp", "llm-foundry")
FOLDER = Path(__file__).parent / "rows"


def priced(source: str) -> dict[str, Published]:
    """The rows of a source that the scoreboard prices, by id."""
    cases = (convert(row) for row in published.read())
    return {case.row.id: case.row for case in cases if case.source == source and case.run is not None}


def overrides(source: str) -> dict[str, list[str]]:
    """What each row of a source sets over its run file, by id."""
    with (FOLDER / f"{source}.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {row.pop("id"): [f"{key}={value}" for key, value in row.items() if value] for row in rows}


def _dotted(raw: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _write(source: str) -> None:
    stated = {name: dict(_dotted(run_dict(row))) for name, row in priced(source).items()}
    if not stated:
        return
    keys = dict.fromkeys(key for row in stated.values() for key in row)
    common = {key for key in keys if len({str(row.get(key)) for row in stated.values()}) == 1}
    first, base = next(iter(stated.values())), {}
    for key in (key for key in keys if key in common):
        *path, name = key.split(".")
        place = base
        for part in path:
            place = place.setdefault(part, {})
        place[name] = first[key]
    with (FOLDER / f"{source}.yaml").open("w", encoding="utf-8") as stream:
        stream.write(f"# {source}: what its published rows have in common (tests/validation/write_runs.py)\n")
        yaml.safe_dump(base, stream, sort_keys=False, default_flow_style=None, width=110)
    with (FOLDER / f"{source}.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["id", *(key for key in keys if key not in common)], extrasaction="ignore",
                                lineterminator="\n")  # fmt: skip
        writer.writeheader()
        for name, row in stated.items():
            writer.writerow({"id": name, **{k: _text(v) for k, v in row.items()}})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    for source in SOURCES:
        _write(source)
        print(source, len(overrides(source)) if (FOLDER / f"{source}.yaml").exists() else 0)
