"""A steady state skipped is a steady state simulated, to the picosecond."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from program import repetitions
from simulator.simulation import Simulation, simulate
from simulator.steady import Shift, _period_shift, _spread, _Times
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import cluster_of, small
from tests.simulator.test_equalities import PROFILES, rows

INTERLEAVED = {"virtual_pipeline": 2, "schedule": "interleaved-1f1b"}
PLANS: dict[str, dict[str, Any]] = {
    "one": {"global_batch_size": 80},
    "dp2-zero2": {"data_parallel": 2, "global_batch_size": 160, "zero_stage": 2},
    "dp2-fsdp": {"data_parallel": 2, "global_batch_size": 160, "zero_stage": 3, "implementation": "torch-fsdp"},
    "offload": {
        "data_parallel": 2,
        "global_batch_size": 160,
        "zero_stage": 3,
        "recompute": "full",
        "offload": {"optimizer": "cpu", "parameters": "cpu"},
    },
    "pp2-deepspeed": {"pipeline_parallel": 2, "global_batch_size": 80, "implementation": "deepspeed"},
    "pp4-megatron": {"pipeline_parallel": 4, "global_batch_size": 91, "implementation": "megatron"},
    "pp4-uneven": {"pipeline_parallel": 4, "pipeline_layout": [3, 1, 1, 1], "global_batch_size": 90},
    "interleaved": {"pipeline_parallel": 2, "global_batch_size": 82} | INTERLEAVED,
    "interleaved-rest": {"pipeline_parallel": 2, "global_batch_size": 171, "microbatch_group": 4} | INTERLEAVED,
    "zb-h1": {"pipeline_parallel": 4, "global_batch_size": 170, "schedule": "zb-h1"},
    "tp2-pp2-dp2": {
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "pipeline_parallel": 2,
        "data_parallel": 2,
        "global_batch_size": 160,
        "zero_stage": 1,
        "recompute": "selective",
    },
}
# What an implementation is forecast with: others are refused.
STAGES = {"windtunnel": (0, 3), "megatron": (0, 1), "deepspeed": (0, 2), "torch-fsdp": (2, 3)}
CHOSEN = ("between", "one-way", "one-way-transfers")


def same(a: Simulation, b: Simulation) -> bool:
    return (a.periods_ps, a.accounts, a.breakdown) == (b.periods_ps, b.accounts, b.breakdown)


@pytest.mark.parametrize("plan", PLANS)
def test_skipping_changes_nothing(plan: str) -> None:
    """Whoever is late, and whatever slows what; and something is skipped."""
    program, run = small(PLANS[plan])
    assert repetitions(program) > 0
    skipped = []
    for name in CHOSEN:
        found, whole = (
            simulate(program, run.cluster, PROFILES[name]),
            simulate(program, run.cluster, PROFILES[name], skip=False),
        )
        assert same(found, whole), name
        assert whole.whole is None
        skipped += [name] if found.whole is not None and found.events < whole.events / 1.5 else []
    assert skipped


@st.composite
def simulations(draw: st.DrawFn) -> tuple[dict[str, Any], FakeProfile]:
    """Long steps of any plan; whose costs are what is drawn too, so that now one and now another is late."""
    pipeline, tensor, data = draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 2])), draw(st.integers(1, 2))
    interleaved = pipeline == 2 and draw(st.booleans())
    plan: dict[str, Any] = {
        "implementation": draw(
            st.sampled_from([*STAGES][: 2 if interleaved else 3 if pipeline > 1 else 4]),
        ),
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "data_parallel": data,
        "zero_stage": draw(st.integers(0, 3 if pipeline == 1 else 1)),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "global_batch_size": data * max(2, pipeline) * draw(st.integers(24, 32)),
    }
    if interleaved:
        plan |= INTERLEAVED
    least, most = STAGES[plan["implementation"]]
    plan["zero_stage"] = min(max(plan["zero_stage"], least), most)
    factor = st.sampled_from([1.0, 1.0, 1.189, 1.7])
    profile = FakeProfile(
        issue_s=10 ** draw(st.floats(-7, -4)),
        alpha_s=10 ** draw(st.floats(-6, -3)),
        bus_bytes_per_s=10 ** draw(st.floats(8, 12)),
        nic_bytes_per_s=10 ** draw(st.floats(8, 11)),
        flops_per_s=10 ** draw(st.floats(12, 14.5)),
        factors={("compute", beside): draw(factor) for beside in ("tp", "dp", "transfer")},
    )
    return plan, profile


@settings(max_examples=12)
@given(simulations())
def test_any_long_simulation_is_the_same_skipped(drawn: tuple[dict[str, Any], FakeProfile]) -> None:
    plan, profile = drawn
    program, run = small(plan, layers=6 if plan["pipeline_parallel"] == 3 else 4)
    assert same(simulate(program, run.cluster, profile), simulate(program, run.cluster, profile, skip=False))


def test_skipped_is_the_same_fine_and_unfolded() -> None:
    program, run = small(PLANS["tp2-pp2-dp2"])
    for profile in (PROFILES["between"], PROFILES["one-way"]):
        coarse = simulate(program, run.cluster, profile)
        assert same(coarse, simulate(program, run.cluster, profile, coarse=False))
        unfolded = simulate(program, run.cluster, profile, unfold=True)
        assert [unfolded.periods_ps[symmetry_class.rank] for symmetry_class in coarse.symmetry_classes] == list(
            coarse.periods_ps
        )


def test_a_timeline_has_every_instruction_of_a_skipped_step() -> None:
    program, run = small(PLANS["pp2-deepspeed"])
    skipped = simulate(program, run.cluster, PROFILES["one-way"])
    whole = simulate(program, run.cluster, PROFILES["one-way"], skip=False)
    assert skipped.whole is not None
    assert rows(skipped) == rows(whole)


def test_more_micro_batches_take_no_more_events() -> None:
    """What is simulated depends on the pipeline, and not on how long it runs."""
    events = []
    for micro_batches in (2000, 20000):
        program, run = small({"pipeline_parallel": 4, "global_batch_size": micro_batches})
        events.append(simulate(program, run.cluster, PROFILES["one-way"]).events)
    assert events[0] == events[1]


def test_an_interleaved_pipeline_repeats_after_few_repetitions() -> None:
    """What a node follows from spans one repetition and a half: five are simulated in each period, not eight."""
    program, run = small({"pipeline_parallel": 8, "global_batch_size": 8 * 60} | INTERLEAVED, layers=16)
    found = simulate(program, run.cluster, PROFILES["one-way"])
    assert found.whole is not None
    assert found.events == 9986  # 13,954 with eight


def test_members_of_a_communication_are_apart_by_parts_of_a_repetition() -> None:
    """Each member: how often it was there before the repetitions, and where in one."""
    half = [Fraction(0), Fraction(1, 2)]
    assert _spread([(4, half), (4, half)]) == 0
    assert _spread([(4, half), (5, half)]) == Fraction(1, 2)
    assert _spread([(4, half), (6, half), (5, half)]) == 1
    assert _spread([(4, half), (4, [Fraction(1, 4), Fraction(3, 4)])]) == Fraction(1, 4)
    assert _spread([(1, []), (1, [])]) == 0
    assert _spread([(1, []), (2, [])]) is None, "met once in a step, by one before and by one behind"
    assert _spread([(1, half), (1, half[:1])]) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_work_that_slows_other_work_is_simulated_whole(device: str) -> None:
    program, _ = small(PLANS["one"])
    profile = FakeProfile() if device == "cpu" else PROFILES["both-ways"]
    assert simulate(program, cluster_of(program.world, device), profile).whole is None


def test_replicas_that_drift_apart_are_simulated_whole() -> None:
    """Three replicas on nodes of four: one pipeline edge stays on its node, two cross; they meet once a step."""
    program, run = small({"pipeline_parallel": 2, "data_parallel": 3, "global_batch_size": 3 * 74})
    slow = FakeProfile(nic_bytes_per_s=1e8)
    skipped, whole = simulate(program, run.cluster, slow), simulate(program, run.cluster, slow, skip=False)
    assert len(skipped.symmetry_classes) > 2
    assert same(skipped, whole)


def times(ends: list[int], issued: list[int], spent: list[int]) -> _Times:
    """One node's end, issue and account in each repetition."""
    return _Times(*(np.array(column).reshape(-1, 1) for column in (ends, issued, spent)))


