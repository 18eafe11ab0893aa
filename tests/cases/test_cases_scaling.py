"""Cases of kinds `scaling`, `numerics` and `question`: more GPUs, a slow GPU, and what a plan does to the numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler import compile_run
from plan.run import load
from program import expand
from program.errors import InputError
from tests.cases.facts import card, case, forecast, not_yet
from tests.windtunnel.conftest import TINY
from tests.windtunnel.run_folders import profile_file, run_folder

Call = Callable[..., Any]


@pytest.mark.parametrize(
    ("number", "plan", "words"),
    [
        ("051", {"precision": "fp8", "zero_stage": 3}, "precision fp8"),
    ],
)
def test_sharded_runs_are_not_yet_forecast(number: str, plan: dict[str, object], words: str) -> None:
    assert case(number)["kind"] == "scaling"
    not_yet(words, model="llama-2-7b", cluster={"preset": "dgx-a100-40gb", "nodes": 2}, plan=plan)


@pytest.mark.parametrize("index", [0, 1, 2, 4])
def test_053_full_shard_of_7b_scales_flat(index: int) -> None:
    """MPT-7B under FSDP: within 16 % of the published rate at every size, and it fits at their micro-batches (our
    states are 18 bytes where theirs, PURE bf16, are fewer)."""
    facts = case("053")
    nodes, micro = facts["input"]["gpus"][index] // 8, facts["input"]["micro"][index]
    model = {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 50432, "seq_length": 2048, "positions": "alibi",
             "bias": False}  # fmt: skip
    found = forecast(
        model=model,
        cluster={"preset": "dgx-a100-40gb", "nodes": nodes},
        plan={"zero_stage": 3, "micro_batch_size": micro, "recompute": "full"},
    )
    assert found.parameters == pytest.approx(6.65e9, rel=0.01)
    assert found.memory.fits
    assert found.tokens_per_s_per_gpu == pytest.approx(facts["observed"]["tps_per_gpu"][index], rel=0.16)


def test_055_two_nodes_expose_what_one_hides() -> None:
    """The supported relative of a sharded 7B: its data-parallel traffic leaves the node and its efficiency falls."""
    nics = {"count": 1, "bandwidth_gb_s": 12.5}
    one, two = (
        forecast(
            model={"preset": "llama-2-7b", "seq_length": 2048},
            cluster={"preset": "dgx-a100-80gb", "gpus_per_node": 4, "nodes": nodes, "nics": nics},
            plan={"zero_stage": 1},
        )
        for nodes in (1, 2)
    )
    efficiency = two.tokens_per_s_per_gpu / one.tokens_per_s_per_gpu
    assert efficiency < 0.9
    assert two.time.exposed_data > one.time.exposed_data + 0.1


@pytest.fixture
def steps(tmp_path: Path) -> Callable[..., Path]:
    """A run folder whose steps took the given times, in units of its own step."""

    def write(name: str, *times: float) -> Path:
        profile = profile_file(tmp_path / "profile.yaml")
        folder = run_folder(tmp_path / name, TINY, profile)
        own = json.loads((folder / "steps.jsonl").read_text().splitlines()[0])["step_time_s"]
        lines = [json.dumps({"step": n, "loss": 5.0, "step_time_s": own * t}) for n, t in enumerate(times)]
        (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
        return folder

    return write


def test_057_one_slow_gpu_in_384(steps: Callable[..., Path], wt: Call) -> None:
    before, after = case("057")["input"]["step_sec"][:3], case("057")["input"]["step_sec"][3:]
    healthy = before[0]
    baseline = steps("baseline", *(t / healthy for t in (*before[:2] * 3, before[0]) * 6))
    noise = steps("noise", *(t / healthy for t in (before[1], before[2], before[0], before[2], before[1]) * 8))
    slow = steps("slow", *(t / healthy for t in (after[0], after[1], after[0], after[1], after[0]) * 8))
    passed = wt("check", baseline, noise, "--tolerance", "0.03", "--json")
    flagged = wt("check", baseline, slow, "--tolerance", "0.03", "--json")
    assert (passed.code, flagged.code) == (0, 1)
    assert flagged.json["slowdown"] == pytest.approx(after[0] / healthy - 1, abs=0.01)


def test_096_fewer_micro_batches_than_stages_are_refused_when_interleaved() -> None:
    run = {"model": "llama-3-8b", "cluster": "dgx-h100"}
    plan = {"pipeline_parallel": 4, "virtual_pipeline": 2, "data_parallel": 2}
    with pytest.raises(InputError, match=r"groups of 4: 3 leave a rest|micro-batches"):
        load(run | {"plan": plan | {"global_batch_size": 6}})
    assert load(run | {"plan": plan | {"global_batch_size": 8}}).plan.microbatches == 4


def test_098_gradients_of_replicated_parameters_are_summed_over_tensor_parallel_ranks() -> None:
    """With sequence parallelism each rank sees part of the sequence, so its norm gradients are partial sums."""
    for on in (True, False):
        run = load(
            {
                "model": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq_length": 32, "vocab_multiple": 16},
                "cluster": "cpu",
                "plan": {"tensor_parallel": 4, "sequence_parallel": on, "precision": "fp32", "zero_stage": 0},
            }
        )
        program = compile_run(run)
        sums = [
            placed.instruction
            for placed in expand(program.classes[0])
            if placed.instruction.comm is not None
            and placed.instruction.phase == "step"
            and placed.instruction.comm.role == "tp"
            and placed.instruction.comm.op == "all_reduce"
        ]
        replicated = sum(
            parameter.local_shape[0] for parameter in program.classes[0].params if "norm" in parameter.name
        )
        assert (sum(sum_.comm.bytes for sum_ in sums if sum_.comm) >= 4 * replicated) is on


def test_107_half_the_gpus_do_twice_the_work_each() -> None:
    whole, half = (
        forecast(
            model="gpt3-13b",
            cluster={"preset": "dgx-a100-80gb", "nodes": nodes},
            plan={"tensor_parallel": 8, "global_batch_size": 256},
        )
        for nodes in (16, 8)
    )
    compute = [found.step_time_s * found.time.compute for found in (whole, half)]
    assert compute[1] / compute[0] == pytest.approx(2, rel=0.03)
    assert half.step_time_s > 1.8 * whole.step_time_s
    assert half.tokens_per_s_per_gpu >= whole.tokens_per_s_per_gpu


def tr8(batch: int) -> dict[str, Any]:
    """Case 126: 104B on 512 V100, TP4 PP32."""
    shape = case("126")["input"]
    return {
        "model": {
            "layers": shape["layers"], "hidden": shape["hidden"], "heads": shape["heads"], "vocab": shape["vocab"],
            "seq_length": shape["seq"], "embedding_norm": True,
        },
        "cluster": card("v100-32gb", 31.74, 512, gpus_per_node=4),
        "plan": {
            "tensor_parallel": shape["tp"], "pipeline_parallel": shape["pp"], "micro_batch_size": shape["micro"],
            "global_batch_size": batch, "recompute": "full", "precision": "fp16",
        },
    }  # fmt: skip


def test_126_a_batch_ramp_starts_with_an_empty_pipeline() -> None:
    full = load(tr8(2048))
    assert (full.plan.data_parallel, full.plan.microbatches) == (4, 512)
    assert full.model.parameters() == pytest.approx(104.0e9, rel=0.001)
    start = forecast(**tr8(16))
    assert start.parameters == full.model.parameters()
    assert load(tr8(16)).plan.microbatches == 4
    # 31 of 35 slots idle; the optimizer step and the gradients' reduction dilute the share
    assert start.time.bubble == pytest.approx(31 / 35, abs=0.08)
