"""torch's FSDP2 (`fully_shard` on every block, then on the model).

Read in pytorch `torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives,_fsdp_state}.py` (2.11):

* a group of parameters a block, and one of what is left, embedding and head: the root, which is gathered first and not
  resharded before its backward (`_lazy_init`);
* `zero_stage: 3` is `reshard_after_forward=True`; `zero_stage: 2`, or 3 with `zero.reshard: false`, is False: then a
  group stays gathered until its backward. After a backward it is resharded in both, so every micro-batch gathers it
  again;
* a rank's shards are the optimizer's own (fp32). To gather a group they are cast into one flat tensor and copied into
  their stretch of another (`_get_param_all_gather_inputs`, `all_gather_copy_in`); what comes is copied out into tensors
  of their own (`split_with_sizes_copy`), on the compute stream;
* the host runs ahead in forward: a group's gather is issued behind the launches of the group before, and waits for the
  copy-out of the group before that one (`AllGatherState`), so that at most two flat tensors are alive;
* in backward a group's gather is issued once the group behind it was copied out (`_backward_prefetch`), and waits for
  that copy;
* autograd makes gradients afresh in the computing type. After a group's backward they are copied into one flat tensor
  of the reduce type (`chunk_cat`) and reduce-scattered on a stream of its own. That copy waits for the reduce-scatter
  of the group before (`reduce_scatter_max_input_buffers` is 1). The shard is added to what earlier micro-batches left;
* collectives of gathers and reductions share a communicator, so they run in the order in which they are issued.

`gradient_dtype` is the reduce type; shards of gradients are kept in it (FSDP2 keeps them in fp32). The copy-in of
shards runs on the stream of the gathers (FSDP2 has a third one). Parameters that every tensor-parallel rank holds
whole are reduced once a step, as under our own ZeRO-3. One data-parallel rank shards nothing.
"""

from __future__ import annotations

from plan.implementations.base import Engine, Implementation, Unsupported, bucket_bytes, wide_gradients, zero_shards
from plan.parallel import Plan
from plan.pipeline import ONE_F_ONE_B, schedule


def _engine(plan: Plan) -> Engine:
    sharded = plan.data_parallel > 1
    return Engine(
        serial=True,
        grad_accumulation="separate_buffer" if sharded else "in_gemm",
        first_bucket_bytes=bucket_bytes(plan),
        later_bucket_bytes=bucket_bytes(plan),
        sharded_optimizer=zero_shards(plan),
        root_group=sharded,
        keeps_gathered=sharded and (plan.zero_stage == 2 or not plan.zero.reshard),
        flat_copies=sharded,
        overlaps_gradients=not sharded,
        offloads=False,
        own_host_code=False,
        captures_graphs=False,
    )


def _unfused(zero_stage: int, attention_dropout: float) -> bool:
    return attention_dropout > 0


def _problems(plan: Plan) -> list[str]:
    found = []
    if plan.zero_stage < 2:
        found.append(
            f"implementation torch-fsdp shards parameters, but zero_stage is {plan.zero_stage}; use 3 "
            "(reshard_after_forward) or 2 (weights stay gathered until their backward)"
        )
    if plan.zero.persist_below is not None:
        found.append(
            f"implementation torch-fsdp shards every parameter, but zero.persist_below is {plan.zero.persist_below:g}; "
            "leave it out"
        )
    if not plan.communication.overlap:
        found.append(
            "implementation torch-fsdp always overlaps its collectives, but communication.overlap is false; use true"
        )
    if (given := schedule(plan)) is not ONE_F_ONE_B:
        found.append(
            "implementation torch-fsdp runs a micro-batch's backward behind its forward, but schedule is "
            f"{given.name}; use 1f1b"
        )
    return found


def _gaps(plan: Plan) -> list[Unsupported]:
    if plan.pipeline_parallel == 1:
        return []
    value = f"torch-fsdp with pipeline_parallel {plan.pipeline_parallel}"
    return [Unsupported("plan.implementation", value, "implementation: windtunnel with zero_stage 1")]


TORCH_FSDP = Implementation(
    name="torch-fsdp",
    engine=_engine,
    unfused_attention=_unfused,
    gradient_dtype=wide_gradients,
    zero_stage=3,
    problems=_problems,
    gaps=_gaps,
)
