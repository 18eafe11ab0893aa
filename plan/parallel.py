"""The plan: how one training step is spread over the machines (the `plan:` section), with every choice made.

`Plan` is resolved: `auto` is gone from every number a compiler reads. What stays symbolic is `pipeline_layout`
(read `plan.layout.layout`) and the algorithm choices of `Communication` (the simulator's profile decides what
`auto` costs).

Degrees multiply to the world: TP · CP · PP · DP. `global_batch_size` counts sequences an optimizer step;
`micro_batch_size` sequences of one forward pass of one data-parallel rank, so each rank runs `microbatches` of
them.
"""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp64", "fp32", "fp16", "bf16", "fp8"]
Recompute = Literal["none", "selective", "full", "layers"]
Kernels = Literal["eager", "compiled", "triton", "nanotron", "llm-foundry", "fms"]
FRAMEWORK_KERNELS = ("nanotron", "llm-foundry", "fms")
"""Kernels of other projects, which are priced (`calibration.frameworks`) and not executed."""

DTYPE_BYTES: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "bool": 1,
}


@dataclass(frozen=True, slots=True)
class Zero:
    """How ZeRO-3 gathers parameters; sizes in elements, None where the implementation decides."""

    prefetch: float | None = None
    live: float | None = None
    persist_below: float | None = None
    reshard: bool = True


@dataclass(frozen=True, slots=True)
class Offload:
    """Where optimizer state, parameters and activations live when not on the GPU: none | cpu | nvme; `fraction` of
    the optimizer."""

    optimizer: Literal["none", "cpu", "nvme"] = "none"
    parameters: Literal["none", "cpu", "nvme"] = "none"
    activations: Literal["none", "cpu", "nvme"] = "none"
    fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class LossScale:
    """What the loss's gradient is multiplied by until the optimizer, so that fp16 holds it: `initial`, times `factor`
    after `window` steps without an overflow (0: never, it stays), divided by it at every overflow after the first
    `hysteresis` - 1, down to `floor`."""

    initial: float = 65536.0
    window: int = 1000
    hysteresis: int = 2
    floor: float = 1.0
    factor: float = 2.0


@dataclass(frozen=True, slots=True)
class Communication:
    """Gradient buckets and collective choices. A bucket closes at the first parameter end at or above `bucket_mb`
    (1e6 bytes of gradient)."""

    bucket_mb: float
    overlap: bool = True
    allreduce: Literal["auto", "ring", "tree", "hierarchical"] = "auto"
    order: str = "auto"


def auto_bucket_mb(data_parallel: int) -> float:
    """Bucket size where none is chosen: Megatron-LM's 40M, or 1M a data-parallel rank, numbers of fp32."""
    return float(max(160, 4 * data_parallel))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run the step. See the module docstring for what is resolved; `plan.run.rules` has checked it against
    model and cluster."""

    implementation: Literal["windtunnel", "megatron", "deepspeed", "torch-fsdp"] = "windtunnel"
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    pipeline_parallel: int = 1
    virtual_pipeline: int = 1
    pipeline_layout: str | tuple[int, ...] = "auto"
    """`auto`, `even`, or units per virtual stage in order of the layers (virtual stage c·PP + stage holds chunk c
    of `stage`)."""
    microbatch_group: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    rank_order: str = "tp-cp-ep-dp-pp"
    schedule: str | tuple[str, ...] = "1f1b"
    """A name of `plan.pipeline`, or the rows of one that is written out (`plan.pipeline.rows`)."""
    zero_stage: int = 1
    zero: Zero = Zero()
    offload: Offload = Offload()
    micro_batch_size: int = 1
    global_batch_size: int = 1
    recompute: Recompute = "none"
    recompute_layers: int = 0
    """With recompute `layers`: how many first layers of every model chunk are recomputed in full."""
    partition_activations: bool = False
    precision: Precision = "bf16"
    gradient_dtype: Literal["fp64", "fp32", "bf16", "fp16"] = "fp32"
    loss_scale: LossScale | None = None
    attention: Literal["unfused", "flash", "cudnn"] = "flash"
    kernels: Kernels = "eager"
    launch_blocking: bool = False
    """CUDA_LAUNCH_BLOCKING=1: the host waits for the end of everything it launches."""
    cuda_graph: bool = False
    """The step up to the optimizer is captured once and replayed: the host issues one launch for all of it."""
    loss_chunks: int = 1
    hybrid: Literal["none", "zero3-ffn"] = "none"
    gradient_compression: Literal["none", "onebit-adam"] = "none"
    communication: Communication = Communication(bucket_mb=160.0)

    @property
    def world(self) -> int:
        """Ranks of the job: TP · CP · PP · DP (expert parallelism re-uses data-parallel ranks)."""
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def microbatches(self) -> int:
        """Micro-batches each data-parallel rank runs in a step: global batch / (micro batch · DP)."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel)

    @property
    def stages(self) -> int:
        """Virtual stages in all: PP · VPP."""
        return self.pipeline_parallel * self.virtual_pipeline

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one activation or weight element at the plan's precision."""
        return DTYPE_BYTES[self.precision]
