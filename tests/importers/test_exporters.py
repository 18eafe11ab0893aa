"""Exported Megatron scripts import to the run they came from; what has no flag is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from importers import import_file, import_text
from importers.exporters import layout_string, megatron_script
from importers.world import Request
from importers.written import deepspeed_json, differences, slurm_script, torchtitan_toml
from plan.layout import unit_counts
from plan.run import Run, load
from program.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = {"preset": "dgx-h100", "nodes": 2}
BASE: dict[str, Any] = {
    "model": {"layers": 8, "hidden": 64, "heads": 8, "vocab": 1000, "seq_length": 32},
    "cluster": CLUSTER,
    "plan": {"implementation": "megatron", "global_batch_size": 64},
}


def again(folder: Path, run: Run, cluster: object) -> Run:
    """Export, import, load."""
    (folder / "run.sh").write_text(megatron_script(run))
    result = import_file(folder / "run.sh", cluster=cluster)  # type: ignore[arg-type]
    assert not result.warnings
    return load(result.run_dict)


def same(first: Run, second: Run) -> None:
    """Equal model, plan (layouts by their unit counts), optimizer, train and checkpoint; names and budgets aside."""
    assert replace(first.model, name="") == replace(second.model, name="")
    assert unit_counts(first.model.layers, first.plan) == unit_counts(second.model.layers, second.plan)
    assert replace(first.plan, pipeline_layout="even") == replace(second.plan, pipeline_layout="even")
    assert (first.optimizer, first.train, first.checkpoint) == (second.optimizer, second.train, second.checkpoint)
    assert first.cluster.gpus == second.cluster.gpus


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ({}, {}),
        (
            {"activation": "swiglu", "norm": "rmsnorm", "positions": "rotary", "kv_heads": 4, "bias": False},
            {"tensor_parallel": 2},
        ),
        (
            {"tied_embeddings": False, "dropout": 0.2, "head_dim": 16, "qkv_bias": True, "bias": False},
            {"zero_stage": 0, "launch_blocking": True},
        ),
        (
            {"positions": "rotary", "rope": {"theta": 5e5, "scaling": {"kind": "llama3", "factor": 8}}},
            {"precision": "fp16"},
        ),
        ({"positions": "alibi", "embedding_norm": True}, {"pipeline_parallel": 2, "virtual_pipeline": 2}),
        ({"layers": 6}, {"pipeline_parallel": 4, "pipeline_layout": "auto"}),
        ({}, {"pipeline_parallel": 4, "pipeline_layout": [3, 3, 3, 1]}),
        ({}, {"recompute": {"layers": 2}, "communication": {"overlap": False}}),
        ({}, {"recompute": "full", "tensor_parallel": 4, "sequence_parallel": True, "attention": "flash"}),
        ({"dropout": 0.1, "attention_dropout": 0.1}, {"recompute": "selective", "precision": "fp32"}),
    ],
)
def test_a_round_trip_gives_the_same_run(tmp_path: Path, model: dict[str, Any], plan: dict[str, Any]) -> None:
    """Export and import undo each other."""
    run = load({**BASE, "model": BASE["model"] | model, "plan": BASE["plan"] | plan})
    same(run, again(tmp_path, run, "dgx-h100"))


@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    micro=st.sampled_from([1, 2]),
    zero=st.integers(0, 1),
    overlap=st.booleans(),
    lr=st.floats(1e-6, 1e-2),
    steps=st.integers(200, 10**6),
)
def test_round_trips_of_many_plans(
    tmp_path_factory: pytest.TempPathFactory,
    tensor: int,
    pipeline: int,
    micro: int,
    zero: int,
    overlap: bool,
    lr: float,
    steps: int,
) -> None:
    """Any legal mixture of degrees, batch, sharding and learning rate."""
    plan = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "micro_batch_size": micro, "zero_stage": zero}
    text = {
        "plan": BASE["plan"] | plan | {"communication": {"overlap": overlap}},
        "optimizer": {"lr": lr},
        "train": {"steps": steps},
    }
    run = load({**BASE, **text}, ["optimizer.schedule.min_lr=0"])
    same(run, again(tmp_path_factory.mktemp("trip"), run, "dgx-h100"))


def test_the_175b_example_survives(tmp_path: Path) -> None:
    """The example script, exported and imported again."""
    run = load(import_file(EXAMPLES / "gpt3-175b-megatron.sh", cluster="dgx-a100-80gb", nodes=128).run_dict)
    same(run, again(tmp_path, run, "dgx-a100-80gb"))


def test_layout_strings() -> None:
    """E, t and L with | between stages."""
    assert layout_string((2, 3, 1)) == "Et|ttt|L"


def test_what_has_no_flag_is_refused_all_at_once() -> None:
    """Every such key with the nearest that has one."""
    plan = BASE["plan"] | {
        "schedule": "gpipe",
        "pipeline_parallel": 2,
        "communication": {"allreduce": "tree"},
        "loss_chunks": 2,
    }
    with pytest.raises(InputError) as error:
        megatron_script(load({**BASE, "plan": plan}))
    assert len(error.value.problems) == 3
    assert "schedule gpipe has no Megatron flag; nearest that has: 1f1b or interleaved-1f1b" in str(error.value)


WRITERS = {"ds.json": deepspeed_json, "run.toml": torchtitan_toml}


@given(
    micro=st.sampled_from([1, 2]),
    steps=st.sampled_from([1, 4]),
    zero=st.integers(0, 3),
    overlap=st.booleans(),
    recompute=st.sampled_from(["none", "full", "selective"]),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    lr=st.floats(1e-6, 1e-2),
    name=st.sampled_from(sorted(WRITERS)),
    tensor=st.sampled_from([1, 2]),
    host=st.booleans(),
)
def test_what_is_not_said_is_listed(
    micro: int, steps: int, zero: int, overlap: bool, recompute: str, precision: str, lr: float, name: str, tensor: int,
    host: bool,
) -> None:  # fmt: skip
    """Every key of a plan comes back, or a sentence names it with both values."""
    plan: dict[str, Any] = {
        "zero_stage": zero,
        "micro_batch_size": micro,
        "recompute": recompute,
        "precision": precision,
    }
    plan |= {"global_batch_size": micro * steps * 16 // tensor, "tensor_parallel": tensor, "attention": "flash"}
    plan |= {"implementation": "deepspeed" if zero <= 1 and name == "ds.json" else "windtunnel"}
    plan |= {"communication": {"overlap": overlap}} | ({"offload": {"optimizer": "cpu"}} if host and zero else {})
    try:
        run = load({"model": "llama-3-8b", "cluster": CLUSTER, "plan": plan, "optimizer": {"lr": lr}})
    except InputError:
        return
    text, unsaid = WRITERS[name](run)
    model = None if name == "run.toml" else run.to_dict()["model"]
    if any("is refused" in sentence for sentence in unsaid):
        return
    again = load(import_text(text, Path(name), Request(CLUSTER, model=model)).run_dict)
    for section in ("plan", "optimizer", "train"):
        for key, ours, theirs in differences(getattr(run, section), getattr(again, section)):
            assert any(f"{section}.{key} {ours}: it is read as {theirs}" in each for each in unsaid)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("ds.json", {"implementation": "deepspeed", "zero_stage": 1, "micro_batch_size": 2, "recompute": "full"}),
        ("ds.json", {"implementation": "deepspeed", "zero_stage": 0, "precision": "fp16"}),
        ("run.toml", {"implementation": "torch-fsdp", "zero_stage": 3, "recompute": "full"}),
    ],
)
def test_a_plan_that_can_be_said_comes_back(name: str, plan: dict[str, Any]) -> None:
    """Nothing of the plan is listed: the file means the run."""
    more = {"global_batch_size": 64, "attention": "flash", "kernels": "compiled"}
    run = load({"model": "llama-3-8b", "cluster": CLUSTER, "plan": more | plan})
    _, unsaid = WRITERS[name](run)
    assert not [sentence for sentence in unsaid if "cannot say plan" in sentence or "refused" in sentence], unsaid


def test_a_slurm_script_means_its_run(tmp_path: Path) -> None:
    """Nodes and GPUs come from its header."""
    run = load({**BASE, "plan": BASE["plan"] | {"tensor_parallel": 2}})
    (tmp_path / "run.sh").write_text(slurm_script(run))
    result = import_file(tmp_path / "run.sh", cluster="dgx-h100")
    assert "#SBATCH --nodes=2" in (tmp_path / "run.sh").read_text()
    same(run, load(result.run_dict))
