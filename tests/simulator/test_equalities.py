"""Coarse equals fine and folded equals unfolded, to the picosecond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.profile import CoreSharing
from program.timeline import TIMES
from simulator.nodes import InStepCheck, NotInStep
from simulator.simulation import Simulation, simulate
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import cluster_of, small

PLANS: dict[str, dict[str, Any]] = {
    "one": {"global_batch_size": 2},
    "tp2": {"tensor_parallel": 2, "global_batch_size": 2},
    "tp2-sp": {"tensor_parallel": 2, "sequence_parallel": True, "global_batch_size": 3},
    "dp2": {"data_parallel": 2, "global_batch_size": 4},
    "dp2-zero1": {"data_parallel": 2, "global_batch_size": 4, "zero_stage": 1},
    "pp2": {"pipeline_parallel": 2, "global_batch_size": 5},
    "pp4-gpipe": {"pipeline_parallel": 4, "schedule": "gpipe", "global_batch_size": 6},
    "tp2-pp2-dp2": {
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "data_parallel": 2,
        "global_batch_size": 12,
        "zero_stage": 1,
    },
    "sp-pp4-full": {
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "pipeline_parallel": 4,
        "global_batch_size": 8,
        "recompute": "full",
    },
    "dp2-zero2": {"data_parallel": 2, "global_batch_size": 4, "zero_stage": 2},
    "dp4-zero3": {"data_parallel": 4, "global_batch_size": 8, "zero_stage": 3},
    "tp2-dp2-zero3-full": {
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "data_parallel": 2,
        "global_batch_size": 4,
        "zero_stage": 3,
        "recompute": "full",
    },
    "dp4-fsdp": {"data_parallel": 4, "global_batch_size": 8, "zero_stage": 3, "implementation": "torch-fsdp"},
    "dp2-zero3-offload": {
        "data_parallel": 2,
        "global_batch_size": 4,
        "zero_stage": 3,
        "offload": {"optimizer": "cpu", "parameters": "cpu"},
    },
    "interleaved": {
        "pipeline_parallel": 2,
        "virtual_pipeline": 2,
        "schedule": "interleaved-1f1b",
        "data_parallel": 3,
        "global_batch_size": 12,
    },
}
PROFILES = {
    "device-bound": FakeProfile(issue_s=1e-8),
    "host-bound": FakeProfile(issue_s=4e-4),
    "between": FakeProfile(issue_s=2e-5),
    "one-way": FakeProfile(issue_s=2e-6, factors={("compute", "tp"): 1.25, ("compute", "dp"): 1.4}),
    "one-way-transfers": FakeProfile(issue_s=2e-5, factors={("compute", "tp"): 1.25, ("compute", "transfer"): 1.5}),
    "both-ways": FakeProfile(
        factors={("compute", "tp"): 1.25, ("tp", "compute"): 1.1, ("compute", "dp"): 1.4, ("dp", "compute"): 1.2}
    ),
    "all-ways": FakeProfile(
        issue_s=2e-6,
        factors={
            ("compute", "transfer"): 1.3,
            ("transfer", "compute"): 1.2,
            ("tp", "transfer"): 2.0,
            ("compute", "tp"): 1.5,
        },
    ),
}


def rows(simulation: Simulation) -> dict[str, Any]:
    """Every time of the timeline in whole picoseconds."""
    columns = simulation.timeline().columns
    return {name: np.rint(columns[name] * 1e12).astype(np.int64).tolist() for name in TIMES} | {
        "id": columns["id"].tolist()
    }


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("plan", PLANS)
def test_coarse_equals_fine(plan: str, profile: str) -> None:
    program, run = small(PLANS[plan])
    coarse = simulate(program, run.cluster, PROFILES[profile])
    fine = simulate(program, run.cluster, PROFILES[profile], coarse=False)
    assert coarse.periods_ps == fine.periods_ps
    assert rows(coarse) == rows(fine)
    assert coarse.accounts == fine.accounts
    assert coarse.events <= fine.events


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("plan", PLANS)
def test_folded_equals_unfolded(plan: str, profile: str) -> None:
    program, run = small(PLANS[plan])
    folded = simulate(program, run.cluster, PROFILES[profile])
    unfolded = simulate(program, run.cluster, PROFILES[profile], unfold=True)
    assert len(unfolded.symmetry_classes) == program.world
    periods = {
        rank: time
        for symmetry_class, time in zip(folded.symmetry_classes, folded.periods_ps, strict=True)
        for rank in symmetry_class.ranks
    }
    assert periods == dict(enumerate(unfolded.periods_ps))
    accounts = {
        rank: account
        for symmetry_class, account in zip(folded.symmetry_classes, folded.accounts, strict=True)
        for rank in symmetry_class.ranks
    }
    assert accounts == dict(enumerate(unfolded.accounts))


@st.composite
def simulations(draw: st.DrawFn) -> tuple[dict[str, Any], FakeProfile]:
    """A plan and a profile: who is late, what hides and what slows what, is drawn."""
    pipeline = draw(st.sampled_from([1, 2, 4]))
    tensor, data = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    chunks = draw(st.sampled_from([1, 2])) if pipeline == 2 else 1
    plan = {
        "tensor_parallel": tensor,
        "sequence_parallel": tensor > 1 and draw(st.booleans()),
        "pipeline_parallel": pipeline,
        "virtual_pipeline": chunks,
        "schedule": "interleaved-1f1b" if chunks > 1 else draw(st.sampled_from(["1f1b", "gpipe"])),
        "data_parallel": data,
        "zero_stage": draw(st.integers(0, 3 if pipeline == 1 else 1)),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "global_batch_size": data * pipeline * draw(st.integers(1, 3)),
    }
    if plan["zero_stage"] > 0:
        plan["offload"] = {"optimizer": draw(st.sampled_from(["none", "none", "cpu"]))}
    factor = st.sampled_from([1.0, 1.189, 1.7])
    slowing = {("compute", beside): draw(factor) for beside in ("tp", "dp", "transfer")}
    if draw(st.booleans()):
        slowing |= {(slow, "compute"): draw(factor) for slow in ("tp", "dp", "transfer")}
    profile = FakeProfile(
        issue_s=10 ** draw(st.floats(-7, -4)),
        alpha_s=10 ** draw(st.floats(-6, -3.5)),
        bus_bytes_per_s=10 ** draw(st.floats(9, 12)),
        nic_bytes_per_s=10 ** draw(st.floats(8, 11)),
        flops_per_s=10 ** draw(st.floats(12, 14.5)),
        factors=slowing,
    )
    return plan, profile


@given(simulations())
def test_any_simulation_is_the_same_coarse_fine_and_unfolded(drawn: tuple[dict[str, Any], FakeProfile]) -> None:
    plan, profile = drawn
    program, run = small(plan)
    coarse, fine = simulate(program, run.cluster, profile), simulate(program, run.cluster, profile, coarse=False)
    assert coarse.periods_ps == fine.periods_ps
    assert rows(coarse) == rows(fine)
    assert coarse.accounts == fine.accounts
    unfolded = simulate(program, run.cluster, profile, unfold=True)
    assert [unfolded.periods_ps[symmetry_class.rank] for symmetry_class in coarse.symmetry_classes] == list(
        coarse.periods_ps
    )


@pytest.mark.parametrize("plan", ["tp2-sp", "tp2-pp2-dp2", "interleaved"])
def test_unfolded_is_the_same_coarse_and_fine(plan: str) -> None:
    """Ranks in step simulate merged segments of their own, and agree."""
    program, run = small(PLANS[plan])
    for profile in (PROFILES["between"], PROFILES["one-way"], PROFILES["both-ways"]):
        coarse, fine = (simulate(program, run.cluster, profile, unfold=True, coarse=flag) for flag in (True, False))
        assert coarse.periods_ps == fine.periods_ps
        assert coarse.accounts == fine.accounts
        assert coarse.events <= fine.events


def test_ranks_in_step_must_agree() -> None:
    in_step_check = InStepCheck(2)
    in_step_check.agree(0, (10, "as planned"))
    in_step_check.agree(1, (20, "as planned"))
    in_step_check.agree(0, (10, "as planned"))
    with pytest.raises(NotInStep):
        in_step_check.agree(1, (21, "as planned"))


def test_whole_nodes_fold_to_stages() -> None:
    program, run = small({"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2, "global_batch_size": 4})
    simulation = simulate(program, run.cluster, FakeProfile())
    assert [len(symmetry_class.ranks) for symmetry_class in simulation.symmetry_classes] == [8, 8]


def test_ranks_that_cross_nodes_are_told_apart() -> None:
    """Three replicas of two stages on nodes of four: one pipeline edge stays on its node, two cross."""
    plan = {"pipeline_parallel": 2, "data_parallel": 3, "global_batch_size": 6}
    program, run = small(plan)
    folded, unfolded = (
        simulate(program, run.cluster, FakeProfile()),
        simulate(program, run.cluster, FakeProfile(), unfold=True),
    )
    assert len(folded.symmetry_classes) > 2
    periods = {
        rank: time
        for symmetry_class, time in zip(folded.symmetry_classes, folded.periods_ps, strict=True)
        for rank in symmetry_class.ranks
    }
    assert periods == dict(enumerate(unfolded.periods_ps))


@pytest.mark.parametrize("plan", PLANS)
def test_folded_cpu_nodes_equal_unfolded(plan: str) -> None:
    """Two or three cores for all ranks: whoever computes or communicates slows everybody on the node."""
    program, run = small(PLANS[plan])
    run = replace(run, cluster=cluster_of(program.world, "cpu", 2))
    busy = FakeProfile(cores=CoreSharing(2, 1, 0.57, {"gemm": 1.1, "memory": 1.3}), wake_s=3e-5)
    slow = FakeProfile(issue_s=1e-4, cores=CoreSharing(3, 1, 0.4, {}), factors={("tp", "compute"): 1.7})
    for profile in (busy, slow):
        folded, unfolded = (simulate(program, run.cluster, profile, unfold=flag) for flag in (False, True))
        periods = dict(
            zip((symmetry_class.rank for symmetry_class in folded.symmetry_classes), folded.periods_ps, strict=True)
        )
        assert periods == {rank: unfolded.periods_ps[rank] for rank in periods}
