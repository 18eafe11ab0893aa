"""What a simulation hands out: timeline, interval, profile by threads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import pytest

from calibration.profile import CoreSharing, load_profile
from program import Execution, expand
from program.timeline.skew import split
from simulator.breakdown import fractions
from simulator.simulation import simulate
from tests.simulator.fakes import FakeProfile
from tests.simulator.runs import cluster_of, small

PLAN = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "global_batch_size": 8, "zero_stage": 1}


def test_timeline_has_every_instruction_of_a_rank_under_its_own_id() -> None:
    program, run = small(PLAN)
    timeline = simulate(program, run.cluster, FakeProfile()).timeline()
    placed = list(expand(program.classes[0]))
    mine = timeline.select(timeline.columns["rank"] == 0)
    assert mine.ints("id") == [p.id for p in placed]
    assert mine.ints("seq") == [p.seq for p in placed]
    assert mine.ints("micro") == [p.micro for p in placed]
    assert timeline.header.program_hash == program.hash
    assert timeline.header.stands_for == {0: (0, 1, 2, 3), 4: (4, 5, 6, 7)}


def test_rows_are_in_causal_order() -> None:
    """issued <= ready <= start <= end, and nothing starts before what it waits for has ended."""
    program, run = small(PLAN)
    for profile in (FakeProfile(), FakeProfile(issue_s=1e-4), FakeProfile(factors={("compute", "tp"): 1.3})):
        timeline = simulate(program, run.cluster, profile).timeline([0])
        issued, ready, start, end = (timeline.columns[f"{name}_s"] for name in ("issued", "ready", "start", "end"))
        assert (issued <= ready).all()
        assert (ready <= start).all()
        assert (start <= end).all()
        ends = dict(zip(timeline.ints("id"), end.tolist(), strict=True))
        starts = dict(zip(timeline.ints("id"), start.tolist(), strict=True))
        for placed in expand(program.classes[0]):
            assert all(ends[wait] <= starts[placed.id] for wait in placed.waits)


def test_the_wait_for_a_partner_is_apart_from_the_transfer() -> None:
    """A receive's transfer is what the profile says; what comes before it is the wait for the sender."""
    program, run = small({"pipeline_parallel": 2, "global_batch_size": 4})
    simulation = simulate(program, run.cluster, FakeProfile())
    timeline = simulation.timeline()
    _, transfer = split(timeline)
    received = timeline.columns["kind"] == timeline.code("RECV")
    sent = timeline.columns["kind"] == timeline.code("SEND")
    one = simulation.profile.collective(
        "send",
        timeline.ints("bytes")[int(np.flatnonzero(sent)[0])],
        "bf16",
        simulation.symmetry_classes[0].group_instances["pp_next"].geometry,
    )
    assert transfer[received | sent] == pytest.approx(one.latency_s + one.transfer_s, rel=1e-6)


def test_a_timeline_may_be_asked_for_some_ranks() -> None:
    program, run = small(PLAN)
    timeline = simulate(program, run.cluster, FakeProfile()).timeline([5])
    assert set(timeline.ints("rank")) == {5}


def test_the_interval_contains_the_step_and_is_wider_above() -> None:
    program, run = small(PLAN)
    simulation = simulate(program, run.cluster, FakeProfile())
    below, above = (
        simulation.step_time_s - simulation.interval.low_s,
        simulation.interval.high_s - simulation.step_time_s,
    )
    assert 0 < below < above
    assert simulation.interval.level == 0.9
    assert sum(term.share for term in simulation.interval.error_terms) == pytest.approx(1.0)


