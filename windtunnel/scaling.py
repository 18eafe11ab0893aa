"""One run at several numbers of nodes: `windtunnel forecast RUN --nodes 1,2,4 --scaling weak|strong`.

Strong scaling keeps the global batch of the first count that is a run; weak scaling grows it with the nodes. Data
parallelism takes what the nodes add. A count that the rules refuse is a point with its problems.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from program.errors import InputError
from windtunnel import api
from windtunnel.source import RunSource

if TYPE_CHECKING:
    from plan.run import Run
    from reports.scaling import Kind, Scaling

MOST_COUNTS = 64


def counts(text: str) -> list[int]:
    """The numbers of nodes of `--nodes`, each once, in the order given. Raises InputError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 9 for word in words):
        raise InputError(
            f"--nodes {text!r} is not a valid integer, nor several: write 8, or 1,2,4,8 "
            "(windtunnel forecast --help says what there is)"
        )
    found = list(dict.fromkeys(map(int, words)))
    if 0 in found:
        raise InputError(f"--nodes {text}: give at least 1")
    if len(found) > MOST_COUNTS:
        raise InputError(f"--nodes names {len(found)} counts; give at most {MOST_COUNTS}")
    return found


def scaled(source: RunSource, nodes: list[int], kind: Kind, *, profile: Any = None, flops: str = "exact") -> Scaling:
    """The forecast of `source` on each count of `nodes`. Raises InputError when no count is a run, with what is wrong
    at the first."""
    from reports.scaling import Refused, point, scaling

    _refuse_other_sizes(source)
    first: Run | None = None
    found: list[Any] = []
    for count in nodes:
        own = _at(source, count, first, kind)
        try:
            run = own.load()
            simulated = api.simulate(run, profile=profile)
        except InputError as error:
            found.append(Refused(count, tuple(error.problems)))
            continue
        profile = simulated.profile
        first = first or run
        forecast = api.forecast_of(
            simulated, flops=flops, notes=own.notes, warnings=own.warnings, assumptions=own.assumptions
        )
        base = next((each for each in found if not isinstance(each, Refused)), forecast)
        found.append(point(forecast, base, count))
    if first is None:
        raise InputError(found[0].problems)
    return scaling(kind, found)


def _refuse_other_sizes(source: RunSource) -> None:
    """Overrides come last, so one that sizes the cluster would make all points alike."""
    for text in source.overrides:
        key = text.partition("=")[0].strip()
        if key in ("cluster", "cluster.nodes", "cluster.gpus"):
            raise InputError(f"--set {text} and several --nodes both say how large the cluster is; leave one out")


def _at(source: RunSource, nodes: int, first: Run | None, kind: Kind) -> RunSource:
    """The source on so many nodes: data parallelism is what they leave, the batch follows from the first run."""
    more = ["plan.data_parallel=auto"]
    if first is not None:
        more.append(f"plan.global_batch_size={_batch(first, nodes, kind)}")
    overrides = (*source.overrides, *more)
    return replace(source, nodes=nodes, overrides=overrides, notes=[], warnings=[], assumptions=[])


def _batch(first: Run, nodes: int, kind: Kind) -> int:
    """The global batch on so many nodes; a part of a sequence is left out only where model parallelism does not fill
    them, which the rules refuse."""
    batch = first.plan.global_batch_size
    return batch if kind == "strong" else max(1, batch * nodes // first.cluster.nodes)
