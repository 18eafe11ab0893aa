"""DeepSpeed: what its engine with ZeRO 0 or 1 decides otherwise than Megatron-LM and our trainer, and its ZeRO-2.

Read in deepspeedai/DeepSpeed (v0.6.5 `runtime/bf16_optimizer.py`, `runtime/pipe/engine.py`, `runtime/pipe/schedule.py`,
`runtime/engine.py`; v0.5.10 `runtime/zero/stage_1_and_2.py`) and bigscience-workshop/Megatron-DeepSpeed
(`megatron/model/transformer.py`, `megatron/mpu/layers.py`, `megatron/mpu/cross_entropy.py`), 2022:

* the layers are Megatron's of that time, run by autograd: a product's weight gradient is made before the sum of its
  input gradient over tensor-parallel ranks begins, and whatever stands after a collective waits for it;
* activation checkpointing runs the whole layer again, its last sum included;
* a weight gradient is a fresh tensor in the computing type. With bf16 the BF16_Optimizer clears these before every
  backward (`param.grad = None`) and afterwards widens each and adds it into a flat fp32 gradient (`update_hp_grads`):
  18 bytes an element. Where gradients keep the computing type, autograd adds them into those it has
  (`AccumulateGrad`): 6 bytes of fp16;
* gradients are all-reduced over the data-parallel ranks once a step, after everything, tied ones over the two stages
  first; BF16_Optimizer hands over one flat tensor for each parameter group, so nothing is bucketed;
* the norm is of whole gradients over the model-parallel ranks; each rank steps its share, and the weights are gathered
  at the end of the step, beside nothing;
* the pipeline's sends and receives block, in the engine's own order (`compiler.call_placer`).

ZeRO-2 is another optimizer in another engine (`runtime/zero/stage_1_and_2.py`): what is said above of layers and of a
flat gradient does not hold of it. It partitions gradients as ours does, but all-reduces them and keeps its share
(`allreduce_and_copy_with_multiple_ranks`, the default since `use_multi_rank_bucket_allreduce`), and gathers weights at
the end of the step, beside nothing. ZeRO-3 is not meant here.
"""

from __future__ import annotations

from typing import Literal

from plan.implementations.base import (
    WHOLE,
    Engine,
    GradAccumulation,
    Implementation,
    Unsupported,
    bucket_bytes,
    wide_gradients,
    zero_shards,
)
from plan.implementations.rewrites import ALIBI_IN_PRODUCT, MEGATRON_LAYERS
from plan.parallel import Plan
from plan.pipeline import ONE_F_ONE_B, schedule

START_BYTES = 4 + 2
"""A parameter while stage_1_and_2.py flattens it: fp32 as a script may have loaded it, and 16 bits in the flat buffer.
"""


def _engine(plan: Plan) -> Engine:
    return _pipeline_engine(plan) if plan.zero_stage <= 1 else _zero_engine(plan)


def _pipeline_engine(plan: Plan) -> Engine:
    """The engine with its BF16_Optimizer (which shards at stage 0 too), its ZeRO-1 or its FP16_Optimizer."""
    own_shards = plan.precision == "bf16" and plan.data_parallel > 1
    return Engine(
        rewrites=(ALIBI_IN_PRODUCT, *MEGATRON_LAYERS),
        recomputes_whole=True,
        serial=True,
        grad_accumulation=_accumulation(plan),
        first_bucket_bytes=WHOLE,
        later_bucket_bytes=WHOLE,
        sharded_optimizer=zero_shards(plan) or own_shards,
        reduces_whole=True,
        reduces_in_place=True,
        gathers_at_once=True,
        overlaps_gradients=False,
        sums_tied_first=True,
        offloads=False,
        start_bytes=START_BYTES if plan.zero_stage else 0,
        transfers="blocking",
        keeps_output=True,
        own_host_code=False,
        captures_graphs=False,
    )


def _accumulation(plan: Plan) -> GradAccumulation:
    """BF16_Optimizer adds widened gradients after a backward (and so do the fp64 runs that test it); where gradients
    keep the computing type, autograd adds them."""
    apart = plan.precision == "fp64" or plan.gradient_dtype != plan.precision
    return "separate_buffer" if apart else "autograd"


def _zero_engine(plan: Plan) -> Engine:
    """ZeRO-2 (ZeRO-3 is not forecast yet)."""
    second = plan.zero_stage == 2
    return Engine(
        first_bucket_bytes=bucket_bytes(plan),
        later_bucket_bytes=bucket_bytes(plan),
        sharded_optimizer=zero_shards(plan),
        units_reduce_whole=second,
        gathers_at_once=second,
        overlaps_gradients=plan.communication.overlap,
        offloads=second,
        start_bytes=START_BYTES if second else 0,
        own_host_code=False,
        captures_graphs=False,
    )


def _unfused(zero_stage: int, attention_dropout: float) -> bool:
    return zero_stage <= 1


def _gradient_dtype(precision: str, zero_stage: int) -> Literal["fp64", "fp32", "fp16"]:
    """Autograd adds up fp16 gradients in fp16."""
    return "fp16" if precision == "fp16" and zero_stage <= 1 else wide_gradients(precision, zero_stage)


def _problems(plan: Plan) -> list[str]:
    """What the pipeline's engine cannot do."""
    if plan.zero_stage > 1:
        return []
    found = []
    if (given := schedule(plan)) is not ONE_F_ONE_B:
        found.append(
            f"implementation deepspeed has one pipeline schedule, 1f1b, but schedule is {given.name}; use 1f1b"
        )
    needed = {"fp16": "fp16", "fp64": "fp64"}.get(plan.precision, "fp32")
    if plan.gradient_dtype not in (needed, plan.precision):
        found.append(
            f"implementation deepspeed adds up the gradients of precision {plan.precision} in {needed}, but "
            f"gradient_dtype is {plan.gradient_dtype}; use {needed}"
        )
    if plan.loss_chunks > 1:
        found.append(
            f"implementation deepspeed computes the loss in one piece, but loss_chunks is {plan.loss_chunks}; use 1"
        )
    return found


def _gaps(plan: Plan) -> list[Unsupported]:
    """ZeRO-3 fetches module by module, which is not compiled."""
    if plan.zero_stage < 3:
        return []
    return [
        Unsupported("plan.implementation", f"deepspeed with zero_stage {plan.zero_stage}", "implementation: windtunnel")
    ]


DEEPSPEED = Implementation(
    name="deepspeed",
    engine=_engine,
    unfused_attention=_unfused,
    gradient_dtype=_gradient_dtype,
    problems=_problems,
    gaps=_gaps,
)
