"""Foreign files on the command line: a launch script goes straight into forecast, program and import."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plan.run import load
from tests.windtunnel.test_schemas import obeys

Call = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size ${TP} --num-layers 4 --hidden-size 256 \\
  --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 \\
  --bf16
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A Megatron launch script that leaves its tensor-parallel degree to the environment."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


HERE = ("--cluster", "dgx-h100", "--nodes", 1, "--var", "TP=2")


def test_a_script_is_forecast_with_what_its_importer_says(script: Path, wt: Call) -> None:
    found = wt("forecast", script, *HERE, "--json").json
    obeys("forecast", found)
    assert found["gpus"] == 8
    assert found["run"]["plan"]["tensor_parallel"] == 2
    assert any("data_parallel 4" in note for note in found["notes"])
    assert "data_parallel 4" in wt("forecast", script, *HERE).out


def test_the_imported_run_file_means_the_same_run(script: Path, wt: Call, tmp_path: Path) -> None:
    called = wt("import", script, *HERE)
    (tmp_path / "run.yaml").write_text(called.out)
    again = wt("import", script, *HERE, "--json").json
    obeys("import", again)
    assert load(tmp_path / "run.yaml") == load(again["run"])
    assert "# data_parallel 4" in called.out


def test_set_overrides_what_the_script_says(script: Path, wt: Call) -> None:
    text = wt("import", script, *HERE, "--set", "plan.recompute=full").out
    assert yaml.safe_load(text)["plan"]["recompute"] == "full"


def test_a_translation_alone_needs_no_cluster(script: Path, wt: Call) -> None:
    """It is a run file but for the cluster, which `forecast` asks for."""
    text = wt("import", script, "--var", "TP=2").out
    assert yaml.safe_load(text)["plan"]["tensor_parallel"] == 2
    assert "cluster" not in yaml.safe_load(text)
    assert "nothing says which GPUs run this" in wt("forecast", script, "--var", "TP=2").err


def test_an_unknown_flag_of_the_model_is_refused_with_the_command_that_goes_on(script: Path, wt: Call) -> None:
    script.write_text(SCRIPT.replace("--bf16", "--bf16 --attention-head-type multiquery"))
    refused = wt("forecast", script, *HERE)
    assert refused.code == 2
    assert "unknown flag --attention-head-type multiquery" in refused.err
    assert wt("forecast", script, *HERE, "--accept-unknown").code == 0


def test_set_reaches_what_follows_from_a_file(script: Path, wt: Call) -> None:
    found = wt("forecast", script, *HERE, "--set", "cluster.gpus=4", "--json").json
    assert found["gpus"] == 4
    assert any("data_parallel 2 = 4 GPUs" in note for note in found["notes"])


def test_an_undefined_variable_names_the_option_that_defines_it(script: Path, wt: Call) -> None:
    called = wt("program", script, *HERE[:4])
    assert called.code == 2
    assert "$TP is not defined in the script; --var NAME=VALUE defines it" in called.err


def test_an_argument_of_the_script_is_given_as_a_variable(script: Path, wt: Call) -> None:
    script.write_text(SCRIPT.replace("${TP}", "$1"))
    called = wt("forecast", script, "--cluster", "dgx-h100", "--nodes", 1)
    assert "it comes from the script's argument $1; --var 1=VALUE gives it" in called.err
    found = wt("forecast", script, "--cluster", "dgx-h100", "--nodes", 1, "--var", "1=4", "--json").json
    assert found["run"]["plan"]["tensor_parallel"] == 4


def test_an_exported_run_imports_as_the_same_plan(script: Path, wt: Call, tmp_path: Path) -> None:
    called = wt("export", script, *HERE, "--output", tmp_path / "out.sh")
    assert called.code == 0
    obeys("export", wt("export", script, *HERE, "--json").json)
    first = wt("import", script, *HERE, "--json").json["run"]
    again = wt("import", tmp_path / "out.sh", *HERE, "--json").json["run"]
    assert again["plan"] == first["plan"]
    assert {**again["model"], "name": ""} == {**first["model"], "name": ""}


def test_what_a_framework_cannot_say_is_refused(wt: Call) -> None:
    called = wt("export", ROOT / "examples" / "cpu-pp2.yaml", "--set", "plan.schedule=gpipe")
    assert called.code == 2
    assert called.err.strip()


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "examples").glob("*.yaml")))
def test_every_example_run_file_compiles(name: str, wt: Call) -> None:
    assert wt("program", ROOT / "examples" / name, "--csv").code == 0


@pytest.mark.parametrize(
    ("name", "options", "gpus"),
    [
        ("gpt3-175b-megatron.sh", ("--cluster", "dgx-a100-80gb", "--nodes", 128), 1024),
        ("bloom-176b.sh", (), 384),
    ],
)
def test_published_scripts_are_forecast(name: str, options: tuple[object, ...], gpus: int, wt: Call) -> None:
    called = wt("forecast", ROOT / "examples" / name, *options, "--json")
    assert called.code == 0
    assert called.json["gpus"] == gpus
    assert called.json["memory"]["fits"]
