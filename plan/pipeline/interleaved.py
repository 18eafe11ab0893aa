"""Interleaved 1F1B: a stage holds several chunks of the model and takes micro-batches through them in groups
(Narayanan et al. 2021, arXiv 2104.04473)."""

from plan.parallel import Plan
from plan.pipeline.base import Schedule, Slot, merged


def _order(plan: Plan, microbatches: int, stage: int) -> tuple[Slot, ...]:
    p, m, v, group = plan.pipeline_parallel, microbatches, plan.virtual_pipeline, plan.microbatch_group
    table = [(k, c) for start in range(0, m, group) for c in range(v) for k in range(start, min(start + group, m))]
    forward = [Slot("F", k, c) for k, c in table]
    backward = [Slot("B", k, v - 1 - c) for k, c in table]
    return merged(forward, backward, min(m * v, 2 * (p - stage - 1) + (v - 1) * group))


def _steady(plan: Plan) -> tuple[int, int]:
    return 2 * plan.pipeline_parallel + 3 * plan.microbatch_group + 8, plan.microbatch_group


INTERLEAVED = Schedule(name="interleaved-1f1b", order=_order, chunks="several", steady=_steady)
