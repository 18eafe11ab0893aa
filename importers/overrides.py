"""`--set` written into a file's own keys before it is translated, so that all that follows from them (world size,
batch, accumulation, feed-forward width, steps, notes, warnings) is derived once, from what the user means.

    asked = flat(["plan.micro_batch_size=2", "cluster.gpus=4"])       # {"plan.micro_batch_size": 2, "cluster.gpus": 4}
    laid(config, asked, DEEPSPEED)                                      # the JSON with train_micro_batch_size_per_gpu 2
"""

from collections.abc import Mapping, Sequence
from typing import Any

from program.errors import InputError
from program.files import parse_yaml

MEGATRON = {
    "model.layers": "--num-layers",
    "model.hidden": "--hidden-size",
    "model.heads": "--num-attention-heads",
    "model.ffn": "--ffn-hidden-size",
    "model.seq_length": "--seq-length",
    "model.vocab": "--vocab-size",
    "plan.tensor_parallel": "--tensor-model-parallel-size",
    "plan.pipeline_parallel": "--pipeline-model-parallel-size",
    "plan.context_parallel": "--context-parallel-size",
    "plan.micro_batch_size": "--micro-batch-size",
    "plan.global_batch_size": "--global-batch-size",
    "train.steps": "--train-iters",
}
DEEPSPEED = {
    "plan.micro_batch_size": "train_micro_batch_size_per_gpu",
    "plan.global_batch_size": "train_batch_size",
    "plan.zero_stage": "zero_optimization.stage",
}
NEOX = DEEPSPEED | {
    "model.layers": "num_layers",
    "model.hidden": "hidden_size",
    "model.heads": "num_attention_heads",
    "model.ffn": "intermediate_size",
    "model.seq_length": "seq_length",
    "plan.tensor_parallel": "model_parallel_size",
    "plan.pipeline_parallel": "pipe_parallel_size",
    "train.steps": "train_iters",
}
TORCHTITAN = {
    "model.seq_length": "training.seq_len",
    "plan.tensor_parallel": "parallelism.tensor_parallel_degree",
    "plan.pipeline_parallel": "parallelism.pipeline_parallel_degree",
    "plan.context_parallel": "parallelism.context_parallel_degree",
    "plan.micro_batch_size": "training.local_batch_size",
    "plan.global_batch_size": "training.global_batch_size",
    "train.steps": "training.steps",
}


def flat(overrides: Sequence[str]) -> dict[str, Any]:
    """`--set` texts as dotted keys and values. What is no `section.key=value` is left to whoever loads the run."""
    found: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if equals:
            try:
                found[key.strip()] = parse_yaml(value, f"--set {text}")
            except InputError:
                continue
    return found


def laid(keys: Mapping[str, Any], asked: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """A file's keys with what was asked for in them; `words` are the file's names of the run's keys. A whole batch
    that is asked for takes the place of an accumulation."""
    result = dict(keys)
    for key, name in words.items():
        if key not in asked or not isinstance(asked[key], int):
            continue
        level, *inner = name.split(".", 1)
        if inner:
            section = result.get(level)
            result[level] = laid(section if isinstance(section, Mapping) else {}, {key: asked[key]}, {key: inner[0]})
        else:
            result[name] = asked[key]
    if {"plan.global_batch_size", "plan.micro_batch_size"} & asked.keys() and "train_batch_size" in result:
        result.pop("gradient_accumulation_steps", None)
    return result
