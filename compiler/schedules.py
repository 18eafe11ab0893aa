"""Pipeline schedules: which micro-batch of which chunk a stage computes next, and when it talks to its neighbours.

A schedule is only an order of compute slots for each stage. The order of sends and receives follows from it by one rule
(`place_transfers`): give every transfer the abstract time at which its producer ends (forward 1, backward 2), and let
every stage issue its transfers in that one global order. Host order over all communicators is then acyclic across
ranks, as NCCL asks, for any schedule; receives are posted as early as one compute slot ahead where the rule allows.

A step of many micro-batches is its fill and drain around a steady state. `placements` then schedules a short step and
one that is a repetition longer, and says how often more to repeat; `compiler.repeat` checks that what was repeated
once can be repeated.

Formulas: 1F1B warm-up min(m, p-1-r) and the interleaved order are those of Narayanan et al. 2021 (arXiv 2104.04473).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal, NamedTuple

from plan.parallel import Plan

FORWARD_TIME, BACKWARD_TIME = 1, 2
FEWEST = 4  # repetitions that are worth writing as one


class Slot(NamedTuple):
    """One compute call of a stage (a tuple, because schedules hash and sort tens of thousands)."""

    phase: Literal["F", "B"]
    micro: int
    chunk: int


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


@dataclass(frozen=True, slots=True)
class Steady:
    """The step that a `stage`'s short schedule stands for is `times` repetitions longer. `longer` has one more; `whole`
    makes those of the step for all stages, once."""

    longer: Placement
    times: int
    whole: Callable[[], tuple[Placement, ...]]
    stage: int


def orders(plan: Plan, microbatches: int | None = None) -> tuple[tuple[Slot, ...], ...]:
    """The compute slots of every stage, in order; of a step of the plan's micro-batches, or of so many."""
    p, v = plan.pipeline_parallel, plan.virtual_pipeline
    m = plan.microbatches if microbatches is None else microbatches
    if v > 1:
        return tuple(_interleaved(p, m, v, plan.microbatch_group, stage) for stage in range(p))
    if plan.schedule == "gpipe":
        return tuple(_gpipe(m) for _ in range(p))
    return tuple(_one_f_one_b(p, m, stage) for stage in range(p))


def _gpipe(m: int) -> tuple[Slot, ...]:
    return (*(Slot("F", k, 0) for k in range(m)), *(Slot("B", k, 0) for k in range(m)))


def _one_f_one_b(p: int, m: int, stage: int) -> tuple[Slot, ...]:
    warm_up = min(m, p - 1 - stage)
    forward = [Slot("F", k, 0) for k in range(m)]
    backward = [Slot("B", k, 0) for k in range(m)]
    return _merge(forward, backward, warm_up)


def _interleaved(p: int, m: int, v: int, group: int, stage: int) -> tuple[Slot, ...]:
    table = [(k, c) for start in range(0, m, group) for c in range(v) for k in range(start, min(start + group, m))]
    forward = [Slot("F", k, c) for k, c in table]
    backward = [Slot("B", k, v - 1 - c) for k, c in table]
    return _merge(forward, backward, min(m * v, 2 * (p - stage - 1) + (v - 1) * group))


def _merge(forward: list[Slot], backward: list[Slot], warm_up: int) -> tuple[Slot, ...]:
    """warm-up forwards, then one forward and one backward at a time, then the remaining backwards."""
    steady = len(forward) - warm_up
    pairs = [s for f, b in zip(forward[warm_up:], backward[:steady], strict=True) for s in (f, b)]
    return (*forward[:warm_up], *pairs, *backward[steady:])


def abstract_ends(stages: tuple[tuple[Slot, ...], ...], chunks: int) -> dict[tuple[int, Slot], int]:
    """Abstract end time of every (stage, slot), transfers taking no time.

    Raises ValueError naming the stages when the orders wait for each other in a circle.
    """
    p = len(stages)
    ends: dict[tuple[int, Slot], int] = {}
    clock, position = [0] * p, [0] * p
    moved = True
    while moved:
        moved = False
        for stage in range(p):
            while position[stage] < len(stages[stage]):
                slot = stages[stage][position[stage]]
                ready = _ready(stage, slot, p, chunks, ends)
                if ready is None:
                    break
                start = max(clock[stage], ready)
                clock[stage] = start + (FORWARD_TIME if slot.phase == "F" else BACKWARD_TIME)
                ends[stage, slot] = clock[stage]
                position[stage] += 1
                moved = True
    stuck = [f"stage {s} at {stages[s][position[s]]}" for s in range(p) if position[s] < len(stages[s])]
    if stuck:
        raise ValueError("the schedule waits in a circle: " + "; ".join(stuck))
    return ends


def _ready(stage: int, slot: Slot, p: int, chunks: int, ends: dict[tuple[int, Slot], int]) -> int | None:
    """When a slot's inputs exist, or None while they do not."""
    here = slot.chunk * p + stage
    needs = [(stage, Slot("F", slot.micro, slot.chunk))] if slot.phase == "B" else []
    neighbour = here - 1 if slot.phase == "F" else here + 1
    if 0 <= neighbour < p * chunks:
        needs.append((neighbour % p, Slot(slot.phase, slot.micro, neighbour // p)))
    times = [ends.get(need) for need in needs]
    return None if None in times else max((t for t in times if t is not None), default=0)


def _transfers(stages: tuple[tuple[Slot, ...], ...], chunks: int) -> dict[tuple[int, Slot], Transfer]:
    """The transfer each slot's result makes, by producer; none inside one stage."""
    p, ends = len(stages), abstract_ends(stages, chunks)
    made: dict[tuple[int, Slot], Transfer] = {}
    if p == 1:
        return made
    for (stage, slot), end in ends.items():
        there = slot.chunk * p + stage + (1 if slot.phase == "F" else -1)
        if 0 <= there < p * chunks:
            made[stage, slot] = Transfer(end, slot.phase == "B", stage, slot.micro, slot.chunk, there % p, there // p)
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
    where = {slot: i for i, slot in enumerate(slots)}
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
    m = plan.microbatches
    short, repetition = _short(plan)
    times = (m - short) // repetition
    if plan.schedule == "gpipe" or times < FEWEST:
        return _placements(plan, m)
    whole = cache(partial(_placements, plan, m))
    one, more = (_placements(plan, number) for number in (short, short + repetition))
    return tuple(
        replace(a, steady=Steady(b, times, whole, stage)) for stage, (a, b) in enumerate(zip(one, more, strict=True))
    )


def _placements(plan: Plan, microbatches: int) -> tuple[Placement, ...]:
    return place_transfers(orders(plan, microbatches), plan.virtual_pipeline)


def _short(plan: Plan) -> tuple[int, int]:
    """Micro-batches of a step that fills, repeats a few times and drains, and those of a repetition: interleaving takes
    them in whole groups, and without it two slots are received into in turn."""
    p, interleaved = plan.pipeline_parallel, plan.virtual_pipeline > 1
    repetition = plan.microbatch_group if interleaved else 2
    least = (2 if interleaved else 3) * p + 3 * repetition + 8
    return least + (plan.microbatches - least) % repetition, repetition
