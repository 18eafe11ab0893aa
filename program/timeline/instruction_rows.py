"""Header, row, and the timeline that stores rows as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from program import label
from program.errors import InputError

NO_TIME = float("nan")  # a time the source could not observe (issue and ready times of a partial recording)


@dataclass(frozen=True, slots=True)
class Clock:
    """What was subtracted from a rank's clock to reach the first rank's, and the uncertainty of that (seconds)."""

    offset_s: float = 0.0
    error_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Where a timeline comes from.

    `run` is the run as resolved; `device` the profile's name (predicted) or the machine (measured). `groups[role]`
    lists the ranks of each group, which is how rows of one collective find each other. `stands_for[rank]` lists the
    ranks a folded row speaks for (absent: itself). `step_times_s` is one period between two STEPs for each of `steps`.
    """

    source: Literal["predicted", "measured"]
    program_hash: str
    device: str
    run: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[int, Clock] = field(default_factory=dict)
    machine_probe: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    stands_for: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    steps: tuple[int, ...] = (0,)
    step_times_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction on one rank. `group` is the role and `seq` the place on (group, channel) of a communication (""
    and -1: none).
    """

    rank: int
    id: int
    phase: str
    kind: str
    micro: int
    unit: int
    piece: str
    stream: str
    issued_s: float
    ready_s: float
    start_s: float
    end_s: float
    bytes: int = 0
    group: str = ""
    channel: str = ""
    seq: int = -1
    step: int = 0

    @property
    def label(self) -> str:
        """The instruction's text form, `B RS2.5 attn.in`."""
        return label(self.phase, self.kind, self.micro, self.unit, self.piece)


COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(Row))
WORDS = ("phase", "kind", "piece", "stream", "group", "channel")
TIMES = ("issued_s", "ready_s", "start_s", "end_s")
_DEFAULTS = {f.name: f.default for f in fields(Row) if isinstance(f.default, int | str)}
DTYPES = {
    name: np.dtype("i4" if name in WORDS else "f8" if name in TIMES else "i8" if name in ("id", "bytes") else "i4")
    for name in COLUMNS
}


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Header and rows. `columns[name]` is an array of one entry a row; columns named in WORDS hold indices into
    `words`.
    """

    header: Header
    columns: Mapping[str, NDArray[Any]]
    words: tuple[str, ...]

    @classmethod
    def from_columns(cls, header: Header, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Timeline:
        """Rows given as columns (word columns as strings). Columns with a default in Row may be left out."""
        length = len(columns["id"])
        table: dict[str, int] = {}
        stored: dict[str, NDArray[Any]] = {}
        for name in COLUMNS:
            values = columns.get(name)
            if values is None:
                values = [_DEFAULTS[name]] * length
            if len(values) != length:
                raise InputError(f"timeline column {name} has {len(values)} entries; column id has {length}")
            if name in WORDS:
                values = [table.setdefault(str(word), len(table)) for word in values]
            stored[name] = np.asarray(values, dtype=DTYPES[name])
        return cls(header, stored, tuple(table))

    @classmethod
    def from_rows(cls, header: Header, rows: Iterable[Row]) -> Timeline:
        """Rows given one by one."""
        kept = list(rows)
        return cls.from_columns(header, {name: [getattr(row, name) for row in kept] for name in COLUMNS})

    def __len__(self) -> int:
        return len(self.columns["id"])

    def text(self, name: str) -> list[str]:
        """A word column as strings, one a row."""
        return [self.words[code] for code in self.columns[name].tolist()]

    def labels(self) -> list[str]:
        """The text form of every row's instruction."""
        parts = zip(
            self.text("phase"),
            self.text("kind"),
            self.ints("micro"),
            self.ints("unit"),
            self.text("piece"),
            strict=True,
        )
        return [label(*part) for part in parts]

    def ints(self, name: str) -> list[int]:
        """An integer column as Python ints."""
        return [int(value) for value in self.columns[name].tolist()]

    def code(self, word: str) -> int:
        """The code of a word in word columns, or -1 when no row uses it."""
        return self.words.index(word) if word in self.words else -1

    def rows(self) -> Iterator[Row]:
        """Every row, in stored order."""
        lists = [self.text(name) if name in WORDS else self.columns[name].tolist() for name in COLUMNS]
        for values in zip(*lists, strict=True):
            yield Row(*values)

    def select(self, mask: NDArray[np.bool_]) -> Timeline:
        """The rows where `mask` is true, header unchanged."""
        return Timeline(self.header, {name: column[mask] for name, column in self.columns.items()}, self.words)
