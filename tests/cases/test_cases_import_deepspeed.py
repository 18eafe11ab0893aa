"""Real cases of DeepSpeed configurations, alone and beside a script, as importer tests: batches that do not multiply
out, misspelt and old keys, `auto`, ZeRO with a pipeline.
"""

import json
from pathlib import Path

import pytest

from importers import ImportResult, import_file
from importers.deepspeed_batch import Batch, solve
from plan.ledger import Ledger
from plan.run import load
from program.errors import InputError
from tests.cases.importing import DGX, case, loaded, read, refused, said


def test_005_the_shape_is_not_six_billion(tmp_path: Path) -> None:
    """4.69B parameters, micro batch 1 = 32 / (1 × 32), recompute off."""
    facts = case("005")
    (tmp_path / "ds.json").write_text(json.dumps(facts["deepspeed"]))
    flags = (
        "--model-parallel-size 1 --batch-size 1 --num-layers 40 --hidden-size 3072 --num-attention-heads 24"
        " --seq-length 1024"
    )
    text = (
        f"deepspeed --num_nodes 4 --num_gpus 8 pretrain_gpt2.py {flags} --max-position-embeddings 2048 --fp16"
        " --no-pipeline-parallel"
    )
    result = read(tmp_path, f"{text} --deepspeed --deepspeed_config ds.json", "run.sh", cluster=DGX)
    assert not result.problems
    assert loaded(result.run_dict).model.parameters() == pytest.approx(4.69e9, rel=0.002)
    plan = result.run_dict["plan"]
    assert (plan["micro_batch_size"], plan["global_batch_size"], plan["zero_stage"], plan["recompute"]) == (
        1,
        32,
        2,
        "none",
    )
    assert plan["communication"] == {"overlap": True}
    assert (plan["implementation"], plan["attention"]) == ("deepspeed", "unfused")
    assert said(result, "ZeRO-2 is forecast with our trainer's granularity", "not reduce_bucket_size 5e+07 elements")
    assert said(result, "gradients are all-reduced in every micro-batch")


def test_060_batch_64_is_not_4_times_8_times_1(tmp_path: Path) -> None:
    """The equation with its numbers and the three repairs."""
    facts = case("060")
    cluster = {"preset": DGX, "gpus": facts["world_size"]}
    result = read(tmp_path, json.dumps(facts["deepspeed"]), "ds.json", cluster=cluster, model="gpt3-13b")
    (problem,) = result.problems
    assert "64 != 4 × 8 × 1" in problem
    for repair in ("2 data-parallel ranks", "gradient_accumulation_steps 16", "train_batch_size 32"):
        assert repair in problem


@pytest.mark.parametrize("number", [0, 1])
def test_062_a_launcher_that_hides_the_world(number: int) -> None:
    """Not only the equation: the launcher and its environment variables."""
    facts = case("062")["cases"][number]
    ledger = Ledger()
    solve(
        Batch(facts["train_batch_size"], facts["micro"], facts["accum"]), 1, "world size 1 of the environment", ledger
    )
    (problem,) = ledger.problems
    assert f"{facts['train_batch_size']} != {facts['micro']} × {facts['accum']} × 1" in problem
    assert f"If {facts['expected_world']} ranks were started" in problem
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"):
        assert name in problem


@pytest.mark.parametrize("ranks", [1, 2, 5, 10, 8, 30])
def test_070_micro_batch_is_ten_over_ranks(tmp_path: Path, ranks: int) -> None:
    """Legal for 1, 2, 5 and 10 ranks; otherwise the arithmetic is shown. Old and misnamed keys are reported."""
    cluster = {"preset": DGX, "gpus": ranks}
    result = read(tmp_path, case("070")["config_text"], "ds.json", cluster=cluster, model="gpt3-13b")
    if 10 % ranks == 0:
        assert result.run_dict["plan"]["micro_batch_size"] == 10 // ranks
        assert not result.problems
    else:
        assert said(result, f"train_batch_size 30 / (accumulation 3 × {ranks} data-parallel ranks)", "1, 2, 5, 10")
    assert result.run_dict["plan"]["offload"]["optimizer"] == "cpu"
    assert result.run_dict["plan"]["communication"]["overlap"] is False
    assert said(result, "comm_overlap", "did you mean zero_optimization.overlap_comm?")
    assert said(result, "loss_scale 4096 is static, so loss_scale_window, hysteresis, min_loss_scale are unused")


