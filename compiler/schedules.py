"""When stages talk to their neighbours, for any pipeline schedule.

A schedule (`plan.pipeline`) is only an order of compute slots for each stage. The order of sends and receives follows
from it by one rule (`place_transfers`): give every transfer the abstract time at which its producer ends, and let every
stage issue its transfers in that one global order. Host order over all communicators is then acyclic across
ranks, as NCCL asks, for any schedule; receives are posted as early as one compute slot ahead where the rule allows.

A step of many micro-batches is its fill and drain around a steady state. `placements` then schedules a short step and
one that is a repetition longer, and says how often more to repeat; `compiler.repeat` checks that what was repeated once
can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from plan.parallel import Plan
from plan.pipeline import Slot, abstract_ends, orders, schedule

FEWEST = 4  # repetitions that are worth writing as one


class Transfer(NamedTuple):
    """One activation or gradient between neighbouring virtual stages; the field order is the global order."""

    time: int
    backward: bool
    source: int  # stage
    micro: int
    chunk: int  # of the producer
    target: int  # stage
    target_chunk: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A stage's schedule with its transfers: `receives[i]` are posted before slot i, `sends[i]` issued after it.

    `steady` says how it stands for a longer step, where it does.
    """

    slots: tuple[Slot, ...]
    receives: tuple[tuple[Transfer, ...], ...]
    sends: tuple[tuple[Transfer, ...], ...]
    steady: Steady | None = None

    def alike(self, other: Placement, slot: int) -> bool:
        """Whether two schedules have the same slot with the same transfers at a position."""
        if slot >= min(len(self.slots), len(other.slots)):
            return False
        mine, theirs = ((p.slots[slot], p.receives[slot], p.sends[slot]) for p in (self, other))
        return mine == theirs


@dataclass(frozen=True, slots=True)
class Steady:
    """The step that a `stage`'s short schedule stands for is `times` repetitions longer. `longer` has one more; `whole`
    makes those of the step for all stages, once."""

    longer: Placement
    times: int
    whole: Callable[[], tuple[Placement, ...]]
    stage: int


def _transfers(stages: tuple[tuple[Slot, ...], ...], chunks: int) -> dict[tuple[int, Slot], Transfer]:
    """The transfer each slot's result makes, by producer; none inside one stage."""
    p, ends = len(stages), abstract_ends(stages, chunks)
    made: dict[tuple[int, Slot], Transfer] = {}
    if p == 1:
        return made
    for (stage, slot), end in ends.items():
        backward = slot.phase != "F"
        there = slot.chunk * p + stage + (-1 if backward else 1)
        if slot.phase != "W" and 0 <= there < p * chunks:
            made[stage, slot] = Transfer(end, backward, stage, slot.micro, slot.chunk, there % p, there // p)
    return made


def place_transfers(stages: tuple[tuple[Slot, ...], ...], chunks: int) -> tuple[Placement, ...]:
    """Every stage's schedule with its sends and receives in the one global order."""
    made = _transfers(stages, chunks)
    incoming: list[list[Transfer]] = [[] for _ in stages]
    for transfer in made.values():
        incoming[transfer.target].append(transfer)
    return tuple(_place(stage, slots, made, sorted(incoming[stage])) for stage, slots in enumerate(stages))


def _place(
    stage: int, slots: tuple[Slot, ...], made: dict[tuple[int, Slot], Transfer], incoming: list[Transfer]
) -> Placement:
    sends = [made.get((stage, slot)) for slot in slots]
    outgoing = sorted((t, i) for i, t in enumerate(sends) if t is not None)
    where = {slot.crossing: i for i, slot in enumerate(slots)}
    receives: list[list[Transfer]] = [[] for _ in slots]
    latest, following = len(slots), len(outgoing)
    for transfer in reversed(incoming):
        while following > 0 and outgoing[following - 1][0] > transfer:
            following -= 1
            latest = min(latest, outgoing[following][1])
        earliest = outgoing[following - 1][1] + 1 if following > 0 else 0
        consumer = where[Slot("B" if transfer.backward else "F", transfer.micro, transfer.target_chunk)]
        latest = min(latest, max(earliest, min(consumer - 1, latest)), consumer)
        receives[latest].append(transfer)
    return Placement(
        slots,
        tuple(tuple(reversed(r)) for r in receives),
        tuple((t,) if t is not None else () for t in sends),
    )


def placements(plan: Plan) -> tuple[Placement, ...]:
    """The schedule of every stage of a plan, transfers placed; of a long step a short one that stands for it."""
    m, steady = plan.microbatches, schedule(plan).steady
    if steady is None:
        return _placements(plan, m)
    least, repetition = steady(plan)
    short = least + (m - least) % repetition
    times = (m - short) // repetition
    if times < FEWEST:
        return _placements(plan, m)
    whole = cache(partial(_placements, plan, m))
    one, more = (_placements(plan, number) for number in (short, short + repetition))
    return tuple(
        replace(a, steady=Steady(b, times, whole, stage)) for stage, (a, b) in enumerate(zip(one, more, strict=True))
    )


def _placements(plan: Plan, microbatches: int) -> tuple[Placement, ...]:
    return place_transfers(orders(plan, microbatches), plan.virtual_pipeline)
