"""Which parameters ZeRO-2 and ZeRO-3 partition, and in which buckets.

A partitioned bucket holds the parameters of one unit (embedding, a layer, head): ZeRO-3 gathers it whole before the
unit computes, ZeRO-2 and ZeRO-3 reduce-scatter its gradient after each micro-batch's backward of the unit. A tied table
has a bucket of its own, because two units use it. What is not partitioned is *whole*: kept by every rank and treated
as ZeRO-1 does. Those are the parameters that every tensor-parallel rank holds (norms, row biases: their gradients need
one more sum, and they are small), and under ZeRO-3 those below `zero.persist_below` elements (DeepSpeed's
`stage3_param_persistence_threshold`).

After Rajbhandari et al. 2020 (arXiv 1910.02054), with the granularity of torch's FSDP2: one group of parameters a
layer. Where an engine has a root group (FSDP2), embedding and head are one bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plan.implementations import engine
from plan.parallel import Plan
from program import Param

Kind = Literal["sharded", "replicated", "tied"]


@dataclass(frozen=True, slots=True)
class Members:
    """A bucket in the making: its parameters with `bucket` and `offset` filled in, whether units partition it, and
    whether its weights stay gathered from a forward to its backward."""

    params: tuple[Param, ...]
    kind: Kind
    partitioned: bool = False
    kept: bool = False


def partitions_gradients(plan: Plan) -> bool:
    """ZeRO-2 and 3: full gradients live only while their unit runs backward."""
    return plan.zero_stage >= 2 and plan.data_parallel > 1


def partitions_weights(plan: Plan) -> bool:
    """ZeRO-3: full weights live only while their unit runs, or from its forward to its backward."""
    return (plan.zero_stage >= 3 or engine(plan).keeps_gathered) and plan.data_parallel > 1


def unit_buckets(units: Sequence[Sequence[Param]], kinds: Mapping[str, Kind], plan: Plan) -> list[Members]:
    """Buckets of a stage whose gradients are partitioned: `units` in order of last gradient; the whole ones at the
    end. A root group has embedding and head, and tied embeddings once."""
    found: dict[tuple[int, Kind], list[Param]] = {}
    whole: dict[Kind, list[Param]] = {}
    rooted, keeps = engine(plan).root_group, engine(plan).keeps_gathered
    for position, params in enumerate(units):
        root = rooted and position in (0, len(units) - 1)
        for param in params:
            kind = kinds[param.name]
            if kind == "replicated" or _persists(param, plan):
                whole.setdefault(kind, []).append(param)
            else:
                found.setdefault((0, "sharded") if root else (position, kind), []).append(param)
    parts = [(kind, members, True, keeps or (rooted and at == 0)) for (at, kind), members in found.items()]
    parts += [(kind, members, False, False) for kind, members in whole.items()]
    return [
        Members(_placed(members, index), kind, part, kept) for index, (kind, members, part, kept) in enumerate(parts)
    ]


def _persists(param: Param, plan: Plan) -> bool:
    return partitions_weights(plan) and param.local_numel < (plan.zero.persist_below or 0)


def _placed(params: Sequence[Param], bucket: int) -> tuple[Param, ...]:
    placed, used = [], 0
    for param in params:
        placed.append(replace(param, bucket=bucket, offset=used))
        used += param.local_numel
    return tuple(placed)


def offloaded(sizes: Sequence[int], plan: Plan) -> list[bool]:
    """Which buckets the host steps, given their parameters: the first ones, until `offload.fraction` of them is
    reached (DeepSpeed's `ratio`, ZeRO-Offload++)."""
    wanted = plan.offload.fraction * sum(sizes) if plan.offload.optimizer == "cpu" else 0.0
    before = [sum(sizes[:i]) for i in range(len(sizes))]
    return [first < wanted for first in before]


def partition_rules(plan: Plan) -> dict[str, str]:
    """The choices of ZeRO-2, ZeRO-3 and offload, in words, for the program's header."""
    found: dict[str, str] = {}
    ahead = plan.communication.overlap
    if partitions_gradients(plan):
        beside = "beside the next unit's backward" if ahead else "before the next unit's backward"
        how = "all-reduced, each rank keeping its share," if engine(plan).units_reduce_whole else "reduce-scattered"
        found |= {
            "buckets": "one a unit; parameters every tensor-parallel rank holds are reduced whole, once a step",
            "gradients": f"{how} after a unit's backward of every micro-batch, {beside}",
        }
        if engine(plan).gathers_at_once:
            found["weights"] = "gathered at the end of the step that changed them, beside nothing"
    if partitions_weights(plan):
        found["weights"] = (
            f"gathered before a unit's forward and backward, {'one unit ahead' if ahead else 'when needed'}"
        )
    if partitions_weights(plan) and engine(plan).flat_copies:
        until = "until the backward" if engine(plan).keeps_gathered else "for backward again"
        found["buckets"] = "one a layer, and the root: embedding and head; what all tensor-parallel ranks hold is whole"
        found["weights"] = (
            f"gathered a group ahead, copied in and out of two flat tensors; the root once, layers {until}"
        )
    if plan.offload.optimizer != "none":
        found["optimizer"] = "stepped by the host, a bucket's weights copied back beside the next bucket's step"
    return found
