"""Megatron-LM: its layers, its bucket rule, its paired transfers.

Read in NVIDIA/Megatron-LM (`megatron/core/distributed/param_and_grad_buffer.py`, `core/pipeline_parallel/
{schedules,p2p_communication}.py`): gradients are bucketed only where their reduction is overlapped, which later stages
do not do; the non-interleaved schedule pairs a send with the opposite receive of the same neighbour
(`batch_p2p_comm`) and blocks the host on each (`batch_p2p_sync`).
"""

from __future__ import annotations

from plan.implementations.base import (
    WHOLE,
    Engine,
    Implementation,
    Unsupported,
    bucket_bytes,
    wide_gradients,
    zero_shards,
)
from plan.implementations.rewrites import MEGATRON_LAYERS
from plan.parallel import Plan
from plan.pipeline import ONE_F_ONE_B, schedule


def _engine(plan: Plan) -> Engine:
    paired = schedule(plan) is ONE_F_ONE_B and plan.virtual_pipeline == 1
    return Engine(
        rewrites=MEGATRON_LAYERS,
        recomputes_whole=True,
        even_layers=True,
        first_bucket_bytes=bucket_bytes(plan) if plan.communication.overlap else WHOLE,
        later_bucket_bytes=WHOLE,
        sharded_optimizer=zero_shards(plan),
        reduces_in_place=True,
        overlaps_gradients=plan.communication.overlap,
        offloads=False,
        transfers="batched" if paired else "separate",
        own_host_code=False,
        captures_graphs=False,
    )


def _unfused(zero_stage: int, attention_dropout: float) -> bool:
    return True  # without --use-flash-attn


def _gaps(plan: Plan) -> list[Unsupported]:
    if plan.zero_stage <= 1:
        return []
    distributed = "zero_stage: 1, which is Megatron-LM's distributed optimizer, or implementation: windtunnel"
    return [Unsupported("plan.zero_stage", str(plan.zero_stage), distributed)]


MEGATRON = Implementation(
    name="megatron", engine=_engine, unfused_attention=_unfused, gradient_dtype=wide_gradients, gaps=_gaps, trains=False
)
