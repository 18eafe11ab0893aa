"""FSDP2 on paper: what it moves, keeps and copies, and who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest

from program import StepProgram, expand
from program.ops import bytes_of
from simulator.simulation import simulate
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import simulated_small, small
from tests.simulator.test_zero import RANKS, SHARDED, moved, numbers

FSDP = SHARDED | {"implementation": "torch-fsdp", "zero_stage": 3}
LAYERS = 4


def made(microbatches: int = 1, **plan: Any) -> StepProgram:
    program, _ = small(FSDP | {"global_batch_size": RANKS * microbatches} | plan)
    return program


def rows(profile: FakeProfile, **plan: Any) -> dict[tuple[str, str, int, str], tuple[float, float]]:
    """Start and end of everything that rank 0 does in the step's only micro-batch."""
    timeline = simulated_small(FSDP | {"global_batch_size": RANKS} | plan, profile).timeline([0])
    return {(r.phase, r.kind, r.unit, r.piece): (r.start_s, r.end_s) for r in timeline.rows()}


@pytest.mark.parametrize("microbatches", [1, 3])
def test_bytes_a_micro_batch_moves(microbatches: int) -> None:
    """The root is gathered once, a layer for each direction (`zero_stage: 3`) or once (2); all is reduced in fp32."""
    n = numbers(made())
    root = made().classes[0].buckets[0].numel
    for stage, reshard, gathered in ((3, True, 2 * n - root), (2, True, n), (3, False, n)):
        found = moved(made(microbatches, zero_stage=stage, zero={"reshard": reshard}))
        assert found == {"reduce_scatter": 4 * n * microbatches, "all_gather": 2 * gathered * microbatches}


@pytest.mark.parametrize("tied", [False, True])
def test_groups_are_the_root_and_one_a_layer(tied: bool) -> None:
    program, _ = small(FSDP | {"global_batch_size": RANKS}, tied_embeddings=tied)
    stage = program.classes[0]
    groups = [{p.name.partition(".")[0] for p in stage.params if p.bucket == b.index} for b in stage.buckets]
    assert groups == [{"embed", "head"}] + [{"layers"}] * LAYERS


@pytest.mark.parametrize(("stage", "kept"), [(3, 1), (2, LAYERS + 1)])
def test_states_of_a_rank_are_the_optimizers_own(stage: int, kept: int) -> None:
    """fp32 weights, gradients and two moments of a share: 16/N bytes a parameter and no 16-bit copy. Beside them lie
    two flat tensors, one copied out of them, one group's gradients and their fp32 copy, and what stays gathered."""
    program, run = small(FSDP | {"zero_stage": stage, "global_batch_size": RANKS * 2})
    parts = simulate(program, run.cluster, FakeProfile()).memory[0].parts
    assert parts["weights"] == parts["gradients"] == parts["optimizer"] / 2 == 4 * numbers(program) / RANKS
    assert sum(bucket.whole_buffer >= 0 for bucket in program.classes[0].buckets) == kept


def test_copies_of_a_group() -> None:
    """A share cast (6 bytes an element) and copied (4), the whole copied out (4), gradients copied in (6)."""
    program = made()
    n, root = numbers(program), program.classes[0].buckets[0].numel
    copied: dict[str, int] = {}
    for placed in expand(program.classes[0]):
        i = placed.instruction
        if i.kind == "COPY":
            copied[i.piece] = copied.get(i.piece, 0) + sum(bytes_of(call) for call in i.body)
    gathered = 2 * n - root
    assert copied == {"shard": 10 * gathered // RANKS, "weights": 4 * gathered, "gradients": 6 * n}


def test_products_write_gradients_afresh() -> None:
    """Nothing but what a backward adds to is cleared: norms, biases and the embedding's table."""
    program, _ = small(FSDP | {"global_batch_size": RANKS}, positions="rotary", bias=False)
    cleared = {}
    for placed in expand(program.classes[0]):
        i = placed.instruction
        if i.kind == "ZERO" and i.phase == "B":
            cleared[i.unit] = sum(call.shape[0] for call in i.body)
    norms, table = 4 * 512, 1024 * 512
    assert {unit: cleared[unit] for unit in range(1, LAYERS + 1)} == dict.fromkeys(range(1, LAYERS + 1), norms)
    assert cleared[0] == table + 2 * 512


def test_a_forward_runs_ahead_until_the_copy_out_of_the_group_before_the_last() -> None:
    """Where compute is slow, layer k + 2 is copied in and gathered from the copy-out of layer k on."""
    found = rows(FakeProfile(flops_per_s=1e11, issue_s=1e-9, bus_bytes_per_s=1e14, alpha_s=1e-9))
    starts = {layer: found["F", "COPY", layer + 2, "shard"][0] for layer in range(1, LAYERS - 1)}
    assert starts == pytest.approx({layer: found["F", "COPY", layer, "weights"][1] for layer in starts}, rel=1e-9)
    assert all(start < found["F", "F", layer, "attn.core"][0] for layer, start in starts.items())


def test_a_backward_gathers_behind_the_copy_out_of_the_group_behind() -> None:
    """Slow links: the root's backward hides the last layer's gather; each other begins with the copy behind it."""
    found = rows(FakeProfile(flops_per_s=1e11, issue_s=1e-9))
    for layer in range(1, LAYERS):
        assert found["B", "COPY", layer, "shard"][0] >= found["B", "COPY", layer + 1, "weights"][1]
        assert found["B", "AG", layer, "weights"][0] < found["B", "I", layer + 1, "mlp.core"][1]


def test_compute_waits_for_the_reduction_of_the_group_before_the_last() -> None:
    """There is one flat tensor of gradients to be reduced: on slow links the copy into it waits for the reduction."""
    found = rows(FakeProfile(bus_bytes_per_s=1e9, issue_s=1e-9))
    for layer in range(1, LAYERS):
        assert found["B", "COPY", layer, "gradients"][0] >= found["B", "RS", layer + 1, "gradients"][1]
    assert found["B", "RS", 0, "gradients"][0] > found["W", "W", 0, "embed"][1]  # the root's comes last
