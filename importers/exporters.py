"""A run as the launch script of another framework: today Megatron-LM's.

    print(megatron_script(load("examples/gpt3-175b.yaml", ["plan.implementation=megatron"])))

The inverse of `importers.megatron`: importing the exported script gives the same model, plan, optimizer and length
again (tested). What Megatron has no flag for is refused, all at once, never left out. ALiBi positions and the embedding
norm have flags in Megatron-DeepSpeed only.
"""

from plan.layout import unit_counts
from plan.model import Model
from plan.parallel import Plan
from plan.pipeline import INTERLEAVED, ONE_F_ONE_B, schedule
from plan.run import Run
from program.errors import InputError

ATTENTION = {"unfused": "unfused", "flash": "flash", "cudnn": "fused"}
POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "alibi": "alibi"}
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
BYTES_OF_FP32 = 4
Flags = list[str]


def megatron_script(run: Run) -> str:
    """A bash script that starts this run under Megatron-LM. Raises `InputError` naming every key without a flag."""
    problems = _without_flag(run)
    if problems:
        raise InputError(problems)
    groups = {
        "MODEL_ARGS": _model(run.model),
        "PARALLEL_ARGS": _parallel(run),
        "BATCH_ARGS": _batch(run.plan),
        "TRAINING_ARGS": _training(run),
    }
    arrays = "\n".join(
        f"{name}=(\n" + "".join(f"    {flag}\n" for flag in rows) + ")\n" for name, rows in groups.items()
    )
    used = " \\\n    ".join(f'"${{{name}[@]}}"' for name in groups)
    cluster, blocking = run.cluster, "export CUDA_LAUNCH_BLOCKING=1\n" if run.plan.launch_blocking else ""
    return (
        "#!/bin/bash\n"
        f"# {run.model.name} on {cluster.gpus} GPUs ({cluster.name}), written by windtunnel.\n\n"
        f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{blocking}\n"
        f"{arrays}\n"
        f"torchrun --nproc_per_node {cluster.gpus_per_node} --nnodes {cluster.nodes} pretrain_gpt.py \\\n    {used}\n"
    )


def _without_flag(run: Run) -> list[str]:
    """Sentences on every value that Megatron-LM cannot be told."""
    plan, cluster, scaling = run.plan, run.cluster, run.model.rope_scaling
    standard = (
        scaling is None
        or scaling.kind == "linear"
        or ((scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_positions) == (1.0, 4.0, 8192))
    )
    flagged = (ONE_F_ONE_B, INTERLEAVED)
    checks = (
        (plan.zero_stage <= 1, f"zero_stage {plan.zero_stage}", "0 or 1"),
        (plan.hybrid == "none", f"hybrid {plan.hybrid}", "none"),
        (plan.gradient_compression == "none", f"gradient_compression {plan.gradient_compression}", "none"),
        (schedule(plan) in flagged, f"schedule {schedule(plan).name}", " or ".join(each.name for each in flagged)),
        (plan.precision in ("fp32", "fp16", "bf16"), f"precision {plan.precision}", "fp32, fp16 or bf16"),
        (plan.rank_order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"), f"rank_order {plan.rank_order}", "tp-cp-ep-dp-pp"),
        (plan.offload.parameters == "none", f"offload.parameters {plan.offload.parameters}", "none"),
        (plan.offload.activations == "none", f"offload.activations {plan.offload.activations}", "none"),
        (plan.communication.allreduce == "auto", f"communication.allreduce {plan.communication.allreduce}", "auto"),
        (plan.communication.order == "auto", "a communication.order", "auto"),
        (plan.loss_chunks == 1, f"loss_chunks {plan.loss_chunks}", "1"),
        (
            cluster.nodes * cluster.gpus_per_node == cluster.gpus,
            f"{cluster.gpus} GPUs on {cluster.nodes} nodes",
            "full nodes",
        ),
        (standard, "these rope scaling factors", "llama3's low 1, high 4, original 8192"),
    )
    return [f"{what} has no Megatron flag; nearest that has: {nearest}" for fine, what, nearest in checks if not fine]


def _model(model: Model) -> Flags:
    flags = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {model.ffn}",
        f"--num-attention-heads {model.heads}",
        f"--kv-channels {model.head_dim}",
        f"--seq-length {model.seq_length}",
        f"--max-position-embeddings {model.max_positions}",
        f"--position-embedding-type {POSITIONS[model.positions]}",
        f"--normalization {NORMS[model.norm]}",
        f"--norm-epsilon {model.norm_eps!r}",
        f"--init-method-std {model.init_std!r}",
        f"--hidden-dropout {model.dropout!r}",
        f"--attention-dropout {model.attention_dropout!r}",
        f"--vocab-size {model.vocab}",
        f"--make-vocab-size-divisible-by {model.vocab_multiple}",
    ]
    if model.kv_heads != model.heads:
        flags += ["--group-query-attention", f"--num-query-groups {model.kv_heads}"]
    if model.positions == "rotary":
        flags.append(f"--rotary-base {model.rope_theta!r}")
    if model.rope_scaling is not None:
        linear = model.rope_scaling.kind == "linear"
        factor = f"{model.rope_scaling.factor!r}"
        flags += (
            [f"--rotary-seq-len-interpolation-factor {factor}"]
            if linear
            else ["--use-rope-scaling", f"--rope-scaling-factor {factor}"]
        )
    switches = {
        "--swiglu": model.gated,
        "--disable-bias-linear": not model.bias,
        "--add-qkv-bias": model.qkv_bias and not model.bias,
        "--untie-embeddings-and-output-weights": not model.tied_embeddings,
        "--embed-layernorm": model.embedding_norm,
    }
    return flags + [flag for flag, on in switches.items() if on]


