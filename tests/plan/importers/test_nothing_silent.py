"""The importer's first rule, flag by flag: whatever is given changes the run or is spoken of."""

from pathlib import Path

import pytest

from plan.importers import flags
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
