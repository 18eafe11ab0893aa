"""When the slots of all stages end, in abstract time: forward 1, backward 2, each half of one 1, transfers nothing."""

from __future__ import annotations

from plan.pipeline.base import Slot

TIMES = {"F": 1, "B": 2, "I": 1, "W": 1}
Ends = dict[tuple[int, Slot], int]


def abstract_ends(stages: tuple[tuple[Slot, ...], ...], chunks: int) -> Ends:
    """Abstract end time of every (stage, slot), transfers taking no time.

    Raises ValueError naming the stages when the orders wait for each other in a circle.
    """
    p = len(stages)
    ends: Ends = {}
    crossed: Ends = {}  # by what crosses between stages, B for I
    clock, position = [0] * p, [0] * p
    moved = True
    while moved:
        moved = False
        for stage in range(p):
            while position[stage] < len(stages[stage]):
                slot = stages[stage][position[stage]]
                ready = _ready(stage, slot, p, chunks, crossed)
                if ready is None:
                    break
                start = max(clock[stage], ready)
                clock[stage] = start + TIMES[slot.phase]
                ends[stage, slot] = crossed[stage, slot.crossing] = clock[stage]
                position[stage] += 1
                moved = True
    stuck = [f"stage {s} at {stages[s][position[s]].cell(s, p)}" for s in range(p) if position[s] < len(stages[s])]
    if stuck:
        raise ValueError("the schedule waits in a circle: " + "; ".join(stuck))
    return ends


def _ready(stage: int, slot: Slot, p: int, chunks: int, ends: Ends) -> int | None:
    """When a slot's inputs exist, or None while they do not."""
    here, own = slot.chunk * p + stage, slot.crossing
    needs = [] if slot.phase == "F" else [(stage, Slot("B" if slot.phase == "W" else "F", slot.micro, slot.chunk))]
    neighbour = here - 1 if slot.phase == "F" else here + 1
    if slot.phase != "W" and 0 <= neighbour < p * chunks:
        needs.append((neighbour % p, Slot(own.phase, slot.micro, neighbour // p)))
    times = [ends.get(need) for need in needs]
    return None if None in times else max((t for t in times if t is not None), default=0)