def test_072_5e8_is_a_number(tmp_path: Path) -> None:
    """In YAML and in JSON; 5.5e0 is refused for a count of elements."""
    text = case("072")["config_text"]
    result = read(tmp_path, text, "ds.yaml", cluster=DGX, nodes=1, model="gpt3-13b")
    assert said(result, "reduce_bucket_size 5e8 elements")
    assert not result.problems
    as_json = '{"train_batch_size": 8, "zero_optimization": {"stage": 1, "reduce_bucket_size": "5e8"}}'
    assert (
        read(tmp_path, as_json, "ds.json", cluster=DGX, nodes=1, model="gpt3-13b").run_dict["plan"]["communication"][
            "bucket_mb"
        ]
        == 2000.0
    )
    wrong = read(tmp_path, text.replace("5e8", "5.5e0"), "ds.yaml", cluster=DGX, nodes=1, model="gpt3-13b")
    assert said(wrong, "reduce_bucket_size is 5.5", "must be a whole number")


def test_074_a_misspelt_key_is_not_ignored(tmp_path: Path) -> None:
    """A warning that names gradient_clipping; an error only when strict."""
    text = json.dumps(case("074")["deepspeed"])
    result = read(tmp_path, text, "ds.json", cluster=DGX, nodes=1, model="gpt3-13b")
    assert any("gradient_clipp1ng" in each and "gradient_clipping?" in each for each in result.warnings)
    assert not result.problems
    with pytest.raises(InputError, match="gradient_clipp1ng"):
        import_file(tmp_path / "ds.json", cluster=DGX, nodes=1, model="gpt3-13b", strict=True)


def test_076_auto_is_reported_not_passed_on(tmp_path: Path) -> None:
    """Every field still at auto is listed, and what is assumed is said."""
    result = read(tmp_path, case("076")["config_text"], "ds.json", cluster=DGX, nodes=1, model="gpt3-13b")
    fields = ("gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert said(result, 'still "auto"', *fields)
    assert said(result, "batch: 8 a GPU (the default of Hugging Face's Trainer)")
    assert said(result, "reduce_bucket_size 1e+09 elements")


def test_078_zero_2_and_3_with_a_pipeline(tmp_path: Path) -> None:
    """Refused with a pipeline; without one, --no-pipeline-parallel is asked for; ZeRO-1 is allowed."""
    shape = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --bf16"

    def script(degrees: str, stage: int) -> ImportResult:
        config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
        (tmp_path / "ds.json").write_text(json.dumps(config))
        text = f"deepspeed --num_gpus 8 pretrain_gpt.py {shape} {degrees} --deepspeed --deepspeed_config ds.json"
        return read(tmp_path, text, "run.sh", cluster=DGX)

    first, second = case("078")["cases"]
    refused(
        script(f"--pipeline-model-parallel-size {first['pp']}", first["zero"]).run_dict,
        "incompatible with pipeline",
        "zero_stage 1",
    )
    assert said(
        script(f"--tensor-model-parallel-size {second['tp']}", second["zero"]),
        "ZeRO stage 3 needs --no-pipeline-parallel",
    )
    assert load(script(f"--pipeline-model-parallel-size {first['pp']}", 1).run_dict).plan.zero_stage == 1


def test_109_one_trillion_on_one_node(tmp_path: Path) -> None:
    """1.008T parameters, optimizer on the host, parameters on the GPU."""
    facts = case("109")
    flags = (
        f"--num-layers {facts['layers']} --hidden-size {facts['hidden']} --num-attention-heads {facts['heads']}"
        f" --seq-length {facts['seq']} --micro-batch-size {facts['micro']} --fp16 {facts['flag']} --deepspeed"
        f" --no-pipeline-parallel --zero-stage={facts['zero_stage']}"
    )
    text = (
        f"deepspeed --num_nodes={facts['nodes']} --num_gpus={facts['gpus_per_node']} pretrain_gpt.py {flags}"
        " --deepspeed_config=ds.json"
    )
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})
    )
    result = read(tmp_path, text, "run-1t.sh", cluster=DGX)
    assert not result.problems
    assert loaded(result.run_dict).model.parameters() == pytest.approx(1.008e12, rel=0.001)
    assert result.run_dict["plan"]["offload"] == {"optimizer": "cpu"}


def test_115_the_175b_sample_uses_one_node(tmp_path: Path) -> None:
    """Prepended arguments, --flag=value, $(( )) and a loss scale that was meant as a power of two."""
    result = read(tmp_path, case("115")["config_text"], "run-175b.sh", cluster=DGX)
    assert not result.problems
    plan = result.run_dict["plan"]
    assert (plan["zero_stage"], plan["micro_batch_size"], plan["global_batch_size"]) == (3, 4, 32)
    assert result.run_dict["cluster"] == {"preset": DGX, "nodes": 1}
    assert loaded(result.run_dict).model.parameters() == pytest.approx(174.6e9, rel=0.001)
    assert said(result, "--loss-scale 15", "2^15 = 32768")
