"""1F1B: min(m, p-1-r) forwards, then a forward and a backward in turn (Narayanan et al. 2021, arXiv 2104.04473)."""

from plan.parallel import Plan
from plan.pipeline.base import Schedule, Slot, merged


def _order(plan: Plan, microbatches: int, stage: int) -> tuple[Slot, ...]:
    forward = [Slot("F", k, 0) for k in range(microbatches)]
    backward = [Slot("B", k, 0) for k in range(microbatches)]
    return merged(forward, backward, min(microbatches, plan.pipeline_parallel - 1 - stage))


def _steady(plan: Plan) -> tuple[int, int]:
    return 3 * plan.pipeline_parallel + 14, 2  # two slots are received into in turn


ONE_F_ONE_B = Schedule(name="1f1b", order=_order, steady=_steady)
