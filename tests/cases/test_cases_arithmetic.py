"""Cases of kind `arithmetic-error`, at the level of run files and the command line: wrong sums are named, with repairs.

The same faults in other frameworks' files are in `test_cases_import.py`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from plan.layout import layout
from plan.run import load
from program.errors import InputError
from tests.cases.facts import case, forecast
from windtunnel.output import json_text

Call = Callable[..., Any]


def problems(**sections: Any) -> str:
    """Everything that is wrong with a run."""
    with pytest.raises(InputError) as error:
        load(sections)
    assert error.value.exit_code == 2
    return "\n".join(error.value.problems)


def test_060_a_batch_that_is_no_product() -> None:
    shape = case("060")["input"]["deepspeed"]
    micro, accumulation = shape["train_micro_batch_size_per_gpu"], shape["gradient_accumulation_steps"]
    said = problems(
        model="gpt2-124m",
        cluster={"preset": "dgx-a100-80gb", "gpus": 3},
        plan={"micro_batch_size": micro, "global_batch_size": shape["train_batch_size"], "data_parallel": 3},
    )
    assert f"{shape['train_batch_size']} != {micro} × " in said
    assert "global_batch_size 60 or 72" in said
    assert "data_parallel 2" in said
    run = load(
        {
            "model": "gpt2-124m",
            "cluster": {"preset": "dgx-a100-80gb", "gpus": 1},
            "plan": {"micro_batch_size": micro, "global_batch_size": shape["train_batch_size"]},
        }
    )
    assert run.plan.microbatches == 2 * accumulation  # on one rank: 16, the repair the case asks for


@pytest.mark.parametrize("number", [0, 1])
def test_062_a_world_that_is_not_the_product(number: int) -> None:
    shape = case("062")["input"]["cases"][number]
    world = shape["expected_world"]
    plan = {
        "micro_batch_size": shape["micro"],
        "global_batch_size": shape["train_batch_size"],
        "data_parallel": world,
    }
    said = problems(model="gpt2-124m", cluster={"preset": "dgx-a100-80gb", "gpus": 1}, plan=plan)
    assert f"DP{world} = {world} ranks, but the cluster has 1 GPUs" in said
    assert "nearest plans for 1: TP1 PP1 DP1" in said


def test_064_no_layer_is_dropped() -> None:
    shape = case("064")["input"]
    layers, stages = shape["num_layers"], shape["pp"]
    chunks = layers // stages // shape["num_layers_per_virtual_pipeline_stage"]
    model = {"layers": layers, "hidden": 1024, "heads": 16, "vocab": 50257, "seq_length": 1024}
    cluster = {"preset": "dgx-a100-80gb", "nodes": 2}
    plan = {"implementation": "megatron", "pipeline_parallel": stages, "global_batch_size": 32}
    said = problems(model=model, cluster=cluster, plan=plan | {"virtual_pipeline": chunks})
    assert "80 layers over pipeline_parallel 16 · virtual_pipeline 2 = 32 stages" in said
    for legal in (1, 5):
        run = load({"model": model, "cluster": cluster, "plan": plan | {"virtual_pipeline": legal}})
        placed = [unit for stage in layout(run.model, run.plan) for chunk in stage for unit in chunk]
        assert sorted(placed) == list(range(layers + 2))


@pytest.mark.parametrize(("number", "legal"), [(0, "1, 2, 4, 13, 26, 52"), (1, "1, 2, 4")])
def test_066_heads_over_tensor_parallel_ranks(number: int, legal: str) -> None:
    shape = case("066")["input"]["cases"][number]
    heads = shape["heads"]
    model = {
        "layers": 2, "hidden": heads * 128, "heads": heads, "kv_heads": shape.get("kv_heads", heads), "vocab": 32000,
        "ffn": 4 * heads * 128, "seq_length": 128,
    }  # fmt: skip
    said = problems(model=model, cluster="dgx-a100-80gb", plan={"tensor_parallel": shape["tp"]})
    assert f"tensor_parallel {shape['tp']} does not divide heads {heads}" in said
    assert f"legal: {legal} " in said


def test_068_the_dense_peak_is_stated_beside_every_mfu() -> None:
    shape = case("068")["input"]["cases"][0]
    found = forecast(
        model={"preset": "llama-2-7b", "seq_length": shape["seq"]}, cluster={"preset": "dgx-h100"}, plan={}
    )
    assert found.peak_tflops_per_gpu == pytest.approx(989, abs=1)
    assert found.flop_convention == "exact"
    per_token = (found.mfu or 0.0) * 989.4e12 / found.tokens_per_s_per_gpu
    # full attention square, as the users counted: 9,600 tokens/s are 45-46 % of the dense peak, 24 % of the sparse one
    square = per_token + 6 * 32 * 4096 * shape["seq"]
    mfu = shape["tps"] * square / 989.4e12
    assert mfu == pytest.approx(0.455, abs=0.012)
    assert mfu / 2 == pytest.approx(case("068")["observed"]["user_mfu"][0], abs=0.02)


def test_every_refusal_reads_the_same_on_the_command_line(tmp_path: Any, wt: Call) -> None:
    run = {"model": "gpt2-124m", "cluster": {"preset": "dgx-a100-80gb", "gpus": 1}, "plan": {"data_parallel": 16}}
    path = tmp_path / "run.yaml"
    path.write_text(json_text(run))  # JSON is YAML
    called = wt("forecast", path, "--json")
    assert called.code == 2
    assert called.json["error"]["problems"] == problems(**run).split("\n")
