"""ZB-H1: weight gradients apart from input gradients, kept for the drain (Qi et al. 2024, arXiv 2401.10241).

Stage r warms up as 1F1B does. Then it takes a forward, an input gradient and, once more than r micro-batches wait for
their weight gradients, the oldest of those. So the first stage never parts the two, and the bubble is
(p-1)(F+I-min(F,I,W)), where 1F1B's is (p-1)(F+I+W).
"""

from collections.abc import Iterator

from plan.parallel import Plan
from plan.pipeline.base import Schedule, Slot, halves_refused, joined


def _slots(m: int, warm_up: int, waiting: int) -> Iterator[Slot]:
    """The slots of a stage in which at most `waiting` micro-batches wait for their weight gradients."""
    done = 0
    yield from (Slot("F", micro, 0) for micro in range(warm_up))
    for micro in range(m):
        if warm_up + micro < m:
            yield Slot("F", warm_up + micro, 0)
        yield Slot("I", micro, 0)
        if micro + 1 - done > waiting:
            yield Slot("W", done, 0)
            done += 1
    yield from (Slot("W", micro, 0) for micro in range(done, m))


def _order(plan: Plan, microbatches: int, stage: int) -> tuple[Slot, ...]:
    warm_up = min(microbatches, plan.pipeline_parallel - 1 - stage)
    return joined(list(_slots(microbatches, warm_up, stage)))


def _steady(plan: Plan) -> tuple[int, int]:
    return 4 * plan.pipeline_parallel + 14, 2


ZB_H1 = Schedule(
    name="zb-h1", order=_order, steady=_steady, splits=lambda plan: plan.pipeline_parallel > 1, problems=halves_refused
)
