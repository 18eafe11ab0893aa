"""Pipeline schedules: the order of forward, backward and weight-gradient slots of every stage. One file each.

| file | schedule |
| --- | --- |
| `gpipe` | every forward, then every backward |
| `one_f_one_b` | 1F1B |
| `interleaved` | 1F1B over several chunks of the model a stage |
| `zb_h1` | zero-bubble H1: weight gradients apart, kept for the drain |
| `rows` | one written out by the user, in PyTorch's text form |

They stand beside `plan.implementations` for the same reason (docs/decisions/0009): rules and compiler both ask them.
Nobody else compares their names. `compiler.schedules` places sends and receives for any of them. A new schedule
is one file and one entry of `SCHEDULES`.
"""

from plan.parallel import Plan
from plan.pipeline.base import Schedule, Slot
from plan.pipeline.ends import TIMES, abstract_ends
from plan.pipeline.gpipe import GPIPE
from plan.pipeline.interleaved import INTERLEAVED
from plan.pipeline.one_f_one_b import ONE_F_ONE_B
from plan.pipeline.rows import ROWS, rows_of
from plan.pipeline.zb_h1 import ZB_H1

SCHEDULES = {each.name: each for each in (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1)}


def usual(virtual_pipeline: int) -> str:
    """The schedule of a plan that names none."""
    return (INTERLEAVED if virtual_pipeline > 1 else ONE_F_ONE_B).name


def schedule(plan: Plan) -> Schedule:
    """The plan's schedule; 1F1B where a run names one that is not forecast yet (rules refuse that)."""
    return ROWS if isinstance(plan.schedule, tuple) else SCHEDULES.get(plan.schedule, ONE_F_ONE_B)


def known(plan: Plan) -> bool:
    """Whether the plan's schedule is rows, or one of `SCHEDULES`."""
    return isinstance(plan.schedule, tuple) or plan.schedule in SCHEDULES


def orders(plan: Plan, microbatches: int | None = None) -> tuple[tuple[Slot, ...], ...]:
    """The compute slots of every stage, in order, of the plan's micro-batches or of so many."""
    order, many = schedule(plan).order, plan.microbatches if microbatches is None else microbatches
    return tuple(order(plan, many, stage) for stage in range(plan.pipeline_parallel))


__all__ = [
    "INTERLEAVED",
    "ONE_F_ONE_B",
    "ROWS",
    "SCHEDULES",
    "TIMES",
    "Schedule",
    "Slot",
    "abstract_ends",
    "known",
    "orders",
    "rows_of",
    "schedule",
    "usual",
]
