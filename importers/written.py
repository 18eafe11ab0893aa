"""A run as a DeepSpeed JSON, a torchtitan TOML or a SLURM script (`importers.exporters` writes Megatron's flags).

    text, unsaid = deepspeed_json(run)

What a file cannot say is found by reading it: the text is imported again, and every key of the plan, model, optimizer
and length that comes back otherwise is a sentence in `unsaid`.
"""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from importers import import_text
from importers.exporters import megatron_script
from importers.torchtitan_table import FLAVORS
from importers.world import Request
from plan import presets
from plan.run import Run, load
from program.errors import InputError

BYTES_OF_FP32 = 4
SCHEDULERS = {"constant": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
SECTIONS = ("model", "plan", "optimizer", "train", "checkpoint")


def slurm_script(run: Run) -> str:
    """Megatron's launch script as one that SLURM starts, a task a node. Raises `InputError` as `megatron_script`."""
    cluster = run.cluster
    head, body = megatron_script(run).split("\n", 1)
    header = (
        f"#SBATCH --job-name={run.model.name}\n#SBATCH --nodes={cluster.nodes}\n"
        f"#SBATCH --gpus-per-node={cluster.gpus_per_node}\n#SBATCH --ntasks-per-node=1\n"
    )
    launcher = f"torchrun --nproc_per_node {cluster.gpus_per_node} --nnodes {cluster.nodes}"
    under = (
        f"srun torchrun --nproc_per_node {cluster.gpus_per_node} --nnodes $SLURM_NNODES"
        ' --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:29500"'
    )
    address = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n\n'
    return f"{head}\n{header}{body.replace(launcher, address + under)}"


def deepspeed_json(run: Run) -> tuple[str, list[str]]:
    """A DeepSpeed configuration for a trainer, and what it cannot say (the model is its code's)."""
    plan, optimizer, schedule = run.plan, run.optimizer, run.optimizer.schedule
    zero: dict[str, Any] = {"stage": plan.zero_stage, "overlap_comm": plan.communication.overlap}
    if plan.zero_stage <= 1:
        zero["reduce_bucket_size"] = round(plan.communication.bucket_mb * 1e6 / BYTES_OF_FP32)
    if plan.zero.persist_below is not None:
        zero["stage3_param_persistence_threshold"] = plan.zero.persist_below
    if plan.offload.optimizer != "none":
        zero["offload_optimizer"] = {"device": plan.offload.optimizer, "ratio": plan.offload.fraction}
    if plan.offload.parameters != "none":
        zero["offload_param"] = {"device": plan.offload.parameters}
    params = {"lr": optimizer.lr, "betas": list(optimizer.betas), "eps": optimizer.eps}
    decay = {"total_num_steps": schedule.decay_steps} if schedule.kind != "constant" else {}
    config: dict[str, Any] = {
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_clipping": optimizer.clip_norm,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": params | {"weight_decay": optimizer.weight_decay}},
        "scheduler": {
            "type": SCHEDULERS[schedule.kind],
            "params": {"warmup_max_lr": optimizer.lr, "warmup_num_steps": schedule.warmup_steps} | decay,
        },
        "bf16": {"enabled": plan.precision == "bf16"},
        "fp16": {"enabled": plan.precision == "fp16"},
        "data_types": {"grad_accum_dtype": plan.gradient_dtype},
    }
    if plan.recompute == "full":
        config["activation_checkpointing"] = {"number_checkpoints": run.model.layers}
    text = json.dumps(config, indent=2) + "\n"
    return text, unsaid(run, text, Path("ds_config.json"), "a DeepSpeed JSON", model=_model(run))


