"""The importer's first rule, flag by flag: whatever is given changes the run or is spoken of."""

import json
from pathlib import Path

import pytest

from plan.importers import deepspeed_keys, flags
from plan.importers.ledger import set_path
from tests.plan.importers.imported import SHAPE, ImportResult, imported

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
    return {*result.notes, *result.warnings, *result.problems}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ImportResult:
    """The script without further flags."""
    return imported(tmp_path_factory.mktemp("plain"), BASE, cluster="dgx-a100-80gb")


@pytest.mark.parametrize("flag", flags.known_flags())
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
        assert any(f"unknown flag {flag}" in warning for warning in result.warnings)


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
        *sorted(deepspeed_keys.TOP),
        *(f"{section}.{key}" for section, known in deepspeed_keys.SECTIONS.items() for key in sorted(known)),
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


@pytest.mark.parametrize("path", sorted(deepspeed_keys.OBJECTS))
def test_a_value_where_an_object_belongs(path: str, tmp_path: Path) -> None:
    """A problem that names the key, never a traceback."""
    config: dict[str, object] = {"train_batch_size": 8}
    set_path(config, path, "adam")
    result = imported(tmp_path, json.dumps(config), "ds.json", cluster="dgx-a100-80gb", model="gpt3-13b")
    assert any(f"{path} is 'adam', but must be an object" in problem for problem in result.problems)
