"""GPipe: every forward, then every backward (Huang et al. 2019, arXiv 1811.06965)."""

from plan.parallel import Plan
from plan.pipeline.base import Schedule, Slot


def _order(plan: Plan, microbatches: int, stage: int) -> tuple[Slot, ...]:
    return (*(Slot("F", k, 0) for k in range(microbatches)), *(Slot("B", k, 0) for k in range(microbatches)))


GPIPE = Schedule(name="gpipe", order=_order)
