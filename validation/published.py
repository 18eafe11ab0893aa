"""Published rows: the measured training configurations of `calibration/published/runs.csv`, read as they stand.

An empty cell was not published; a cell computed from others is in `<column>_derived` and is used where the plain one
is empty. What a missing cell is presumed to be is the business of `conventions`, never of this file.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from program.errors import InputError

COLUMNS = ("file", "set", "id", "gpu", "n_gpus", "layers", "hidden", "tp", "pp", "micro_batch", "step_time_s")


@dataclass(frozen=True, slots=True)
class Published:
    """One published row: its cells as text, without the empty ones."""

    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's name."""
        return self.cells.get("id", "")

    @property
    def file(self) -> str:
        """The source file the row was read from."""
        return self.cells.get("file", "")

    @property
    def set(self) -> str:
        """dev (complete), dev-weak (a field is missing) or dev-feasibility (failed: crashed or out of memory)."""
        return self.cells.get("set", "")

    def text(self, column: str) -> str:
        """A cell, or the value derived for it, or an empty text."""
        return self.cells.get(column, "") or self.cells.get(f"{column}_derived", "")

    def number(self, column: str) -> float | None:
        """A cell as a number; None where it is empty. Raises InputError when it holds something else."""
        text = self.text(column)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise InputError(f"row {self.id}: {column} is {text!r}; a number was expected") from None

    def count(self, column: str) -> int | None:
        """A cell as a whole number; None where it is empty or says something in words."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            return None
        return int(value) if value == int(value) else None

    @property
    def step_time_s(self) -> float | None:
        """Seconds of one optimizer step, as printed or as follows from the printed throughput."""
        return self.number("step_time_s")

    @property
    def memory(self) -> float | None:
        """The printed memory figure, in the source's own unit."""
        return self.number("memory_gb")


def path(name: str = "runs.csv") -> Path:
    """The committed copy of the rows."""
    return Path(str(resources.files("calibration") / "published" / name))


@cache
def bus_bytes_per_s(row_id: str) -> float:
    """The bus bandwidth that a row of `calibration/published/nccl.csv` prints."""
    with path("nccl.csv").open(newline="", encoding="utf-8") as stream:
        return next(float(row["busbw_gbytes_s"]) * 1e9 for row in csv.DictReader(stream) if row["id"] == row_id)


def read(where: str | Path | None = None) -> tuple[Published, ...]:
    """Every row of a file (by default the committed one), in order. Raises InputError when it is not such a file."""
    source = Path(where) if where is not None else path()
    try:
        with source.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{source}: not a table of published runs, it lacks the columns {', '.join(missing)}")
            rows = tuple(Published({k: v for k, v in row.items() if k and v}) for row in reader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source} cannot be read: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not rows:
        raise InputError(f"{source} holds no rows")
    return rows


def named(rows: Sequence[Published], ids: Sequence[str]) -> tuple[Published, ...]:
    """The rows with these ids, in the order asked. Raises InputError naming the nearest id."""
    from program.nearest import nearest_name

    known = {row.id: row for row in rows}
    unknown = [name for name in ids if name not in known]
    if unknown:
        listing = "`windtunnel validate --source NAME --all-rows` names a source's"  # hundreds are no answer
        near = {name: nearest_name(name, known) for name in unknown}
        ends = {name: f"did you mean {found!r}?" if found else listing for name, found in near.items()}
        raise InputError(f"no published row {name!r}: {end}" for name, end in ends.items())
    return tuple(known[name] for name in ids)
