"""The importer's first rule, flag by flag: whatever is given changes the run or is spoken of."""

import json
from pathlib import Path

import pytest

from importers import deepspeed_table, neox_table
from importers import megatron_table as flags
from importers.torchtitan_table import KEYS as TITAN
from plan.ledger import set_path
from tests.importers.imported import SHAPE, ImportResult, imported, said

BASE = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --pipeline-model-parallel-size 2"
VALUES = {
    "--position-embedding-type": "rope",
    "--normalization": "RMSNorm",
    "--recompute-granularity": "selective",
    "--recompute-method": "block",
    "--recompute-modules": "mlp",
    "--attention-backend": "flash",
    "--transformer-impl": "local",
    "--lr-decay-style": "cosine",
    "--lr-decay-samples": "400",
    "--lr-warmup-samples": "40",
    "--data-parallel-sharding-strategy": "optim",
    "--pp-partition-method": "uniform",
    "--pipeline-model-parallel-layout": "'Ett|ttL'",
    "--pipeline-model-parallel-size": "4",
    "--remote-device": "cpu",
    "--rampup-batch-size": "8 8 100",
    "--step-batch-size-schedule": "0:8",
}


def sentences(result: ImportResult) -> set[str]:
    """Everything an import said."""
    return {*result.notes, *result.warnings, *result.problems, *map(str, result.assumptions)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ImportResult:
    """The script without further flags."""
    return imported(tmp_path_factory.mktemp("plain"), BASE, cluster="dgx-a100-80gb")


@pytest.mark.parametrize("flag", [*flags.FLAGS, *flags.RENAMED])
def test_every_known_flag_is_accounted_for(flag: str, plain: ImportResult, tmp_path: Path) -> None:
    """A value other than the default changes the run, or a new sentence is said."""
    arity = flags.arity(flag)
    assert arity is not None
    value = VALUES.get(flag, "2") if arity.least else ""
    result = imported(tmp_path, f"{BASE} {flag} {value}", cluster="dgx-a100-80gb")
    assert result.run_dict != plain.run_dict or sentences(result) - sentences(plain)


@pytest.mark.parametrize("flag", ["--no-such-thing", "--numlayers", "--tensor_model_parallel_size"])
def test_every_unknown_flag_is_reported(flag: str, tmp_path: Path) -> None:
    """With or without a value, never in silence."""
    for value in ("", " 2", "=2"):
        result = imported(tmp_path, f"{BASE} {flag}{value}", cluster="dgx-a100-80gb")
        assert said(result, f"unknown flag {flag}")


CONFIG = {
    "train_batch_size": 8,
    "optimizer": {"type": "Adam"},
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}
OBJECT_VALUES = {
    "optimizer": {"type": "Lion"},
    "scheduler": {"type": "OneCycle"},
    "data_types": {"grad_accum_dtype": "fp32"},
}
DEEPSPEED_VALUES: dict[str, object] = {
    "fp16": {"enabled": False},
    "bf16": {"enabled": True},
    "bf16.enabled": True,
    "activation_checkpointing": {"profile": True},
    "zero_optimization": {"stage": 1},
    "zero_optimization.offload_optimizer": {"device": "cpu"},
    "zero_optimization.offload_param": {"device": "cpu"},
    "zero_optimization.overlap_comm": False,
    **OBJECT_VALUES,
}


def deepspeed_paths() -> list[str]:
    """Every known key, dotted."""
    return [
        *(name for name in deepspeed_table.KEYS if "optimizer.params" not in name and "scheduler.params" not in name)
    ]


@pytest.mark.parametrize("path", deepspeed_paths())
def test_every_deepspeed_key_is_accounted_for(path: str, tmp_path: Path) -> None:
    """A value changes the run or is spoken of."""
    config: dict[str, object] = json.loads(json.dumps(CONFIG))
    value = DEEPSPEED_VALUES.get(path, 2)
    set_path(config, path, value)
    request = {"cluster": "dgx-a100-80gb", "nodes": 1, "model": "gpt3-13b"}
    plain = imported(tmp_path, json.dumps(CONFIG), "ds.json", **request)
    result = imported(tmp_path, json.dumps(config), "ds.json", **request)
    assert result.run_dict != plain.run_dict or sentences(result) - sentences(plain)
    assert not any("unknown" in warning for warning in result.warnings)


@pytest.mark.parametrize("path", sorted(deepspeed_table.OBJECTS))
def test_a_value_where_an_object_belongs(path: str, tmp_path: Path) -> None:
    """A problem that names the key, never a traceback."""
    config: dict[str, object] = {"train_batch_size": 8}
    set_path(config, path, "adam")
    result = imported(tmp_path, json.dumps(config), "ds.json", cluster="dgx-a100-80gb", model="gpt3-13b")
    assert any(f"{path} is 'adam', but must be an object" in problem for problem in result.problems)


NEOX = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "pipe_parallel_size": 1,
    "model_parallel_size": 2, "vocab_size": 1000, "train_micro_batch_size_per_gpu": 1, "checkpoint_activations": True,
    "train_iters": 1000,
}  # fmt: skip
NEOX_VALUES: dict[str, object] = {
    "pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "mlp_type": "llama", "precision": "fp16",
    "attention_config": [[["flash"], 4]], "lr_decay_style": "cosine", "gpt_j_residual": True, "gpt_j_tied": True,
    "no_weight_tying": True, "use_bias_in_mlp": False, "use_bias_in_attn_linear": False, "sequence_parallel": True,
    "partition_activations": True, "synchronize_each_layer": True, "checkpoint_activations": False,
    "hidden_dropout": 0.1, "attention_dropout": 0.1, "rotary_pct": 0.5, "warmup": 0.5, "mlp_multiple_of": 512,
    "max_position_embeddings": 64, "train_iters": 50, "use_qk_layernorm": True,
    **dict.fromkeys((*neox_table.FUSIONS, *neox_table.TRANSFORMER_ENGINE), True),
}  # fmt: skip


