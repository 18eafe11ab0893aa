"""The launch files in examples/: what they import to, and that the loader accepts it or says what is not forecast."""

from pathlib import Path

import pytest

from importers import import_file
from plan.run import load

EXAMPLES = Path(__file__).parents[2] / "examples"
DGX = {"cluster": "dgx-a100-80gb", "nodes": 1}


def test_gpt3_175b_on_1024_gpus() -> None:
    """TP8 PP16 DP8, 192 micro-batches, everything recomputed."""
    run = load(import_file(EXAMPLES / "gpt3-175b-megatron.sh", cluster="dgx-a100-80gb", nodes=128).run_dict)
    plan = run.plan
    assert run.cluster.gpus == 1024
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel, plan.microbatches) == (8, 16, 8, 192)
    assert (plan.implementation, plan.recompute, plan.virtual_pipeline) == ("megatron", "full", 1)
    assert run.model.padded_vocab(8) == 51200
    assert run.model.parameters() == 174_604_259_328


def test_bloom_needs_nothing_but_its_script() -> None:
    """384 GPUs with four links a node, 72 units on 12 stages, ZeRO-1 inside DeepSpeed's bf16 optimizer."""
    run = load(import_file(EXAMPLES / "bloom-176b.sh").run_dict)
    plan = run.plan
    assert run.cluster.gpus == 384
    assert run.cluster.nics.count == 4
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel, plan.microbatches) == (4, 12, 8, 128)
    assert plan.pipeline_layout == (6,) * 12
    assert plan.zero_stage == 1
    assert run.model.parameters() == 176_247_271_424
    assert run.budget.tokens == pytest.approx(450e9, rel=0.01)


def test_the_tutorial_13b_keeps_exactly_its_flags() -> None:
    """The flags of the tutorial, no more and no less, and what --batch-size meant."""
    text = (EXAMPLES / "gpt-13b-megatron.sh").read_text()
    given = " ".join(text.split("pretrain_gpt.py", 1)[1].replace("\\\n", " ").split())
    assert (
        given == "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --num-layers 40 --hidden-size 5120"
        " --num-attention-heads 40 --batch-size 128 --seq-length 2048 --lr 6e-5 --train-iters 100000"
        " --lr-decay-iters 99000 --lr-decay-style cosine --min-lr 6e-6 --weight-decay 0.01 --adam-beta1 0.9"
        " --adam-beta2 0.95 --fp16"
    )
    result = import_file(EXAMPLES / "gpt-13b-megatron.sh", cluster="dgx-a100-80gb", nodes=1)
    run = load(result.run_dict)
    assert (run.plan.micro_batch_size, run.plan.global_batch_size, run.plan.data_parallel) == (128, 128, 1)
    assert any("--batch-size is an old form of --micro-batch-size" in note for note in result.notes)


@pytest.mark.parametrize(("name", "tensor", "steps"), [("gpt-13b-deepspeed.json", 1, 4), ("gpt-13b-hybrid.sh", 4, 16)])
def test_zero_3_offload_alone_and_with_tensor_parallelism(name: str, tensor: int, steps: int) -> None:
    """Legal plans, forecast as our own ZeRO-3; the tutorial's partitioned activations need tensor parallelism."""
    model = "gpt3-13b" if name.endswith("json") else None
    run = import_file(EXAMPLES / name, cluster="dgx-a100-80gb", nodes=1, model=model).run_dict
    plan = run["plan"]
    assert (plan["zero_stage"], plan["implementation"]) == (3, "windtunnel")
    assert plan.get("partition_activations", False) == (tensor > 1)
    assert plan["offload"] == {"optimizer": "cpu", "parameters": "cpu"}
    assert plan["global_batch_size"] == plan["micro_batch_size"] * steps * (8 // tensor)
    assert load(run).plan.gradient_dtype == "fp16"


def test_the_hybrid_refuses_the_tutorial_pipeline(tmp_path: Path) -> None:
    """With the tutorial's pipeline of two, ZeRO-3 is refused and ZeRO-1 offered."""
    text = (EXAMPLES / "gpt-13b-hybrid.sh").read_text().replace("parallel-size 1", "parallel-size 2")
    (tmp_path / "hybrid.sh").write_text(text)
    (tmp_path / "gpt-13b-deepspeed.json").write_text((EXAMPLES / "gpt-13b-deepspeed.json").read_text())
    run = import_file(tmp_path / "hybrid.sh", cluster="dgx-a100-80gb", nodes=1).run_dict
    with pytest.raises(Exception, match="ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"):
        load(run)
