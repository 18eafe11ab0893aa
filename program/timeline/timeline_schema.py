"""The file edge of what a run recorded, as pydantic models: the line of a step in steps.jsonl, the header of a
timeline; and what a timeline's columns may hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from program.errors import InputError
from program.files import refuse_unreadable
from program.nearest import did_you_mean, kind_of, shown
from program.timeline.instruction_rows import COLUMNS, DTYPES, TIMES, WORDS, Clock, Header

LONGEST_S = 4e9  # of any time, from zero: 127 years, and still whole nanoseconds in 64 bits
Seconds = Annotated[float, Field(ge=-LONGEST_S, le=LONGEST_S, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]
Rank = Annotated[int, Field(ge=0, lt=2**31)]
LEAST = {"micro": -(2**31), "unit": -(2**31), "seq": -1}  # of the integer columns; the others begin at 0


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepLine(BaseModel):
    """What is read of a step's line; the others of its keys are for people."""

    model_config = ConfigDict(extra="allow", frozen=True)
    step: Rank | None = None
    step_time_s: Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]
    loss: Annotated[float, Field(strict=True)] | None = None


def step_of(raw: object, where: str) -> dict[str, Any]:
    """A step's line as it stands. Raises InputError naming every key that is wrong."""
    if not isinstance(raw, dict):
        raise InputError(f"{where} holds {kind_of(raw)}; a step is an object with step_time_s")
    refuse_unreadable(raw, where)
    try:
        StepLine.model_validate(raw)
    except ValidationError as error:
        raise InputError(_sentence(problem, where, StepLine) for problem in error.errors()) from None
    return raw


class ClockFile(_Part):
    offset_s: Seconds = 0.0
    error_s: Positive = 0.0


class HeaderFile(_Part):
    """`Header`, as JSON has it."""

    source: Literal["predicted", "measured"]
    program_hash: str
    device: str
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}
    clocks: dict[Rank, ClockFile] = {}
    machine_probe: dict[str, Positive] = {}
    groups: dict[str, list[tuple[Rank, ...]]] = {}
    stands_for: dict[Rank, tuple[Rank, ...]] = {}
    steps: tuple[Rank, ...] = (0,)
    step_times_s: tuple[Positive, ...] = ()


def header_of(raw: object, where: str) -> Header:
    """The header of a file. Raises InputError naming every key that is wrong."""
    try:
        file = HeaderFile.model_validate(raw)
    except ValidationError as error:
        raise InputError(
            _sentence(problem, where, HeaderFile, ("header",)) for problem in error.errors()[:20]
        ) from None
    clocks = {rank: Clock(clock.offset_s, clock.error_s) for rank, clock in file.clocks.items()}
    groups = {role: tuple(members) for role, members in file.groups.items()}
    return Header(**{name: getattr(file, name) for name in HeaderFile.model_fields} | {
        "clocks": clocks, "groups": groups,
    })  # fmt: skip


def _sentence(problem: Any, where: str, model: type[BaseModel], inside: tuple[str, ...] = ()) -> str:
    path = ".".join([*inside, *map(str, problem["loc"])])
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key {path}; {did_you_mean(str(problem['loc'][-1]), list(model.model_fields))}"
    if problem["type"] == "missing":
        return f"{where} has no {path}"
    message = str(problem["msg"])
    return f"{where}: {path or 'it'} is {shown(problem['input'])}: {message[0].lower()}{message[1:]}"


def column_problems(columns: Mapping[str, NDArray[Any]], words: int) -> Iterator[str]:
    """What is wrong with the columns of a file: missing, of another type, of different lengths, out of range."""
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        yield f"has no column {', '.join(missing)}"
        return
    lengths = {name: len(columns[name]) for name in COLUMNS}
    if len(set(lengths.values())) > 1:
        yield f"has columns of different lengths: {lengths}"
        return
    for name in COLUMNS:
        if len(columns[name]):
            yield from _column_problem(name, columns[name], words)


def _column_problem(name: str, column: NDArray[Any], words: int) -> Iterator[str]:
    if name in TIMES:
        wrong = ~(np.abs(column) <= LONGEST_S)
        if name in ("issued_s", "ready_s"):  # a time that was not observed
            wrong &= ~np.isnan(column)
        if wrong.any():
            yield _of_row(name, column, wrong, f"at most {LONGEST_S:.0e} s from zero")
        return
    if column.dtype.kind == "f":
        wrong = column != np.rint(column)
        if wrong.any():
            yield _of_row(name, column, wrong, "whole")
            return
    if name in WORDS:
        if column.min() < 0 or column.max() >= words:
            yield f"column {name} names words outside its table of {words}"
        return
    least, most = LEAST.get(name, 0), min(10**18, 2 ** (8 * DTYPES[name].itemsize - 1) - 1)
    wrong = (column < least) | (column > most)
    if wrong.any():
        yield _of_row(name, column, wrong, f"from {least} to {most}")


def _of_row(name: str, column: NDArray[Any], wrong: NDArray[np.bool_], rule: str) -> str:
    row = int(np.flatnonzero(wrong)[0])
    return f"column {name} holds {column[row]!s} in row {row}; it must be {rule}"
