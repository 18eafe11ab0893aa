"""The timeline: what each stream of each rank did when, in one format for a forecast and for a measurement.

    timeline = Timeline.from_rows(header, rows)      # or from_columns, 20 times faster for a whole program
    save(timeline, "timeline/step-000097.json.gz")   # same rows, same bytes

Made from it: a collective's wait apart from its transfer, and the period of a step (`plan.skew`); both timelines side
by side in Perfetto (`plan.chrome_trace`).

A row is one instruction of one rank, named by the program's global instruction id, so that prediction and measurement
join on (rank, id). Rows are stored as columns: numbers in numpy arrays, words as codes into one table. Times are
seconds on the clock of the first rank; `header.clocks` says what was subtracted from each rank's own clock to get
there, and how far off that may be.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plan.errors import InputError
from plan.program import label

FORMAT = "windtunnel-timeline"
VERSION = 1
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
_DTYPES = {
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
            stored[name] = np.asarray(values, dtype=_DTYPES[name])
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
        columns = {name: np.asarray(content["columns"][name], dtype=_DTYPES[name]) for name in COLUMNS}
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
