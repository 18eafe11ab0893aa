"""What a program's header says of its plan: degrees, who executes it, and the implementation's choices in words."""

from __future__ import annotations

from compiler.partition import partition_rules
from plan.implementations import engine
from plan.implementations.base import WHOLE
from plan.model import Model
from plan.parallel import Plan
from program import Execution

TRANSFERS = {
    "separate": "separate sends and receives on four streams, receives posted ahead where the global order allows",
    "blocking": "one blocking send or receive after another, in the order of DeepSpeed's TrainSchedule",
    "batched": "a send paired with the opposite receive of the same neighbour, the host blocked on each",
}


def degrees(model: Model, plan: Plan) -> dict[str, int]:
    """The sizes of a plan's axes and of its micro-batches; where every n-th layer is of another kind, n."""
    window = model.window
    kinds = {"layer_period": window.full_every} if window is not None and window.full_every else {}
    return kinds | {
        "tp": plan.tensor_parallel,
        "dp": plan.data_parallel,
        "pp": plan.pipeline_parallel,
        "vpp": plan.virtual_pipeline,
        "microbatches": plan.microbatches,
        "micro_batch_size": plan.micro_batch_size,
        "seq_length": model.seq_length,
    }


def execution(plan: Plan) -> Execution:
    """Who executes the plan's program."""
    return Execution(plan.kernels, plan.cuda_graph, engine(plan).own_host_code)


def implementation_rules(plan: Plan) -> dict[str, str]:
    """The choices the named implementation made, in words, for the program's header."""
    chosen, bucket = engine(plan), f"{plan.communication.bucket_mb:g} MB"
    unbucketed = chosen.first_bucket_bytes == WHOLE and chosen.reduces_whole
    whole = "none: one flat gradient, all-reduced as one"
    launches = {"launches": "blocking, as CUDA_LAUNCH_BLOCKING=1 has it"} if plan.launch_blocking else {}
    return (
        launches
        | {
            "implementation": plan.implementation,
            "pipeline": TRANSFERS[chosen.transfers],
            "buckets": whole if unbucketed else f"close at {bucket} of {plan.gradient_dtype} gradient",
            "gradients": "overlapped with backward" if chosen.overlaps_gradients else "reduced after backward",
        }
        | partition_rules(plan)
    )
