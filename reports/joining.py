"""Two timelines of one program, joined instruction by instruction.

A predicted row and the measured rows of the recorded steps belong together when rank and instruction id are equal;
a folded forecast answers for the ranks its rows stand for. What is compared is a row's *work*: for a communication
its transfer (from the last member's start), for anything else start to end. Waiting for late members is kept apart
as skew. Over recorded steps the median counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from program import label
from program.timeline import Timeline
from program.timeline.skew import split

Floats = NDArray[np.float64]
PIPELINE_ROLES = ("pp_next", "pp_prev")
_BACKWARD = {"I": "input gradient", "W": "weight gradient", "B": "backward"}
_ROLES = {"tp": "tensor", "dp": "data", "embed": "embedding", "model": "norm", "world": "norm"}


@dataclass(frozen=True, slots=True)
class Joined:
    """One instruction on one rank: seconds of work and of waiting, as predicted and as measured (median of the
    recorded steps)."""

    rank: int
    id: int
    label: str
    operation: str
    piece: str
    stream: str
    communication: bool
    predicted_s: float
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    predicted_wait_s: float
    measured_wait_s: float

    @property
    def error_s(self) -> float:
        """Predicted minus measured: positive means the forecast was too slow."""
        return self.predicted_s - self.measured_s


@dataclass(frozen=True, slots=True)
class Join:
    """Every instruction that both timelines have, and how many only one has."""

    rows: tuple[Joined, ...]
    only_predicted: int
    only_measured: int
    ranks: tuple[int, ...]


def operation(phase: str, kind: str, group: str) -> str:
    """The operation class of an instruction: what it does, not where it stands."""
    if group in PIPELINE_ROLES:
        return "pipeline transfer"
    if group:
        return f"{_ROLES.get(group, group)} {kind}"
    if phase == "F":
        return "loss" if kind == "LOSS" else "forward"
    if phase == "R":
        return "recompute"
    if phase in ("B", "W"):
        return _BACKWARD.get(kind, "backward")
    return "optimizer"


def join(predicted: Timeline, measured: Timeline) -> Join:
    """Both timelines by (rank, instruction id), in order of rank and id."""
    simulated, ran = _by_instruction(predicted), _by_instruction(measured)
    speaker = {rank: row for row, ranks in predicted.header.stands_for.items() for rank in ranks}
    ranks = sorted({rank for rank, _ in ran})
    rows = list(_rows(simulated, ran, speaker))
    expected = sum(1 for rank in ranks for _ in _of_rank(simulated, speaker.get(rank, rank)))
    return Join(tuple(rows), expected - len(rows), len(ran) - len(rows), tuple(ranks))


def _rows(
    simulated: dict[tuple[int, int], _Work], ran: dict[tuple[int, int], _Work], speaker: dict[int, int]
) -> Iterator[Joined]:
    for (rank, number), real in sorted(ran.items(), key=lambda item: item[0]):
        twin = simulated.get((speaker.get(rank, rank), number))
        if twin is None or twin.name != real.name:
            continue
        phase, kind, micro, unit, piece, stream, group = real.name
        yield Joined(
            rank=rank,
            id=number,
            label=label(phase, kind, micro, unit, piece),
            operation=operation(phase, kind, group),
            piece=f"{phase} {kind} {piece}",
            stream=stream,
            communication=bool(group),
            predicted_s=twin.work_s,
            measured_s=real.work_s,
            measured_low_s=real.low_s,
            measured_high_s=real.high_s,
            predicted_wait_s=twin.wait_s,
            measured_wait_s=real.wait_s,
        )


def _of_rank(simulated: dict[tuple[int, int], _Work], rank: int) -> Iterator[tuple[int, int]]:
    return (key for key in simulated if key[0] == rank)


@dataclass(frozen=True, slots=True)
class _Work:
    """An instruction over the recorded steps."""

    name: tuple[Any, ...]
    work_s: float
    low_s: float
    high_s: float
    wait_s: float


def _by_instruction(timeline: Timeline) -> dict[tuple[int, int], _Work]:
    wait_s, work_s = split(timeline)
    ranks, ids = timeline.ints("rank"), timeline.ints("id")
    samples: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(ranks, ids, strict=True)):
        samples.setdefault(key, []).append(row)
    words: list[list[Any]] = [
        timeline.text("phase"),
        timeline.text("kind"),
        timeline.ints("micro"),
        timeline.ints("unit"),
    ]
    words += [timeline.text("piece"), timeline.text("stream"), timeline.text("group")]
    return {
        key: _work(rows, tuple(column[rows[0]] for column in words), work_s, wait_s) for key, rows in samples.items()
    }


def _work(rows: list[int], name: tuple[Any, ...], work_s: Floats, wait_s: Floats) -> _Work:
    if len(rows) == 1:
        value = float(work_s[rows[0]])
        return _Work(name, value, value, value, float(wait_s[rows[0]]))
    values = work_s[rows]
    return _Work(
        name, float(np.median(values)), float(values.min()), float(values.max()), float(np.median(wait_s[rows]))
    )