def test_a_shift_is_one_for_all_nodes_over_the_whole_window() -> None:
    steady = times([0, 7, 17, 27, 37], [0, 3, 6, 9, 12], [0, 5, 11, 17, 23])
    assert _period_shift([steady], 1, 3) == (Shift(1, 10, ((6,),)), [True])
    assert _period_shift([steady], 1, 4) is None, "the first repetition came earlier"
    blocked = times([0, 7, 17, 27, 37], [0, 10, 20, 30, 40], [0, 5, 11, 17, 23])
    assert _period_shift([blocked], 1, 3) == (Shift(1, 10, ((6,),)), [False])
    faster = times([0, 9, 18, 27, 36], [0, 3, 6, 9, 12], [0, 5, 11, 17, 23])
    assert _period_shift([steady, faster], 1, 3) is None, "ranks that drift apart"
    assert _period_shift([times([0, 7, 17, 27, 37], [0, 11, 22, 33, 44], [0, 5, 11, 17, 23])], 1, 3) is None
    assert _period_shift([times([0, 7, 17, 27, 37], [0, 3, 6, 9, 12], [0, 5, 11, 18, 24])], 1, 3) is None
    in_turn = times([0, 8, 20, 28, 40, 48], [0, 1, 2, 3, 4, 5], [0, 4, 12, 16, 24, 28])
    assert _period_shift([in_turn], 1, 3) is None
    assert _period_shift([in_turn], 2, 3) == (Shift(2, 20, ((12,),)), [True])
