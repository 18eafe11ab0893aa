"""`--set` of every key on every format gives the run of the same file with that value written in it: what follows from
a value (world size, batch, accumulation, feed-forward width, steps, warm-up, notes) follows from the one that is meant.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from importers import ImportResult, import_file
from plan.run import override

Written = Callable[[str, dict[str, Any]], str | None]
"""A file with some keys of a run written in it; None where its format has no word for one of them."""


def flags(text: str, values: dict[str, Any]) -> str | None:
    """A Megatron script with other values behind its flags."""
    words = {
        "plan.tensor_parallel": "--tensor-model-parallel-size",
        "plan.pipeline_parallel": "--pipeline-model-parallel-size",
        "plan.micro_batch_size": "--micro-batch-size",
        "plan.global_batch_size": "--global-batch-size",
        "model.seq_length": "--seq-length",
        "model.hidden": "--hidden-size",
        "model.layers": "--num-layers",
        "model.vocab": "--vocab-size",
        "cluster.gpus": "--nproc_per_node",
        "cluster.nodes": "--nnodes",
    }
    for key, value in values.items():
        text = re.sub(rf"{words[key]} \d+", "", text)
        place = "pretrain_gpt.py" if key.startswith("cluster") else "\n#"
        text = text.replace(place, f" {words[key]} {value} {place}", 1)
    return text


def keys(words: dict[str, str], separator: str) -> Written:
    """A file of `key: value` lines under section lines, with other values behind its keys."""

    def written(text: str, values: dict[str, Any]) -> str | None:
        for key, value in values.items():
            if key not in words:
                return None
            section, name = words[key].split("/")
            text = re.sub(rf'^"?{name}"? *{separator}.*\n', "", text, flags=re.MULTILINE)
            line = f"{name}{separator} {value}\n"
            text = text.replace(section, f"{section}\n{line}", 1) if section else line + text
        return text

    return written


def laid_json(text: str, values: dict[str, Any]) -> str | None:
    """A DeepSpeed JSON."""
    words = {"plan.micro_batch_size": "train_micro_batch_size_per_gpu", "plan.global_batch_size": "train_batch_size"}
    config = json.loads(text)
    for key, value in values.items():
        if key not in words:
            return None
        config[words[key]] = value
        if "train_batch_size" in config:
            config.pop("gradient_accumulation_steps", None)
    return json.dumps(config)


def dotted(words: dict[str, str]) -> Written:
    """A JSON text of nested keys."""

    def written(text: str, values: dict[str, Any]) -> str | None:
        config = json.loads(text)
        for key, value in values.items():
            if key not in words:
                return None
            *above, last = words[key].split(".")
            level = config
            for name in above:
                level = level[name]
            level[last] = value
        return json.dumps(config)

    return written


NEMO = {"layers": "num_layers", "hidden": "hidden_size", "seq_length": "encoder_seq_length", "vocab": "vocab_size"}
NEMO_WORDS = {f"model.{key}": f"model.{word}" for key, word in NEMO.items()}
NEMO_WORDS |= {f"plan.{name}": f"model.{name}" for name in ("micro_batch_size", "global_batch_size")}
NEMO_WORDS |= {f"plan.{name}_parallel": f"model.{name}_model_parallel_size" for name in ("tensor", "pipeline")}
NEMO_MODEL = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "encoder_seq_length": 32}
NEMO_MODEL |= {"vocab_size": 1000, "micro_batch_size": 2, "global_batch_size": 32, "tensor_model_parallel_size": 1}
MPT = {"d_model": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 1000}
MPT_FILE = {"max_seq_len": 32, "model": MPT, "global_train_batch_size": 64, "device_train_microbatch_size": 2}
MPT_WORDS = {"model.layers": "model.n_layers", "model.hidden": "model.d_model", "model.vocab": "model.vocab_size"}
MPT_WORDS |= {"model.seq_length": "max_seq_len", "plan.global_batch_size": "global_train_batch_size"}
MPT_WORDS |= {"plan.micro_batch_size": "device_train_microbatch_size"}
AXOLOTL = {"base_model": "llama-2-7b", "sequence_len": 32, "micro_batch_size": 2, "gradient_accumulation_steps": 2}
AXOLOTL |= {"bf16": True}
AXOLOTL_WORDS = {"model.seq_length": "sequence_len", "plan.micro_batch_size": "micro_batch_size"}
SCRIPT = (
    "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --num-layers 4 "
    "--hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 1000 --micro-batch-size 2 --bf16 --swiglu "
    "--train-samples 6400 --lr 1e-4 --lr-warmup-fraction 0.1 {}\n#\n"
)
NEOX = """num_layers: 4
hidden_size: 64
num_attention_heads: 4
seq_length: 32
vocab_size: 1000
max_position_embeddings: 128
train_micro_batch_size_per_gpu: 2
gradient_accumulation_steps: 2
train_iters: 200
"""
NEOX_WORDS = {
    "plan.tensor_parallel": "/model_parallel_size",
    "plan.pipeline_parallel": "/pipe_parallel_size",
    "plan.micro_batch_size": "/train_micro_batch_size_per_gpu",
    "model.seq_length": "/seq_length",
    "model.hidden": "/hidden_size",
    "model.layers": "/num_layers",
    "model.vocab": "/vocab_size",
}
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 4096
local_batch_size = 2
[parallelism]
tensor_parallel_degree = 1
"""
TITAN_WORDS = {
    "plan.tensor_parallel": "[parallelism]/tensor_parallel_degree",
    "plan.pipeline_parallel": "[parallelism]/pipeline_parallel_degree",
    "plan.global_batch_size": "[training]/global_batch_size",
    "model.seq_length": "[training]/seq_len",
}
CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
CONFIG |= {"num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 128}
ZERO = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
FORMATS: dict[str, tuple[str, str, Written]] = {
    "script": ("run.sh", SCRIPT.format(""), flags),
    "script with a batch": ("run.sh", SCRIPT.format("--global-batch-size 32"), flags),
    "script with deepspeed": ("run.sh", SCRIPT.format("--deepspeed --deepspeed_config ds.json"), flags),
    "deepspeed": ("ds.json", json.dumps(ZERO | {"gradient_accumulation_steps": 2}), laid_json),
    "deepspeed with a batch": ("ds.json", json.dumps(ZERO | {"train_batch_size": 32}), laid_json),
    "neox": ("neox.yml", NEOX, keys(NEOX_WORDS, ":")),
    "torchtitan": ("titan.toml", TITAN, keys(TITAN_WORDS, " =")),
    "nemo": ("nemo.yaml", json.dumps({"trainer": {"precision": "bf16"}, "model": NEMO_MODEL}), dotted(NEMO_WORDS)),
    "llm-foundry": ("mpt.yaml", json.dumps(MPT_FILE | {"fsdp_config": {}}), dotted(MPT_WORDS)),
    "axolotl": ("axolotl.yaml", json.dumps(AXOLOTL), dotted(AXOLOTL_WORDS)),
    "config.json": ("config.json", json.dumps(CONFIG), lambda text, values: None),
}
VALUES = {
    "plan.tensor_parallel": 2,
    "plan.pipeline_parallel": 2,
    "plan.micro_batch_size": 4,
    "plan.global_batch_size": 64,
    "model.seq_length": 64,
    "model.hidden": 128,
    "model.layers": 8,
    "model.vocab": 2000,
    "cluster.gpus": 4,
    "cluster.nodes": 2,
}


def read(folder: Path, name: str, text: str, **request: Any) -> ImportResult:
    """Import a text on H100 nodes."""
    (folder / name).write_text(text)
    (folder / "ds.json").write_text(text if name == "ds.json" else json.dumps({"zero_optimization": {"stage": 1}}))
    model = "gpt2-355m" if name == "ds.json" else None
    return import_file(folder / name, **({"cluster": "dgx-h100", "model": model, "refuse": False} | request))


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("format_", FORMATS)
def test_an_override_is_as_if_the_file_said_so(tmp_path: Path, format_: str, key: str) -> None:
    """The whole run is the same; where the format has no word for the key, the batch closes with what is asked."""
    name, text, write = FORMATS[format_]
    asked = [f"{key}={VALUES[key]}"]
    over = read(tmp_path, name, text, overrides=asked)
    found = override(over.run_dict, asked)
    other = write(text, {key: VALUES[key]})
    if other is not None and (problems := read(tmp_path, name, other).problems):
        assert over.problems == problems  # FSDP inside pipeline stages
        return
    assert not over.problems
    if key.startswith("cluster"):
        section = {"preset": "dgx-h100", key.split(".")[1]: VALUES[key]}
        expected = read(tmp_path, name, text.replace(" --nproc_per_node 8", ""), cluster=section).run_dict
    elif other is not None:
        expected = read(tmp_path, name, other).run_dict
    else:
        plan, cluster = found["plan"], found["cluster"]
        ranks = 8 * cluster.get("nodes", 1)
        ranks //= plan.get("tensor_parallel", 1) * plan.get("pipeline_parallel", 1)
        whole = plan.get("global_batch_size", 0)
        steps = {"deepspeed": 2, "neox": 2, "torchtitan": 1, "axolotl": 2}.get(format_, 0)
        assert whole == (VALUES[key] if key.endswith("global_batch_size") else whole)
        if steps and not key.endswith("global_batch_size"):
            assert whole == plan["micro_batch_size"] * steps * ranks
        return
    assert {part: found[part] for part in ("model", "plan")} == {part: expected[part] for part in ("model", "plan")}
    assert found.get("train") == expected.get("train")
    assert found.get("optimizer") == expected.get("optimizer")
