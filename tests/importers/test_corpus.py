"""A corpus of small files, each with one construct that people's files have: `corpus/expected.yaml` says what its
framework would run. Files are ours; the constructs are public ones.
"""

from pathlib import Path
from typing import Any

import pytest

from importers import import_file
from plan.run import load
from program.files import mapping_from_yaml

CORPUS = Path(__file__).parent / "corpus"
EXPECTED: dict[str, dict[str, Any]] = mapping_from_yaml(CORPUS / "expected.yaml")


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_means_what_its_framework_runs(name: str) -> None:
    """Parameters to 0.1 %, GPUs, batch, precision, attention, recompute and degrees."""
    expected = dict(EXPECTED[name])
    asked = {key: expected.pop(key) for key in ("nodes", "model") if key in expected}
    run = load(import_file(CORPUS / name, cluster="dgx-h100", **asked).run_dict)
    plan = run.plan
    assert run.model.parameters() == pytest.approx(expected.pop("parameters"), rel=1e-3)
    assert {
        "gpus": run.cluster.gpus,
        "micro": plan.micro_batch_size,
        "batch": plan.global_batch_size,
        "precision": plan.precision,
        "attention": plan.attention,
        "recompute": plan.recompute_layers if plan.recompute == "layers" else plan.recompute,
        "tensor": plan.tensor_parallel,
        "pipeline": plan.pipeline_parallel,
        "zero": plan.zero_stage,
    } == expected


def test_the_corpus_is_wide() -> None:
    """Every file of the folder is one of the table's, or stands beside one of them."""
    beside = {"expected.yaml", "zero1.json", "zero3-auto.json", "titan-base.toml"}
    assert {path.name for path in CORPUS.iterdir()} == EXPECTED.keys() | beside
    assert len(EXPECTED) >= 60
