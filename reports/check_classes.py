"""The time of every operation class in every recorded step: what the gate takes a class's spread from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from program.timeline import Timeline
from program.timeline.skew import split
from reports.joining import operation

Floats = NDArray[np.float64]


def class_times_s(steps: Iterable[Timeline]) -> dict[str, Floats]:
    """Seconds of each class, [instructions of all ranks, recorded steps], a sum over instructions being the mean over
    ranks. `steps`: one timeline a recorded step. Communication counts from its last member's start. A step that lacks
    instructions of another (a rank's file is missing) is left out."""
    found = [_ordered(timeline) for timeline in steps]
    most = max((len(names) for names, _ in found), default=0)
    whole = [(names, work_s) for names, work_s in found if len(names) == most]
    if not most:
        return {}
    names = np.array(whole[0][0])
    work_s = np.stack([work_s for _, work_s in whole], axis=1)
    return {str(name): work_s[names == name] for name in np.unique(names)}


def _ordered(timeline: Timeline) -> tuple[list[str], Floats]:
    """Classes and seconds of a step's instructions, in order of rank and id."""
    _, work_s = split(timeline)
    words = list(zip(timeline.text("phase"), timeline.text("kind"), timeline.text("group"), strict=True))
    order = np.lexsort((timeline.columns["id"], timeline.columns["rank"]))
    ranks = len(np.unique(timeline.columns["rank"]))
    return [operation(*words[row]) for row in order.tolist()], work_s[order] / ranks
