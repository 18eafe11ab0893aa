"""DeepSpeed's program on paper: what a step keeps, moves and passes over, as multiples of the number of parameters."""

from __future__ import annotations

from typing import Any

import pytest

from program import StepProgram, expand
from program.ops import bytes_of
from simulator.simulation import simulate
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import small

RANKS = 4
BASE = {"implementation": "deepspeed", "zero_stage": 1, "data_parallel": RANKS, "micro_batch_size": 1}


def made(microbatches: int = 1, **plan: Any) -> StepProgram:
    program, _ = small(BASE | {"global_batch_size": RANKS * microbatches} | plan)
    return program


def numbers(program: StepProgram) -> int:
    """Parameters of a rank, with the padding of their buckets."""
    return sum(bucket.numel for bucket in program.classes[0].buckets)


@pytest.mark.parametrize(("precision", "gradients"), [("bf16", 2 + 4), ("fp16", 2)])
def test_states_of_a_rank(precision: str, gradients: int) -> None:
    """Half weights, gradients, 12 bytes of optimizer shared out: the bf16 optimizer keeps two kinds of gradients."""
    program, run = small(BASE | {"global_batch_size": RANKS, "precision": precision})
    parts = simulate(program, run.cluster, FakeProfile()).memory[0].parts
    kept = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert kept == pytest.approx(numbers(program) * (2 + gradients + 12 / RANKS), rel=1e-12)


@pytest.mark.parametrize(("precision", "size"), [("bf16", 4), ("fp16", 2)])
def test_gradients_are_all_reduced_whole_and_weights_gathered(precision: str, size: int) -> None:
    """3Ψ a step where the textbook has 2Ψ (FIELD: DeepSpeed's stages 1 and 2), once whatever the micro-batches."""
    program = made(3, precision=precision)
    moved: dict[str, int] = {}
    for placed in expand(program.classes[0]):
        comm = placed.instruction.comm
        if comm is not None and comm.role == "dp" and placed.instruction.piece != "loss":
            moved[comm.op] = moved.get(comm.op, 0) + comm.bytes
    assert moved == {"all_reduce": size * numbers(program), "all_gather": 2 * numbers(program)}


def test_adding_fresh_gradients_passes_over_18_bytes_a_parameter() -> None:
    """Widened (2 + 4), then added (4 + 4 + 4); besides, what a backward adds up is cleared (2)."""
    program = made(1, tensor_parallel=1)
    stage = program.classes[0]
    count = sum(p.local_numel for p in stage.params)
    cleared = sum(p.local_numel for p in stage.params if len(p.local_shape) == 1 or p.name.startswith("embed."))
    passed = sum(bytes_of(c) for b in stage.blocks for i in b.instructions if i.kind == "ACC" for c in i.body)
    assert passed == 18 * count + 2 * cleared


def test_no_collective_runs_beside_compute() -> None:
    plan = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 1, "global_batch_size": 4}
    program, run = small(BASE | plan)
    timeline = simulate(program, run.cluster, FakeProfile()).timeline([0])
    rows = timeline.columns
    spans = list(zip(timeline.text("stream"), rows["start_s"], rows["end_s"], strict=True))
    compute = [(start, end) for stream, start, end in spans if stream == "compute" and end > start]
    others = [(start, end) for stream, start, end in spans if stream == "tp" and end > start]
    assert others
    for start, end in others:
        assert all(end <= a + 1e-12 or b <= start + 1e-12 for a, b in compute)


def test_a_transfer_carries_a_tensor_parallel_share() -> None:
    plan = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 1, "global_batch_size": 4}
    for implementation, shares in (("megatron", 1), ("deepspeed", 2)):
        program, run = small(BASE | plan | {"implementation": implementation})
        whole = run.model.seq_length * run.model.hidden * 2
        sizes = {
            placed.instruction.comm.bytes
            for placed in expand(program.classes[0])
            if placed.instruction.comm is not None and placed.instruction.comm.role.startswith("pp")
        }
        assert sizes == {whole // shares}


def test_blocking_launches_are_paid_for_one_by_one() -> None:
    """With nothing to communicate the step is the sum of its kernels and of their launches."""
    program, run = small(BASE | {"data_parallel": 1, "global_batch_size": 2, "launch_blocking": True})
    profile = FakeProfile()
    kernels = launches = 0.0
    for placed in expand(program.classes[0]):
        kernels += sum(profile.kernel_s(call) for call in placed.instruction.body)
        launches += profile.host_issue_s(placed.instruction.kind, placed.instruction.body)
    assert simulate(program, run.cluster, profile).step_time_s == pytest.approx(kernels + launches, rel=1e-6)
