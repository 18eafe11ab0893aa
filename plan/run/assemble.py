"""Makes a `Run` of the sections as read: every `auto` decided, derived numbers filled in.

The order matters once: a GPU cluster decides data_parallel (what is left of the GPUs), a CPU cluster is sized by the
plan.
"""

from collections.abc import Mapping
from typing import Any

from plan import presets
from plan.implementations import implementation
from plan.model import GATED, AttentionWindow, Model, RopeScaling
from plan.parallel import Communication, LossScale, Offload, Plan, Recompute, Zero, auto_bucket_mb
from plan.pipeline import usual
from plan.run.job import Budget, Checkpoint, Data, LrSchedule, Optimizer, Run, Train
from plan.run.schema import (
    BiasSpec,
    ClusterSpec,
    LossScaleSpec,
    ModelSpec,
    OptimizerSpec,
    PlanSpec,
    RecomputeLayersSpec,
    RopeScalingSpec,
    WindowSpec,
)
from program import cluster as clusters
from program.cluster import Cluster, Fabric, Host, Link, Nics
from program.nearest import did_you_mean


def assemble(specs: Mapping[str, Any]) -> tuple[Run, list[str]]:
    """The run of every section's spec, and what of it contradicts itself before any rule is asked."""
    plan_spec: PlanSpec = specs["plan"]
    model, problems = _model(specs["model"]), []
    cluster, wrong = _cluster(specs["cluster"], plan_spec)
    problems += wrong
    train, data, checkpoint, budget = specs["train"], specs["data"], specs["checkpoint"], specs["budget"]
    run = Run(
        model=model,
        cluster=cluster,
        plan=_plan(plan_spec, model, cluster),
        optimizer=_optimizer(specs["optimizer"]),
        train=Train(train.steps, train.seed, train.record_every, train.eval_every, train.nonfinite),
        data=Data(data.path, data.tokenizer),
        checkpoint=Checkpoint(checkpoint.every, checkpoint.path),
        budget=Budget(budget.tokens, budget.price_per_gpu_hour),
    )
    return run, problems