def test_errors_of_one_kind_add_up_and_of_different_kinds_add_in_squares() -> None:
    program, run = small(PLAN)
    one = simulate(program, run.cluster, FakeProfile(residuals={"gemm": 0.1})).interval
    (gemm,) = (term for term in one.error_terms if term.sigma > 0)
    z = NormalDist().inv_cdf(0.95)
    step = simulate(program, run.cluster, FakeProfile()).step_time_s
    assert one.high_s == pytest.approx(step * math.exp(z * 0.1 * gemm.share))
    assert one.low_s == pytest.approx(step * math.exp(-z * 0.1 * gemm.share))
    two = simulate(program, run.cluster, FakeProfile(residuals={"gemm": 0.1, "collective": 0.2})).interval
    parts = {term.what: term.share * term.sigma for term in two.error_terms}
    spread = math.hypot(parts["gemm: fake"], parts["links: fake"])
    assert math.log(two.high_s / step) == pytest.approx(z * spread)
    assert [term.share * term.sigma for term in two.error_terms] == sorted(parts.values(), reverse=True)


def test_another_card_is_faster_or_slower_in_all_its_kernels() -> None:
    """One error for everything a device computes, beside those of its prices; what links and hosts do stays out."""
    program, run = small(PLAN)
    residuals = {"gemm": 0.1, "collective": 0.2}
    one = simulate(program, run.cluster, FakeProfile(residuals=residuals)).interval
    other = simulate(program, run.cluster, FakeProfile(residuals=residuals, card_sigma=0.08)).interval
    (card,) = (term for term in other.error_terms if term.what == "another card")
    computed = sum(term.share for term in one.error_terms if not term.what.startswith(("links", "host", "computing")))
    assert card.share == pytest.approx(computed)
    wide, narrow = (math.log(found.high_s / found.low_s) / 2 for found in (other, one))
    assert wide == pytest.approx(math.hypot(narrow, NormalDist().inv_cdf(0.95) * 0.08 * card.share))


def test_a_host_that_almost_binds_widens_the_interval_upwards() -> None:
    """Hidden host time has no share of the step, but the step is no shorter than the host at its own worst."""
    program, run = small(PLAN)
    quick = FakeProfile(issue_s=1e-9, residuals={"host": 0.5})
    step = simulate(program, run.cluster, quick).interval
    bound = simulate(program, run.cluster, replace(quick, issue_s=2e-5)).interval
    assert step.high_s == pytest.approx(step.low_s, rel=1e-4)
    assert bound.high_s > 1.5 * bound.low_s


def test_a_profile_without_residuals_has_no_interval() -> None:
    program, run = small(PLAN)
    simulation = simulate(program, run.cluster, FakeProfile(residuals={}))
    assert simulation.interval.low_s == simulation.step_time_s == simulation.interval.high_s


def test_fractions_of_nothing() -> None:
    assert sum(fractions([0] * 10).values()) == 1.0


@dataclass
class ByThreads(FakeProfile):
    """A CPU profile that says for how many threads it was asked."""

    def for_threads(self, threads: int) -> FakeProfile:
        return replace(self, flops_per_s=self.flops_per_s * threads)


def test_a_cpu_simulation_uses_the_profile_of_its_threads() -> None:
    program, _ = small({"global_batch_size": 1})
    profile = ByThreads(bytes_per_s=float("inf"), launch_s=0.0, issue_s=0.0, cores=CoreSharing(8, 1, 0.5, {}))
    cluster = cluster_of(1, "cpu")
    one, four = (
        simulate(program, replace(cluster, threads_per_rank=threads), profile).step_time_s for threads in (1, 4)
    )
    assert one == pytest.approx(4 * four, rel=1e-6)


def test_eager_kernels_of_a_small_run_are_bound_by_the_host() -> None:
    """What an operator launches under `kernels: eager` is issued one by one; compiled, the same run waits for less."""
    program, run = small({**PLAN, "tensor_parallel": 1, "kernels": "eager"})
    profile = load_profile("h100")
    eager = simulate(program, run.cluster, profile)
    compiled = simulate(replace(program, execution=Execution("compiled")), run.cluster, profile)
    assert eager.profile.priced_as == "eager"
    assert eager.breakdown["host"] > 5 * compiled.breakdown["host"] > 0
    assert eager.step_time_s > 2 * compiled.step_time_s
