"""What can be worked out on paper: bubbles, rings, in-flight activations, and no constant hidden in the simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calibration.profile import load_profile
from program import KernelCall, expand
from simulator.breakdown import CLASSES
from simulator.simulation import simulate
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import TABLE, by_hand, cluster_of, compute, move, simulated_small, small

FORWARD_S = 1e-3


class EqualForwardAndBackward(FakeProfile):
    """The attention product of a layer takes a millisecond forward and one backward; everything else takes nothing."""

    def kernel_s(self, call: KernelCall) -> float:
        return FORWARD_S * self.factor if call.op in ("attention_forward", "attention_backward") else 0.0


FREE = {"issue_s": 0.0, "alpha_s": 0.0, "bus_bytes_per_s": float("inf"), "nic_bytes_per_s": float("inf")}


@dataclass
class EqualParts(FakeProfile):
    """A layer's attention takes `forward` milliseconds, and `inputs` for its input gradient; the two bias gradients
    stand for the weight gradients and take `weights` together. Everything else takes nothing."""

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0

    def kernel_s(self, call: KernelCall) -> float:
        shares = {
            "attention_forward": self.forward,
            "attention_backward": self.inputs,
            "bias_grad": self.weights / 2,
        }
        return FORWARD_S * self.factor * shares.get(call.op, 0.0)


@pytest.mark.parametrize("stages", [2, 4, 8])
@settings(max_examples=5)
@given(st.integers(0, 3), st.tuples(*[st.sampled_from([1.0, 0.5, 0.8, 1.7])] * 3))
@example(0, (1.0, 1.0, 1.0))
@example(3, (1.0, 1.0, 0.5))
def test_weight_gradients_fill_the_drain(stages: int, more: int, times: tuple[float, float, float]) -> None:
    """The bubble is (p-1)(F+I+W) in 1F1B and in ZB-H1 (p-1)(F+I-W), 3(p-1)F and (p-1)F where the three are equal. A
    weight gradient fills no more of it than the shorter of the other two."""
    microbatches = 2 * stages + more
    f, i, w = times
    plan = {"pipeline_parallel": stages, "global_batch_size": microbatches, "attention": "flash"}
    for schedule, bubble in (("1f1b", f + i + w), ("zb-h1", f + i - min(w, f, i))):
        program, run = small(plan | {"schedule": schedule}, layers=stages)
        simulation = simulate(program, run.cluster, EqualParts(forward=f, inputs=i, weights=w, **FREE))
        expected = microbatches * (f + i + w) + (stages - 1) * bubble
        assert simulation.step_time_s / FORWARD_S == pytest.approx(expected, abs=1e-8)


def test_what_waits_for_its_weight_gradients_is_memory() -> None:
    """The first stage of ZB-H1 holds what 1F1B's does; every later one holds one more micro-batch that waits."""
    peaks = {}
    for schedule in ("1f1b", "zb-h1"):
        plan = {"pipeline_parallel": 4, "global_batch_size": 12, "schedule": schedule}
        program, run = small(plan, layers=8)
        memory = simulate(program, run.cluster, FakeProfile()).memory
        peaks[schedule] = [stage.parts["activations"] for stage in memory]
    more = [b - a for a, b in zip(peaks["1f1b"], peaks["zb-h1"], strict=True)]
    assert more[0] == 0
    assert 0 < more[1] < more[2] < more[3]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 12)])
def test_bubble_of_a_pipeline(schedule: str, stages: int, microbatches: int) -> None:
    """(p-1)/(m+p-1) of the step when forward and backward of every stage are equal and transfers are free."""
    plan = {"pipeline_parallel": stages, "schedule": schedule, "global_batch_size": microbatches, "attention": "flash"}
    program, run = small(plan)
    simulation = simulate(program, run.cluster, EqualForwardAndBackward(**FREE))
    layers = 4 // stages
    assert simulation.step_time_s == pytest.approx((microbatches + stages - 1) * 2 * layers * FORWARD_S, rel=1e-9)
    assert simulation.breakdown["bubble"] == pytest.approx((stages - 1) / (microbatches + stages - 1), rel=1e-9)
    assert simulation.breakdown["compute"] == pytest.approx(microbatches / (microbatches + stages - 1), rel=1e-9)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 2), (2, 3), (8, 2)])