def _model(spec: ModelSpec) -> Model:
    gated = spec.activation in GATED
    derived = {"rope", "kv_heads", "head_dim", "ffn", "max_positions", "bias", "qkv_bias", "window"}
    given = spec.bias
    bias = given if isinstance(given, BiasSpec) else BiasSpec(qkv=given, out=given, mlp=given)
    window = WindowSpec(size=spec.window) if isinstance(spec.window, int) else spec.window
    return Model(
        **spec.model_dump(exclude=derived),
        kv_heads=spec.kv_heads or spec.heads,
        head_dim=spec.head_dim or max(1, spec.hidden // spec.heads),
        # Megatron's defaults: 4h, and for a gated MLP two thirds of that, rounded up to a multiple of 64.
        ffn=spec.ffn or (-(-(8 * spec.hidden) // (3 * 64)) * 64 if gated else 4 * spec.hidden),
        max_positions=spec.max_positions or spec.seq_length,
        qkv_bias=bias.qkv if spec.qkv_bias is None else spec.qkv_bias,
        out_bias=bias.out,
        mlp_bias=bias.mlp,
        window=AttentionWindow(**window.model_dump()) if isinstance(window, WindowSpec) else None,
        rope_theta=spec.rope.theta,
        rope_local_theta=spec.rope.local_theta,
        rope_fraction=spec.rope.fraction,
        rope_scaling=_rope_scaling(spec.rope.scaling),
    )


def _rope_scaling(spec: object) -> RopeScaling | None:
    if not isinstance(spec, RopeScalingSpec):
        return None
    numbers = spec.model_dump(exclude={"short_factor", "long_factor"})
    return RopeScaling(**numbers, short_factor=tuple(spec.short_factor), long_factor=tuple(spec.long_factor))


def _cluster(spec: ClusterSpec, plan: PlanSpec) -> tuple[Cluster, list[str]]:
    """The cluster, sized; a CPU cluster gets one device for each rank of the plan."""
    problems: list[str] = []
    gpu: dict[str, Any] = {}
    if spec.gpu in presets.names("gpus"):
        gpu = presets.preset("gpus", spec.gpu)
    memory = spec.gpu_memory_gib or gpu.get("memory_gib")
    if memory is None and spec.device == "cuda":
        problems.append(
            f"cluster.gpu {spec.gpu!r} is not a known GPU ({did_you_mean(spec.gpu, presets.names('gpus'))}); "
            "for another one give cluster.gpu_memory_gib, peak_tflops and profile"
        )
        memory = 80.0
    gpus, per_node, nodes, wrong = _size(spec, plan)
    host = clusters.machine() if spec.host is None else Host(spec.host.cores, spec.host.memory_gib)
    cluster = Cluster(
        name=spec.name,
        device=spec.device,
        gpu=spec.gpu,
        gpus=gpus,
        gpus_per_node=per_node,
        nodes=nodes,
        profile=spec.profile or spec.gpu,
        gpu_memory_gib=memory or host.memory_gib / gpus,
        peak_tflops={k: float(v) for k, v in (spec.peak_tflops or gpu.get("peak_tflops") or {}).items()},
        nvlink=Link(spec.nvlink.bandwidth_gb_s, spec.nvlink.latency_us),
        nics=Nics(spec.nics.count, spec.nics.bandwidth_gb_s, spec.nics.latency_us),
        pcie_gb_s=spec.pcie_gb_s,
        gpus_per_pcie=spec.gpus_per_pcie,
        host=host,
        fabric=Fabric(spec.fabric.kind, spec.fabric.oversubscription),
        price_per_gpu_hour=spec.price_per_gpu_hour,
        threads_per_rank=spec.threads_per_rank or (max(1, host.cores // gpus) if spec.device == "cpu" else 1),
    )
    return cluster, problems + wrong


def _size(spec: ClusterSpec, plan: PlanSpec) -> tuple[int, int, int, list[str]]:
    """GPUs, GPUs per node, nodes; a last node may be partly filled."""
    model_parallel = plan.tensor_parallel * plan.context_parallel * plan.pipeline_parallel
    if spec.device == "cpu":
        gpus = spec.gpus or model_parallel * (plan.data_parallel or 1)
        several = f"cluster.nodes is {spec.nodes}, but a cpu cluster is this machine: one node; leave it out"
        return gpus, gpus, 1, [several] if spec.nodes not in (None, 1) else []
    per_node = spec.gpus_per_node or min(8, spec.gpus or 8)
    gpus = spec.gpus or per_node * (spec.nodes or 1)
    nodes = -(-gpus // per_node)
    if spec.nodes not in (None, nodes):
        size = f"cluster.gpus {gpus} on nodes of {per_node} is {nodes} nodes"
        return gpus, per_node, nodes, [f"{size}, but cluster.nodes says {spec.nodes}; give one of the two"]
    return gpus, per_node, nodes, []


def _plan(spec: PlanSpec, model: Model, cluster: Cluster) -> Plan:
    """The plan with every `auto` decided. Impossible values are kept as given, for the rules to name."""
    model_parallel = spec.tensor_parallel * spec.context_parallel * spec.pipeline_parallel
    data_parallel = spec.data_parallel or max(1, cluster.gpus // model_parallel)
    recompute: Recompute = "layers" if isinstance(spec.recompute, RecomputeLayersSpec) else spec.recompute
    communication, chosen = spec.communication, implementation(spec.implementation)
    zero_stage = chosen.zero_stage if spec.zero_stage is None else spec.zero_stage
    unfused = chosen.unfused_attention(zero_stage, model.attention_dropout) or model.attention_softcap is not None
    return Plan(
        **spec.model_dump(exclude=_DERIVED),
        pipeline_layout=spec.pipeline_layout if isinstance(spec.pipeline_layout, str) else tuple(spec.pipeline_layout),
        microbatch_group=spec.microbatch_group or spec.pipeline_parallel,
        data_parallel=data_parallel,
        schedule=tuple(spec.schedule)
        if isinstance(spec.schedule, list)
        else spec.schedule or usual(spec.virtual_pipeline),
        zero_stage=zero_stage,
        zero=Zero(**spec.zero.model_dump()),
        offload=Offload(**spec.offload.model_dump()),
        global_batch_size=spec.global_batch_size or spec.micro_batch_size * data_parallel,
        recompute=recompute,
        recompute_layers=spec.recompute.layers if isinstance(spec.recompute, RecomputeLayersSpec) else 0,
        gradient_dtype=spec.gradient_dtype or chosen.gradient_dtype(spec.precision, zero_stage),
        loss_scale=_loss_scale(spec),
        attention=spec.attention or ("unfused" if unfused else "flash"),
        kernels=spec.kernels or ("eager" if cluster.device == "cpu" else "compiled"),
        loss_chunks=spec.loss_chunks or 1,
        communication=Communication(
            # Megatron's rule, max(40M, 1M · dp) elements, in bytes of an fp32 gradient.
            bucket_mb=communication.bucket_mb or auto_bucket_mb(data_parallel),
            overlap=communication.overlap,
            allreduce=communication.allreduce,
            order=communication.order,
        ),
    )


_DERIVED = {
    "pipeline_layout",
    "microbatch_group",
    "data_parallel",
    "schedule",
    "zero_stage",
    "zero",
    "offload",
    "global_batch_size",
    "recompute",
    "gradient_dtype",
    "attention",
    "kernels",
    "loss_chunks",
    "loss_scale",
    "communication",
}


def _loss_scale(spec: PlanSpec) -> LossScale | None:
    """Auto: a dynamic one under fp16, none otherwise. A number stays what it is."""
    given = spec.loss_scale
    if given is None:
        return LossScale() if spec.precision == "fp16" else None
    if isinstance(given, LossScaleSpec):
        return LossScale(**given.model_dump())
    return None if given == "none" else LossScale(float(given), window=0, floor=float(given))


def _optimizer(spec: OptimizerSpec) -> Optimizer:
    schedule = spec.schedule
    return Optimizer(
        name=spec.name,
        lr=spec.lr,
        betas=(spec.betas[0], spec.betas[1]),
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        clip_norm=spec.clip_norm,
        schedule=LrSchedule(
            schedule.kind,
            schedule.warmup_steps,
            schedule.decay_steps,
            spec.lr / 10 if schedule.min_lr is None else schedule.min_lr,
            schedule.anneal_steps or max(1, schedule.decay_steps // 10),
            schedule.anneal,
        ),
    )