def _parallel(run: Run) -> Flags:
    plan = run.plan
    flags = [
        f"--tensor-model-parallel-size {plan.tensor_parallel}",
        f"--pipeline-model-parallel-size {plan.pipeline_parallel}",
    ]
    if plan.context_parallel > 1:
        flags.append(f"--context-parallel-size {plan.context_parallel}")
    if plan.virtual_pipeline > 1:
        flags += [
            f"--num-virtual-stages-per-pipeline-rank {plan.virtual_pipeline}",
            f"--microbatch-group-size-per-virtual-pipeline-stage {plan.microbatch_group}",
        ]
    if run.model.layers % plan.stages or not isinstance(plan.pipeline_layout, str):
        flags.append(f"--pipeline-model-parallel-layout '{layout_string(unit_counts(run.model.layers, plan))}'")
    switches = {
        "--sequence-parallel": plan.sequence_parallel,
        "--use-tp-pp-dp-mapping": plan.rank_order == "tp-cp-ep-pp-dp",
        "--use-distributed-optimizer": plan.zero_stage == 1,
        "--overlap-grad-reduce": plan.communication.overlap,
        "--overlap-param-gather": plan.communication.overlap and plan.zero_stage == 1,
        "--optimizer-cpu-offload": plan.offload.optimizer == "cpu",
    }
    flags.append(f"--ddp-bucket-size {round(plan.communication.bucket_mb * 1e6 / BYTES_OF_FP32)}")
    if plan.offload.optimizer == "cpu":
        flags.append(f"--optimizer-offload-fraction {plan.offload.fraction!r}")
    return flags + [flag for flag, on in switches.items() if on]


def layout_string(counts: tuple[int, ...]) -> str:
    """Units per virtual stage as Megatron's layout: E the embedding, t a layer, L the loss, | between stages."""
    units = "E" + "t" * (sum(counts) - 2) + "L"
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return "|".join(units[start : start + count] for start, count in zip(starts, counts, strict=True))


def _batch(plan: Plan) -> Flags:
    flags = [f"--micro-batch-size {plan.micro_batch_size}", f"--global-batch-size {plan.global_batch_size}"]
    if plan.precision in ("fp16", "bf16"):
        flags.append(f"--{plan.precision}")
    if plan.gradient_dtype == "fp32" and plan.precision == "fp16":
        flags.append("--accumulate-allreduce-grads-in-fp32")
    if plan.gradient_dtype == "bf16":
        flags.append("--grad-reduce-in-bf16")
    if plan.recompute == "selective":
        flags.append("--recompute-granularity selective")
    elif plan.recompute in ("full", "layers"):
        method = "uniform" if plan.recompute == "full" else "block"
        flags += [
            "--recompute-granularity full",
            f"--recompute-method {method}",
            f"--recompute-num-layers {plan.recompute_layers or 1}",
        ]
    if plan.partition_activations:
        flags.append("--distribute-saved-activations")
    return [*flags, f"--attention-backend {ATTENTION[plan.attention]}"]


def _training(run: Run) -> Flags:
    optimizer, schedule = run.optimizer, run.optimizer.schedule
    flags = [
        f"--train-iters {run.train.steps}",
        f"--seed {run.train.seed}",
        "--optimizer adam",
        f"--lr {optimizer.lr!r}",
        f"--lr-decay-style {schedule.kind}",
        f"--lr-decay-iters {schedule.decay_steps}",
        f"--lr-warmup-iters {schedule.warmup_steps}",
        f"--min-lr {schedule.min_lr!r}",
        f"--adam-beta1 {optimizer.betas[0]!r}",
        f"--adam-beta2 {optimizer.betas[1]!r}",
        f"--adam-eps {optimizer.eps!r}",
        f"--weight-decay {optimizer.weight_decay!r}",
        f"--clip-grad {optimizer.clip_norm!r}",
    ]
    if run.train.eval_every:
        flags.append(f"--eval-interval {run.train.eval_every}")
    if run.checkpoint.every:
        flags.append(f"--save-interval {run.checkpoint.every}")
    return flags
