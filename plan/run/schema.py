"""The file edge: what each section of a run file may contain, as pydantic models.

With `plan.run.reading` the only module that imports pydantic; `plan.run.load` imports it when it has a file to read. A
spec says which keys exist, which kind of value each takes and what is assumed when it is left out; `None` means
"derive it" (`auto` in a file). Turning specs into the frozen dataclasses the program works with is done in
`plan.run.assemble`; rules *between* values are in `plan.run.rules`.

`plan.run.reading` reads a section through its spec and turns pydantic's errors into our sentences.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from program import numbers

AUTO = "auto"


def _auto_is_none(value: object) -> object:
    return None if value == AUTO else value


def _none_is_none(value: object) -> object:
    return None if value == "none" else value


Number = Annotated[float, BeforeValidator(numbers.number)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Dropout = Annotated[Number, Field(ge=0, lt=1)]
Whole = Annotated[int, BeforeValidator(numbers.integer)]
MOST = 10**12  # of anything that is counted: beyond it the search for a nearest divisor would not end
Count = Annotated[Whole, Field(ge=1, le=MOST)]
CountOrZero = Annotated[Whole, Field(ge=0, le=MOST)]
Gib = Annotated[float, BeforeValidator(numbers.gib), Field(gt=0)]
Megabytes = Annotated[float, BeforeValidator(numbers.megabytes), Field(gt=0)]
Microseconds = Annotated[float, BeforeValidator(numbers.microseconds), Field(ge=0)]
GbPerS = Annotated[float, BeforeValidator(numbers.gb_per_s), Field(gt=0)]
Auto = BeforeValidator(_auto_is_none)
NoneWord = BeforeValidator(_none_is_none)
Place = Literal["none", "cpu", "nvme"]


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RopeScalingSpec(Spec):
    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: Positive
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    original_max_positions: Count = 8192
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: NotNegative = 0.0
    short_factor: list[Positive] = []
    long_factor: list[Positive] = []


class RopeSpec(Spec):
    theta: Positive = 10000.0
    local_theta: Annotated[Positive | None, Auto] = None
    fraction: Annotated[Number, Field(gt=0, le=1)] = 1.0
    scaling: Literal["none"] | RopeScalingSpec = "none"


class BiasSpec(Spec):
    qkv: bool = True
    out: bool = True
    mlp: bool = True


class WindowSpec(Spec):
    size: Count
    full_every: CountOrZero = 0


class ModelSpec(Spec):
    name: str = "custom"
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Annotated[Count | None, Auto] = None
    head_dim: Annotated[Count | None, Auto] = None
    ffn: Annotated[Count | None, Auto] = None
    vocab: Count
    seq_length: Count
    max_positions: Annotated[Count | None, Auto] = None
    activation: Literal["gelu", "swiglu", "geglu", "relu", "relu2"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    positions: Literal["learned", "rotary", "alibi"] = "learned"
    tied_embeddings: bool = True
    bias: bool | BiasSpec = True
    qkv_bias: Annotated[bool | None, Auto] = None
    head_bias: bool = False
    embedding_norm: bool = False
    embedding_scale: Positive = 1.0
    qk_norm: Literal["none", "head", "projection"] = "none"
    norm_place: Literal["input", "output", "both"] = "input"
    parallel_residual: bool = False
    shared_norm: bool = False
    window: Literal["none"] | Count | WindowSpec = "none"
    attention_scale: Annotated[Positive | None, Auto] = None
    attention_softcap: Annotated[Positive | None, NoneWord] = None
    logit_softcap: Annotated[Positive | None, NoneWord] = None
    dropout: Dropout = 0.0
    attention_dropout: Dropout = 0.0
    norm_eps: Positive = 1e-5
    rope: RopeSpec = RopeSpec()
    init_std: Positive = 0.02
    vocab_multiple: Count = 128


class LinkSpec(Spec):
    bandwidth_gb_s: GbPerS
    latency_us: Microseconds


class NicsSpec(Spec):
    count: Count
    bandwidth_gb_s: GbPerS
    latency_us: Microseconds


class HostSpec(Spec):
    cores: Count
    memory_gib: Gib


class FabricSpec(Spec):
    kind: Literal["rail", "fat-tree"] = "rail"
    oversubscription: Annotated[Number, Field(ge=1)] = 1.0


class ClusterSpec(Spec):
    name: str = "custom"
    device: Literal["cuda", "cpu"] = "cuda"
    gpu: str
    gpus: Annotated[Count | None, Auto] = None
    gpus_per_node: Annotated[Count | None, Auto] = None
    nodes: Annotated[Count | None, Auto] = None
    profile: Annotated[str | None, Auto] = None
    gpu_memory_gib: Annotated[Gib | None, Auto] = None
    peak_tflops: dict[Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"], Positive] | None = None
    nvlink: LinkSpec
    nics: NicsSpec
    pcie_gb_s: GbPerS
    gpus_per_pcie: Count = 1
    host: Annotated[HostSpec | None, Auto] = None
    fabric: FabricSpec = FabricSpec()
    price_per_gpu_hour: NotNegative = 0.0
    threads_per_rank: Annotated[Count | None, Auto] = None


class ZeroSpec(Spec):
    prefetch: Annotated[NotNegative | None, Auto] = None
    live: Annotated[NotNegative | None, Auto] = None
    persist_below: Annotated[NotNegative | None, Auto] = None
    reshard: bool = True


class OffloadSpec(Spec):
    optimizer: Place = "none"
    parameters: Place = "none"
    activations: Place = "none"
    fraction: Fraction = 1.0


class CommunicationSpec(Spec):
    bucket_mb: Annotated[Megabytes | None, Auto] = None
    overlap: bool = True
    allreduce: Literal["auto", "ring", "tree", "hierarchical"] = "auto"
    order: str = "auto"


class LossScaleSpec(Spec):
    initial: Positive = 65536.0
    window: Count = 1000
    hysteresis: Count = 2
    floor: Positive = 1.0
    factor: Annotated[Number, Field(gt=1)] = 2.0


class RecomputeLayersSpec(Spec):
    layers: Count


class PlanSpec(Spec):
    implementation: Literal["windtunnel", "megatron", "deepspeed", "torch-fsdp"] = "windtunnel"
    tensor_parallel: Count = 1
    sequence_parallel: bool = False
    pipeline_parallel: Count = 1
    virtual_pipeline: Count = 1
    pipeline_layout: Literal["auto", "even"] | Annotated[list[Count], Field(min_length=1)] = "auto"
    microbatch_group: Annotated[Count | None, Auto] = None
    context_parallel: Count = 1
    expert_parallel: Count = 1
    data_parallel: Annotated[Count | None, Auto] = None
    rank_order: str = "tp-cp-ep-dp-pp"
    schedule: Annotated[str | Annotated[list[str], Field(min_length=1)] | None, Auto] = None
    zero_stage: Annotated[Annotated[Whole, Field(ge=0, le=3)] | None, Auto] = None
    zero: ZeroSpec = ZeroSpec()
    offload: OffloadSpec = OffloadSpec()
    micro_batch_size: Count = 1
    global_batch_size: Annotated[Count | None, Auto] = None
    recompute: Literal["none", "selective", "full"] | RecomputeLayersSpec = "none"
    partition_activations: bool = False
    precision: Literal["fp64", "fp32", "fp16", "bf16", "fp8"] = "bf16"
    gradient_dtype: Annotated[Literal["fp64", "fp32", "bf16", "fp16"] | None, Auto] = None
    loss_scale: Annotated[Literal["none"] | Positive | LossScaleSpec | None, Auto] = None
    attention: Annotated[Literal["unfused", "flash", "cudnn"] | None, Auto] = None
    kernels: Annotated[Literal["eager", "compiled", "triton", "nanotron", "llm-foundry", "fms"] | None, Auto] = None
    launch_blocking: bool = False
    cuda_graph: bool = False
    loss_chunks: Annotated[Count | None, Auto] = None
    hybrid: Literal["none", "zero3-ffn"] = "none"
    gradient_compression: Literal["none", "onebit-adam"] = "none"
    communication: CommunicationSpec = CommunicationSpec()


class LrScheduleSpec(Spec):
    kind: Literal["constant", "linear", "cosine", "inverse-sqrt", "wsd"] = "cosine"
    warmup_steps: CountOrZero = 100
    decay_steps: Count = 10000
    anneal_steps: Annotated[Count | None, Auto] = None
    anneal: Literal["linear", "cosine", "exponential", "minus-sqrt"] = "exponential"
    min_lr: Annotated[NotNegative | None, Auto] = None


class OptimizerSpec(Spec):
    name: Literal["adamw"] = "adamw"
    lr: NotNegative = 6.0e-5
    betas: Annotated[list[Annotated[Number, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = [0.9, 0.95]
    eps: Positive = 1.0e-8
    weight_decay: NotNegative = 0.1
    clip_norm: NotNegative = 1.0
    schedule: LrScheduleSpec = LrScheduleSpec()


class TrainSpec(Spec):
    steps: Count = 100
    seed: Annotated[Whole, Field(ge=0)] = 1234
    record_every: Annotated[Count | None, Auto] = None
    eval_every: CountOrZero = 0
    nonfinite: Literal["stop", "skip", "continue"] = "stop"


class DataSpec(Spec):
    path: str = "builtin"
    tokenizer: str = AUTO


class CheckpointSpec(Spec):
    every: CountOrZero = 0
    path: str = AUTO


class BudgetSpec(Spec):
    tokens: Positive | None = None
    price_per_gpu_hour: NotNegative | None = None


SECTIONS: dict[str, type[Spec]] = {
    "model": ModelSpec,
    "cluster": ClusterSpec,
    "plan": PlanSpec,
    "optimizer": OptimizerSpec,
    "train": TrainSpec,
    "data": DataSpec,
    "checkpoint": CheckpointSpec,
    "budget": BudgetSpec,
}
