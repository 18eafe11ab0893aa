"""Changes of a plan in the words of the file that a run was imported from: `--recompute-granularity full` for
`plan.recompute=full` in a Megatron script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plan.run import Run

Word = str | Callable[[Any], str]
"""What stands before the value, or how the value is said."""


IMPLIED = "="
"""The framework does it by itself."""


def _flag(switch: str) -> Callable[[Any], str]:
    return lambda value: switch if value else ""


def _megatron_recompute(value: str) -> str:
    whole = " --recompute-method uniform --recompute-num-layers 1"
    return f"--recompute-granularity {value}{whole if value == 'full' else ''}"


MEGATRON: dict[str, Word] = {
    "plan.micro_batch_size": "--micro-batch-size ",
    "plan.global_batch_size": "--global-batch-size ",
    "plan.recompute": _megatron_recompute,
    "plan.sequence_parallel": _flag("--sequence-parallel"),
    "plan.partition_activations": _flag("--distribute-saved-activations"),
    "plan.tensor_parallel": "--tensor-model-parallel-size ",
    "plan.pipeline_parallel": "--pipeline-model-parallel-size ",
    "plan.zero_stage": lambda value: "--use-distributed-optimizer" if value == 1 else "",
    "plan.offload.optimizer": _flag("--optimizer-cpu-offload"),
}
DEEPSPEED: dict[str, Word] = {
    "plan.micro_batch_size": "train_micro_batch_size_per_gpu: ",
    "plan.global_batch_size": "train_batch_size: ",
    "plan.zero_stage": "zero_optimization.stage: ",
    "plan.offload.optimizer": "zero_optimization.offload_optimizer.device: ",
    "plan.offload.parameters": "zero_optimization.offload_param.device: ",
    "plan.partition_activations": "activation_checkpointing.partition_activations: ",
}
NEOX = DEEPSPEED | {
    "plan.tensor_parallel": "model_parallel_size: ",
    "plan.pipeline_parallel": "pipe_parallel_size: ",
    "plan.recompute": lambda value: "checkpoint_activations: true" if value == "full" else "",
}
TORCHTITAN: dict[str, Word] = {
    "plan.sequence_parallel": IMPLIED,
    "plan.micro_batch_size": "training.local_batch_size = ",
    "plan.global_batch_size": "training.global_batch_size = ",
    "plan.recompute": lambda value: f'activation_checkpoint.mode = "{value}"' if value == "full" else "",
    "plan.tensor_parallel": "parallelism.tensor_parallel_degree = ",
    "plan.pipeline_parallel": "parallelism.pipeline_parallel_degree = ",
}
WORDS = {"megatron": MEGATRON, "deepspeed": DEEPSPEED, "neox": NEOX, "torchtitan": TORCHTITAN}
FOLLOWS = ("plan.data_parallel", "plan.global_batch_size")
"""What follows from the rest in most files."""


def in_words(format_: str, changes: Mapping[str, Any], run: Run) -> str:
    """The changes in a format's words; empty where a change has none."""
    words = WORDS.get(format_, {})
    asked = {key: value for key, value in changes.items() if key != "plan.data_parallel"}  # no framework is told
    said = [_said(words.get(key, ""), value) for key, value in asked.items() if words.get(key) != IMPLIED]
    if not all(said):
        return ""
    if format_ in ("deepspeed", "neox") and "plan.micro_batch_size" in asked:
        said.append(f"gradient_accumulation_steps: {run.plan.microbatches}")
    return (" " if format_ == "megatron" else ", ").join(said)


def _said(word: Word, value: object) -> str:
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return word(value) if callable(word) else f"{word}{shown}" if word else ""
