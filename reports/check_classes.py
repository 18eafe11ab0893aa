"""The time of every operation class in every recorded step, and how much slower the gate finds a class to be."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from program.timeline import Timeline
from program.timeline.skew import split
from reports.check_side import Side
from reports.check_spread import FEWEST, FEWEST_RECORDED, Change, Floats, change, sparse_level, undisturbed_level
from reports.compare import ClassRow
from reports.joining import operation


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


def class_changes(old: ClassRow, new: ClassRow, baseline: Side, run: Side) -> list[Change]:
    """How much slower a class is, and how much slower than the others of its kind, compute or communication: both must
    exceed the tolerance, so that a machine that is slower as a whole is not taken for one operation. Empty where the
    recorded steps cannot say; the first alone where they are few, or nothing else is of its kind."""
    name, few = new.name, min(side.recorded(new.name) for side in (baseline, run))
    if new.predicted_s <= 0 or few < FEWEST_RECORDED:
        return []
    before_s, after_s = baseline.class_s[name], run.class_s[name]
    if not all((times_s.sum(axis=0) > 0).all() for times_s in (before_s, after_s)):
        return []
    expected = math.log(new.predicted_s / old.predicted_s)
    if few < FEWEST:
        return [change(sparse_level(before_s, baseline.kept_s), sparse_level(after_s, run.kept_s), expected)]
    found = [change(undisturbed_level(before_s), undisturbed_level(after_s), expected)]
    others = _others(new, baseline, run)
    if others:
        beside = [np.concatenate([side.class_s[other] for other in others]) for side in (baseline, run)]
        ratios = undisturbed_level(before_s, beside[0]), undisturbed_level(after_s, beside[1])
        forecasts = [sum(_forecast(side)[other] for other in others) for side in (baseline, run)]
        found.append(change(ratios[0], ratios[1], expected - math.log(forecasts[1] / forecasts[0])))
    return found


def _others(row: ClassRow, *sides: Side) -> list[str]:
    """The other classes of its kind that both runs have, in the same steps as it. Where computing ranks share cores
    with somebody, communication, which waits more than it computes, is not slowed with compute."""
    alike = [
        {
            other.name
            for other in side.comparison.classes
            if other.predicted_s > 0 and other.communication == row.communication and other.name != row.name
        }
        for side in sides
    ]
    names = set.intersection(*alike)
    return sorted(name for name in names if all(side.recorded(name) == side.recorded(row.name) for side in sides))


def _forecast(side: Side) -> dict[str, float]:
    return {row.name: row.predicted_s for row in side.comparison.classes}
