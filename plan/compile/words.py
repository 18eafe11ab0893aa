"""What a program's header says of its plan: degrees, and the implementation's choices in words."""

from __future__ import annotations

from plan.compile.partition import partition_rules
from plan.deepspeed import is_deepspeed, overlaps_gradients
from plan.model import Model
from plan.parallel import Plan


def batches_transfers(plan: Plan) -> bool:
    """Whether sends are paired with receives: Megatron-LM's non-interleaved 1F1B."""
    return plan.implementation == "megatron" and plan.schedule == "1f1b" and plan.virtual_pipeline == 1


def degrees(model: Model, plan: Plan) -> dict[str, int]:
    """The sizes of a plan's axes and of its micro-batches."""
    return {
        "tp": plan.tensor_parallel,
        "dp": plan.data_parallel,
        "pp": plan.pipeline_parallel,
        "vpp": plan.virtual_pipeline,
        "microbatches": plan.microbatches,
        "micro_batch_size": plan.micro_batch_size,
        "seq_length": model.seq_length,
    }


def implementation_rules(plan: Plan) -> dict[str, str]:
    """The choices the named implementation made, in words, for the program's header."""
    separate = "separate sends and receives on four streams, receives posted ahead where the global order allows"
    blocking = "one blocking send or receive after another, in the order of DeepSpeed's TrainSchedule"
    whole, bucket = "none: one flat gradient, all-reduced as one", f"{plan.communication.bucket_mb:g} MB"
    batched = "a send paired with the opposite receive of the same neighbour, the host blocked on each"
    launches = {"launches": "blocking, as CUDA_LAUNCH_BLOCKING=1 has it"} if plan.launch_blocking else {}
    return (
        launches
        | {
            "implementation": plan.implementation,
            "pipeline": blocking if is_deepspeed(plan) else batched if batches_transfers(plan) else separate,
            "buckets": whole if is_deepspeed(plan) else f"close at {bucket} of {plan.gradient_dtype} gradient",
            "gradients": "overlapped with backward" if overlaps_gradients(plan) else "reduced after backward",
        }
        | partition_rules(plan)
    )
