"""A corpus of small files, each with one construct that people's files have: `corpus/expected.yaml` says what its
framework would run. Files are ours; the constructs are public ones.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from importers import import_file
from plan.run import load
from program.errors import InputError
from program.files import mapping_from_yaml, parse_yaml

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


BAD: list[Any] = [None, -1, 0, 1.5, "x", "", [], {}, [1, "a"], {"a": 1}, True, 10**30, "${x.y}", float("nan")]


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of a nested mapping, by its way."""
    found = []
    for key, inner in value.items() if isinstance(value, dict) else ():
        found += [(*above, key), *paths(inner, (*above, key))]
    return found


@pytest.mark.parametrize("name", [name for name in EXPECTED if Path(name).suffix in (".json", ".yml", ".yaml")])
def test_no_value_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    """Each second key with a value that does not belong there, one after the other of all kinds."""
    text = (CORPUS / name).read_text()
    content = parse_yaml(re.sub("//.*|,(?=\\s*})", "", text), name)
    (tmp_path / "zero3-auto.json").write_text((CORPUS / "zero3-auto.json").read_text())
    for number, (*above, last) in list(enumerate(paths(content)))[::2]:
        wrong = json.loads(json.dumps(content))
        level = wrong
        for key in above:
            level = level[key]
        level[last] = BAD[number // 2 % len(BAD)]
        (tmp_path / name).write_text(json.dumps(wrong))
        with suppress(InputError):
            load(import_file(tmp_path / name, cluster="dgx-h100", nodes=1, model=EXPECTED[name].get("model")).run_dict)


def test_the_corpus_is_wide() -> None:
    """Every file of the folder is one of the table's, or stands beside one of them."""
    beside = {"expected.yaml", "zero1.json", "zero3-auto.json", "titan-base.toml"}
    assert {path.name for path in CORPUS.iterdir()} == EXPECTED.keys() | beside
    assert len(EXPECTED) >= 60
