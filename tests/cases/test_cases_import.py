"""Real cases of Megatron launch scripts, as importer tests: the right value, or the right message.

Every case of kind config-parse and arithmetic-error that names a framework's file is read from `tests/cases/data/` and
imported as it stands; what its `expect` says about parsing, batch, world size and parameter counts is asserted here and
in the neighbours (`test_cases_import_deepspeed.py`, `test_cases_import_other.py`). What it says about time and memory
belongs to the forecast's tests.
"""

import json
from pathlib import Path

import pytest

from plan.run import load
from tests.cases.importing import DGX, case, read, refused, said


def test_003_two_statements_about_data_parallelism(tmp_path: Path) -> None:
    """64 GPUs with model parallel 2 are dp 32; the old flags are translated."""
    flags = " ".join(f"{flag} {value}" for flag, value in zip(case("003")["flags_old_style"], (2, 8), strict=True))
    shape = "--num-layers 54 --hidden-size 1920 --num-attention-heads 20 --seq-length 1024"
    result = read(tmp_path, f"mpirun -np 64 python pretrain_gpt2.py {shape} {flags} --fp16", "run.sh", cluster=DGX)
    assert said(result, "data_parallel 32 = 64 GPUs / (TP2 × PP1)")
    assert said(result, "--model-parallel-size is an old form of --tensor-model-parallel-size")
    assert said(result, "--batch-size is an old form of --micro-batch-size")
    refused(
        result.run_dict | {"plan": result.run_dict["plan"] | {"data_parallel": 8}}, "TP2 × PP1 × DP8 = 16", "64 GPUs"
    )


def test_064_a_virtual_pipeline_that_would_drop_layers(tmp_path: Path) -> None:
    """80 / 16 = 5 is not divisible by 2: the model that would train has 64 layers."""
    facts = case("064")
    flags = (
        f"--num-layers {facts['num_layers']} --pipeline-model-parallel-size {facts['pp']}"
        f" --num-layers-per-virtual-pipeline-stage {facts['num_layers_per_virtual_pipeline_stage']} --hidden-size 8192"
        " --num-attention-heads 64 --seq-length 2048"
    )
    result = read(
        tmp_path, f"torchrun pretrain_gpt.py {flags} --micro-batch-size 1 --bf16", "run.sh", cluster=DGX, nodes=16
    )
    (problem,) = result.problems
    assert "80 layers / 16 pipeline stages = 5 layers a rank, which is not divisible by 2" in problem
    assert "would train 64 layers instead of 80" in problem
    assert "Legal: 1, 5" in problem


@pytest.mark.parametrize(("number", "legal"), [(0, "1, 2, 4, 13, 26, 52"), (1, "1, 2, 4")])
def test_066_heads_over_tensor_parallelism(tmp_path: Path, number: int, legal: str) -> None:
    """Legal degrees are listed; kv heads count too."""
    facts = case("066")["cases"][number]
    groups = f"--group-query-attention --num-query-groups {facts['kv_heads']}" if "kv_heads" in facts else ""
    flags = (
        f"--num-layers 4 --hidden-size {128 * facts['heads']} --num-attention-heads {facts['heads']} {groups}"
        f" --seq-length 2048 --ffn-hidden-size {512 * facts['heads']} --tensor-model-parallel-size {facts['tp']}"
        " --micro-batch-size 1 --bf16"
    )
    result = read(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags}", "run.sh", cluster=DGX)
    refused(result.run_dict, "tensor_parallel 8 does not divide", f"heads {facts['heads']}", f"legal: {legal} ")


def test_113_bloom_slurm_script(tmp_path: Path) -> None:
    """Underscores, a quoted pattern, a heredoc, `pwd`, 24 nodes of the header; 72 units on 12 stages."""
    result = read(tmp_path, case("113")["config_text"], "bloom.slurm", cluster=DGX)
    assert not result.problems
    run = load(result.run_dict)
    assert (run.cluster.gpus, run.plan.data_parallel, run.plan.microbatches) == (192, 4, 256)
    assert run.plan.pipeline_layout == (6,) * 12
    assert run.model.parameters() == 176_247_271_424
    assert run.budget.tokens == pytest.approx(450e9, rel=0.002)
    assert run.plan.zero_stage == 1
    assert said(result, "ZeRO stage 0 with bf16", "shards its states")
    without = case("113")["config_text"].replace("--pp-partition-method 'type:transformer|embedding' \\\n", "")
    refused(read(tmp_path, without, "plain.slurm", cluster=DGX).run_dict, "70 layers", "72 / 12")


def test_123_stray_backslashes_and_a_misleading_name(tmp_path: Path) -> None:
    """Commented flags are not flags; two layers and two experts on two GPUs, in fp32, whatever the file is called."""
    result = read(tmp_path, case("123")["config_text"], "train_mixtral_8x7b_distributed.sh", cluster=DGX)
    model, plan = result.run_dict["model"], result.run_dict["plan"]
    assert (model["layers"], model["hidden"], model["ffn"], model["seq_length"]) == (2, 256, 896, 256)
    assert (plan["precision"], plan["expert_parallel"], plan["global_batch_size"]) == ("fp32", 2, 4)
    assert "sequence_parallel" not in plan
    assert said(result, "--sequence-parallel has no effect at --tensor-model-parallel-size 1")
    assert said(result, "data_parallel 2 = 2 GPUs")
    assert said(result, "mixture of experts (--num-experts 2)")
    assert not said(result, "--moe-grouped-gemm")
    assert not said(result, "--log-interval")


def test_126_104b_on_512_gpus(tmp_path: Path) -> None:
    """dp 4, 512 micro-batches, 104B parameters, a ramp that fits, and a loss scale that was meant as a power of two."""
    facts = case("126")
    flags = (
        f"--num-layers {facts['layers']} --hidden-size {facts['hidden']} --num-attention-heads {facts['heads']}"
        f" --seq-length {facts['seq']} --tensor-model-parallel-size {facts['tp']} --pipeline-model-parallel-size"
        f" {facts['pp']} --micro-batch-size {facts['micro']} --global-batch-size {facts['global_batch']}"
        f" --rampup-batch-size {facts['rampup']} {' '.join(facts['flags'])}"
    )
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": facts["zero_stage"]}, "fp16": {"enabled": True}})
    )
    text = (
        f"#SBATCH --nodes=128\n#SBATCH --gres=gpu:4\nsrun deepspeed pretrain_gpt.py {flags} --deepspeed"
        " --deepspeed_config ds.json"
    )
    result = read(tmp_path, text, "tr8.slurm", cluster=DGX)
    assert not result.problems
    run = load(result.run_dict)
    assert (run.cluster.gpus, run.plan.data_parallel, run.plan.microbatches) == (512, 4, 512)
    assert run.model.parameters() == pytest.approx(104.0e9, rel=0.01)
    assert said(result, "--loss-scale 12", "2^12 = 4096")
    assert said(result, "--rampup-batch-size 16 16")
