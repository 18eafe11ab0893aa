"""A run at several numbers of nodes: the record of `windtunnel forecast --nodes 1,2,4 --json`, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from reports import tables
from reports.described import DESCRIBED
from reports.forecast import Forecast
from reports.forecast_text import assumptions_text, bullet, title, verdict
from reports.tables import count, gib, percent, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

Kind = Literal["strong", "weak"]


@dataclass(frozen=True, slots=True)
class Point(Forecast):
    """The forecast on so many nodes."""

    nodes: int
    efficiency: float
    """Tokens a second and GPU, over those of the first point that is a run."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A number of nodes on which the run is none."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    nodes: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """The share of the step that grows most from the first point to the last."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    name: str
    """A key of `time`."""
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """`windtunnel forecast RUN --nodes 1,2,4`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = DESCRIBED
    scaling: Kind
    """strong: the global batch stays that of the first run; weak: it grows with the nodes."""
    points: tuple[Point | Refused, ...]
    """In the order of `--nodes`."""
    grows_most: Growth | None
    """Null where no share grows, or only one point is a run."""


def point(forecast: Forecast, first: Forecast, nodes: int) -> Point:
    """A forecast as a point, held against the first."""
    efficiency = forecast.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu
    return Point(**{f.name: getattr(forecast, f.name) for f in fields(Forecast)}, nodes=nodes, efficiency=efficiency)


def scaling(kind: Kind, points: Sequence[Point | Refused]) -> Scaling:
    """The record of all points."""
    return Scaling(kind, tuple(points), _growth([each for each in points if isinstance(each, Point)]))


def _growth(points: Sequence[Point]) -> Growth | None:
    if len(points) < 2:
        return None
    names = [f.name for f in fields(points[0].time)]
    shares = [(getattr(points[0].time, name), getattr(points[-1].time, name), name) for name in names]
    first, last, name = max(shares, key=lambda share: share[1] - share[0])
    return Growth(name, first, last) if last > first else None


COLUMNS = ("nodes", "GPUs", "batch", "step", "interval", "tok/s/GPU", "efficiency", "memory GiB", "USD/B tok")


def scaling_text(found: Scaling, width: int = 100, colour: bool = False) -> str:
    """The table of `windtunnel forecast --nodes 1,2,4`."""
    points = [each for each in found.points if isinstance(each, Point)]
    first = points[0]
    kept = "grows with the nodes" if found.scaling == "weak" else "stays"
    head = f"{title(first)}\n{found.scaling} scaling: the global batch {kept}; the lines above are of {_nodes(first)}"
    parts: list[RenderableType] = [head]
    if first.assumptions:
        parts.append(assumptions_text(first.assumptions))
    parts.append(tables.table("", COLUMNS, [_row(each) for each in found.points]))
    if found.grows_most is not None:
        parts.append(_growth_text(found.grows_most, points))
    for heading, lines in _sentences(found.points):
        parts.append("\n".join([heading, *(bullet(line, width) for line in lines)]))
    return tables.render(tables.spaced(parts), width, colour)


def _nodes(point: Point | Refused) -> str:
    return f"{point.nodes} node{'' if point.nodes == 1 else 's'}"


def _row(point: Point | Refused) -> tuple[str, ...]:
    if isinstance(point, Refused):
        return (str(point.nodes), *("-" for _ in COLUMNS[1:]))
    low, high = point.step_time_interval_s
    memory = point.memory
    held = gib(memory.peak_reserved_gib + memory.context_gib)
    trained = point.cost.steps * point.run["plan"]["global_batch_size"] * point.run["model"]["seq_length"]
    return (
        str(point.nodes),
        str(point.gpus),
        str(point.run["plan"]["global_batch_size"]),
        seconds(point.step_time_s),
        _range(seconds(low), seconds(high)),
        count(point.tokens_per_s_per_gpu),
        percent(point.efficiency),
        f"{held} {verdict(memory)}",
        count(point.cost.usd * 1e9 / trained),
    )


def _range(low: str, high: str) -> str:
    """`6.08-8.56 s`; with both units where they differ."""
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low}-{high}"


def _growth_text(growth: Growth, points: Sequence[Point]) -> str:
    shares = f"{percent(growth.first)} of the step on {_nodes(points[0])}, {percent(growth.last)} on"
    return f"what grows most: {growth.name.replace('_', ' ')}, {shares} {_nodes(points[-1])}"


def _sentences(points: Sequence[Point | Refused]) -> list[tuple[str, list[str]]]:
    """What every point says, once, and what stops those that are none."""
    refused = [each for each in points if isinstance(each, Refused)]
    runs = [each for each in points if isinstance(each, Point)]
    found = [("No run on", [f"{_nodes(each)}: {'; '.join(each.problems)}" for each in refused])]
    for heading, name in (("Warnings", "warnings"), ("Not modelled", "not_modelled")):
        found.append((heading, list(dict.fromkeys(line for each in runs for line in getattr(each, name)))))
    common = [line for line in runs[0].notes if all(line in each.notes for each in runs)]
    found.append(("Notes", common))  # the others are arithmetic of their nodes
    return [(heading, lines) for heading, lines in found if lines]