@pytest.mark.parametrize("key", sorted(neox_table.KEYS))
def test_every_neox_key_is_accounted_for(key: str, tmp_path: Path) -> None:
    """A value other than the default changes the run or is spoken of."""
    request = {"cluster": "dgx-a100-80gb", "nodes": 1}
    plain = imported(tmp_path, json.dumps(NEOX), "x.yml", **request)
    result = imported(tmp_path, json.dumps(NEOX | {key: NEOX_VALUES.get(key, 8)}), "x.yml", **request)
    assert result.run_dict != plain.run_dict or sentences(result) - sentences(plain)
    assert not any("unknown" in warning for warning in result.warnings)


TITAN_VALUES: dict[str, object] = {
    **{name: True for name, key in TITAN.items() if key.kind == "switch"},
    **{name: key.words[1] for name, key in TITAN.items() if key.words},
    "training.dtype": "bfloat16", "training.mixed_precision_param": "float32", "training.global_batch_size": 128,
    "training.mixed_precision_reduce": "bfloat16", "parallelism.fsdp_reshard_after_forward": "never",
    "parallelism.pipeline_parallel_schedule": "GPipe", "activation_checkpoint.selective_ac_option": "2",
    "model.name": "llama2", "model.flavor": "70B", "model.converters": ["float8"], "optimizer.name": "SGD",
    "training.num_tokens_per_microbatch_per_dp_rank": 8192, "training.num_tokens_per_train_step": 65536,
    "lr_scheduler.decay_type": "cosine", "lr_scheduler.min_lr_factor": 0.5, "optimizer.beta1": 0.5,
    "optimizer.beta2": 0.5, "compile.enable": False,
}  # fmt: skip
NEEDED = {"parallelism.num_pp_microbatches": 4, "parallelism.pipeline_parallel_microbatch_size": 4}


@pytest.mark.parametrize("key", sorted(name for name, key in TITAN.items() if key.effect == "read"))
def test_every_torchtitan_key_is_accounted_for(key: str, tmp_path: Path) -> None:
    """A value other than the default changes the run or is spoken of, where the key it hangs on is given."""
    request = {"cluster": "dgx-a100-80gb", "nodes": 1}
    rows = {"model.name": "llama3", "model.flavor": "8B"}
    if "pp_" in key or "pipeline_parallel_" in key:
        rows |= {"parallelism.pipeline_parallel_degree": 2, "training.local_batch_size": 8}
    if key == "checkpoint.interval":
        rows["checkpoint.enable"] = True
    if key == "checkpoint.enable":
        rows["checkpoint.interval"] = 10

    def text(rows: dict[str, object]) -> str:
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in rows.items())

    value = TITAN_VALUES.get(key, NEEDED.get(key, 4))
    plain = imported(tmp_path, text(rows), "x.toml", **request)
    result = imported(tmp_path, text(rows | {key: value}), "x.toml", **request)
    assert result.run_dict != plain.run_dict or sentences(result) - sentences(plain)
    assert not any("unknown" in warning for warning in result.warnings)