def torchtitan_toml(run: Run) -> tuple[str, list[str]]:
    """A torchtitan configuration, and what it cannot say."""
    plan, optimizer, schedule = run.plan, run.optimizer, run.optimizer.schedule
    flavor = next((key for key, model in FLAVORS.items() if _is_flavor(run, model)), None)
    pipeline = plan.pipeline_parallel > 1
    local = plan.global_batch_size // plan.data_parallel if pipeline else plan.micro_batch_size
    tables: dict[str, dict[str, Any]] = {
        "model": dict(zip(("name", "flavor"), flavor, strict=True)) if flavor else {},
        "training": {
            "local_batch_size": local,
            "global_batch_size": plan.global_batch_size,
            "seq_len": run.model.seq_length,
            "steps": run.train.steps,
            "max_norm": optimizer.clip_norm,
            "mixed_precision_param": DTYPES.get(plan.precision, "bfloat16"),
            "mixed_precision_reduce": DTYPES.get(plan.gradient_dtype, "float32"),
            "enable_cpu_offload": plan.offload.parameters == "cpu",
        },
        "parallelism": {
            "data_parallel_shard_degree": plan.data_parallel,
            "tensor_parallel_degree": plan.tensor_parallel,
            "pipeline_parallel_degree": plan.pipeline_parallel,
            "context_parallel_degree": plan.context_parallel,
            "fsdp_reshard_after_forward": "always" if plan.zero.reshard else "never",
        },
        "activation_checkpoint": {"mode": plan.recompute if plan.recompute != "layers" else "none"},
        "compile": {"enable": plan.kernels == "compiled"},
        "optimizer": {
            "name": "AdamW",
            "lr": optimizer.lr,
            "beta1": optimizer.betas[0],
            "beta2": optimizer.betas[1],
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
        },
        "lr_scheduler": {
            "warmup_steps": schedule.warmup_steps,
            "decay_type": {"constant": "sqrt"}.get(schedule.kind, schedule.kind),
            "min_lr_factor": schedule.min_lr / optimizer.lr if optimizer.lr else 0.0,
        },
        "debug": {"seed": run.train.seed},
    }
    if pipeline:
        tables["parallelism"]["pipeline_parallel_microbatch_size"] = plan.micro_batch_size
    if run.checkpoint.every:
        tables["checkpoint"] = {"enable": True, "interval": run.checkpoint.every}
    text = "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for name, keys in tables.items()
    )
    return text, unsaid(run, text, Path("run.toml"), "a torchtitan TOML", model=None if flavor else _model(run))


def _model(run: Run) -> dict[str, Any]:
    found = run.to_dict()["model"]
    return dict(found)


def _is_flavor(run: Run, model: str | dict[str, Any]) -> bool:
    """Whether the run's model is a flavor's, whatever its sequence length."""
    if isinstance(model, str) and model not in presets.names("models"):
        return False
    keys = {"preset": model} if isinstance(model, str) else model
    length = {"seq_length": run.model.seq_length, "max_positions": run.model.max_positions}
    cluster, plan = {"preset": "cpu"}, {"global_batch_size": 1}
    try:
        named = load({"model": {**keys, **length}, "cluster": {**cluster, "gpus": 1}, "plan": plan})
    except InputError:
        return False
    return not differences(run.model, named.model, ("name",))


def unsaid(run: Run, text: str, where: Path, what: str, model: dict[str, Any] | None) -> list[str]:
    """Keys of a run that come back otherwise when the text is read again, and what is read."""
    cluster = run.to_dict()["cluster"]
    try:
        again = load(import_text(text, where, Request(cluster, model=model)).run_dict)
    except InputError as error:
        return [f"{what} of this run is refused when it is read again: {problem}" for problem in error.problems]
    found: list[str] = []
    if model is not None:
        found.append(f"{what} does not say the model, {run.model.name}: give --model when it is read")
    for section in SECTIONS:
        for key, ours, theirs in differences(getattr(run, section), getattr(again, section), ("name",)):
            found.append(f"{what} cannot say {section}.{key} {ours}: it is read as {theirs}")
    return found


def differences(first: Any, second: Any, aside: tuple[str, ...] = ()) -> list[tuple[str, Any, Any]]:
    """Dotted fields in which two records differ, with both values."""
    found: list[tuple[str, Any, Any]] = []
    for name in (field.name for field in fields(first) if field.name not in aside):
        ours, theirs = getattr(first, name), getattr(second, name)
        if is_dataclass(ours) and is_dataclass(theirs):
            found += [(f"{name}.{key}", a, b) for key, a, b in differences(ours, theirs)]
        elif ours != theirs:
            found.append((name, ours, theirs))
    return found
