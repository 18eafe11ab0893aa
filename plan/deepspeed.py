"""What DeepSpeed's engine with ZeRO 0 or 1 decides otherwise than Megatron-LM and our trainer: one predicate each.

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
* the pipeline's sends and receives block, in the engine's own order (`plan.compile.calls`).

ZeRO-2 is another optimizer in another engine (`runtime/zero/stage_1_and_2.py`): what is said above of layers and of a
flat gradient does not hold of it. It partitions gradients as ours does, but all-reduces them and keeps its share
(`allreduce_and_copy_with_multiple_ranks`, the default since `use_multi_rank_bucket_allreduce`), and gathers weights at
the end of the step, beside nothing. ZeRO-3 is not meant here.
"""

from __future__ import annotations

from typing import Literal

from plan.parallel import Plan

Gradients = Literal["fused", "apart", "added"]


def is_deepspeed(plan: Plan) -> bool:
    """DeepSpeed's engine with its BF16_Optimizer, its ZeRO-1 or its FP16_Optimizer."""
    return plan.implementation == "deepspeed" and plan.zero_stage <= 1


def runs_megatron_layers(plan: Plan) -> bool:
    """The layers keep and launch what Megatron-LM's do."""
    return plan.implementation == "megatron" or is_deepspeed(plan)


def gradient_way(plan: Plan) -> Gradients:
    """How a weight gradient reaches the main gradient: `fused` into the product; made `apart` in the computing type and
    added by an instruction after the backward (BF16_Optimizer, and the fp64 runs that test it); made and `added` at
    once (autograd).
    """
    if not is_deepspeed(plan):
        return "fused"
    apart = plan.precision == "fp64" or plan.gradient_dtype != plan.precision
    return "apart" if apart else "added"


def gathers_at_once(plan: Plan) -> bool:
    """Weights are gathered at the end of the step that changed them (else at the start of the next)."""
    return plan.implementation == "deepspeed" and plan.zero_stage <= 2


def reduces_to_all(plan: Plan) -> bool:
    """Partitioned gradients are all-reduced, and each rank keeps its share: 2Ψ a micro-batch, not Ψ."""
    return plan.implementation == "deepspeed" and plan.zero_stage == 2


def overlaps_gradients(plan: Plan) -> bool:
    """Gradients are reduced beside the backward pass that finishes them."""
    return plan.communication.overlap and not is_deepspeed(plan)