def test_interleaving_divides_the_bubble(stages: int, chunks: int) -> None:
    """With v chunks a stage the bubble time is (p-1)(F+B)/v."""
    microbatches = 2 * stages
    plan = {
        "pipeline_parallel": stages,
        "virtual_pipeline": chunks,
        "schedule": "interleaved-1f1b",
        "global_batch_size": microbatches,
        "attention": "flash",
    }
    program, run = small(plan, layers=stages * chunks)
    simulation = simulate(program, run.cluster, EqualForwardAndBackward(**FREE))
    work = microbatches * 2 * chunks
    assert simulation.step_time_s / FORWARD_S == pytest.approx(work + (stages - 1) * 2, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("op", "passes"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_ring_collectives(op: str, passes: int, ranks: int) -> None:
    """passes x (n-1)/n bytes over the link and passes x (n-1) latencies."""
    profile = replace(TABLE, alpha_s=1e-6)
    rank = [compute("F", 1), move(op, "dp", "dp", 800, (0,)), compute("STEP", 1, (1,))]  # type: ignore[arg-type]
    program = replace(by_hand(rank, groups={"dp": (tuple(range(ranks)),)}), class_of=(0,) * ranks)
    expected = passes * (ranks - 1) / ranks * 800e-6 + passes * (ranks - 1) * 1e-6 + 2e-6
    assert simulate(program, cluster_of(ranks), profile).step_time_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("stages", [2, 4])
def test_1f1b_holds_p_minus_r_microbatches(stages: int) -> None:
    """Stage r keeps the activations of p - r micro-batches; gpipe keeps all."""
    microbatches = 6
    for schedule in ("1f1b", "gpipe"):
        plan = {"pipeline_parallel": stages, "schedule": schedule, "global_batch_size": microbatches}
        program, run = small(plan, layers=8)
        held = [stage.parts["activations"] for stage in simulate(program, run.cluster, FakeProfile()).memory]
        one = [
            stage.parts["activations"]
            for stage in simulated_small(plan | {"global_batch_size": 1}, FakeProfile(), layers=8).memory
        ]
        # middle stages hold layers alone, so their activations come in whole micro-batches but for what the peak's own
        # block works on
        for rank in range(1, stages - 1):
            per_microbatch = kept_bytes(program, rank)
            extra = one[rank] - per_microbatch
            in_flight = (held[rank] - extra) / per_microbatch
            assert in_flight == pytest.approx(stages - rank if schedule == "1f1b" else microbatches, abs=0.35)


def kept_bytes(program: object, stage: int) -> int:
    """What one forward block leaves allocated."""
    blocks = program.classes[stage].blocks  # type: ignore[attr-defined]
    return next(block.net_bytes for block in blocks if block.name == "F0")


PLAN = {
    "tensor_parallel": 2,
    "sequence_parallel": True,
    "pipeline_parallel": 2,
    "data_parallel": 2,
    "global_batch_size": 8,
    "zero_stage": 1,
}


@pytest.mark.parametrize("issue_s", [1e-8, 1e-4])
def test_three_times_every_time_is_three_times_the_step(issue_s: float) -> None:
    program, run = small(PLAN, hidden=2048)
    one = simulate(program, run.cluster, FakeProfile(issue_s=issue_s))
    three = simulate(program, run.cluster, FakeProfile(issue_s=issue_s).scaled(3.0))
    assert three.step_time_s == pytest.approx(3 * one.step_time_s, rel=1e-6)
    assert three.breakdown == pytest.approx(one.breakdown, abs=1e-6)


def test_a_graph_costs_the_host_what_it_cannot_hold() -> None:
    """The optimizer and the reading of the loss are issued as ever; a step that its host limits is freed. What
    launching the graph takes for each node is paid."""
    program, run = small(PLAN, hidden=2048)
    graphed = replace(program, execution=replace(program.execution, graph=True))
    profile, free = FakeProfile(issue_s=1e-4), simulate(program, run.cluster, FakeProfile(issue_s=0.0))
    issued_s = max(
        sum(profile.host_issue_s(p.instruction.kind, p.instruction.body) for p in expand(c) if p.instruction.needs_host)
        for c in program.classes
    )
    step_s = simulate(graphed, run.cluster, profile).step_time_s
    assert free.step_time_s <= step_s <= free.step_time_s + issued_s
    assert simulate(graphed, run.cluster, profile, coarse=False).step_time_s == step_s
    assert simulate(program, run.cluster, profile).step_time_s > 2 * step_s
    assert simulate(graphed, run.cluster, replace(profile, replayed_s=1e-4)).step_time_s > 2 * step_s


def test_a_profile_of_zeros_gives_a_step_of_zero() -> None:
    program, run = small(PLAN)
    simulation = simulate(program, run.cluster, FakeProfile().scaled(0.0))
    assert simulation.step_time_s == 0.0
    assert sum(simulation.breakdown.values()) == 1.0


@pytest.mark.parametrize("stages", [1, 4])
def test_time_fractions_tile_the_step(stages: int) -> None:
    program, run = small(
        {"tensor_parallel": 2, "pipeline_parallel": stages, "data_parallel": 2, "global_batch_size": 14}
    )
    simulation = simulate(program, run.cluster, FakeProfile(issue_s=3e-5))
    assert tuple(simulation.breakdown) == CLASSES
    assert sum(simulation.breakdown.values()) == 1.0
    assert [sum(account) for account in simulation.accounts] == list(simulation.periods_ps)


def test_a_simulation_is_reproducible() -> None:
    program, run = small(PLAN)
    first, second = simulate(program, run.cluster, FakeProfile()), simulate(program, run.cluster, FakeProfile())
    assert (first.periods_ps, first.accounts, first.events) == (second.periods_ps, second.accounts, second.events)


OFFLOADED = {
    "data_parallel": 4,
    "global_batch_size": 8,
    "zero_stage": 3,
    "offload": {"optimizer": "cpu", "parameters": "cpu"},
}


@pytest.mark.parametrize("plan", [PLAN, OFFLOADED], ids=["3d", "zero-3-offload"])
@pytest.mark.parametrize("name", ["a100-80gb", "h200"])
def test_shipped_profiles_scale_and_vanish(name: str, plan: dict[str, Any]) -> None:
    """Contention, collectives, copies and the host's optimizer included: every time of a real profile x 3 is 3 x the
    step, and none is left at 0."""
    program, run = small(plan, hidden=2048)
    profile = load_profile(name)
    one, three = simulate(program, run.cluster, profile), simulate(program, run.cluster, profile.scaled(3.0))
    assert three.step_time_s == pytest.approx(3 * one.step_time_s, rel=1e-6)
    assert three.breakdown == pytest.approx(one.breakdown, abs=1e-6)
    assert simulate(program, run.cluster, profile.scaled(0.0)).step_time_s == 0.0
