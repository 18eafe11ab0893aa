"""The gate: a run is held against its baseline through the twins of both, and the class that moved is named. It fails
for what exceeds the tolerance and the spread of the steps, and for nothing less."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from program.errors import InputError
from program.timeline import Timeline
from reports.check import Verdict, check
from reports.check_classes import class_times_s
from reports.check_side import Side, Work
from reports.check_spread import FEWEST, change, level, t_quantile
from reports.check_text import check_text
from reports.compare import compare
from tests.reports.simulations import header, measured, predicted

TWO = Work(world=2, tokens=1024, one_device_s=20e-3)
ONE = Work(world=1, tokens=1024, one_device_s=20e-3)
STEPS = 40
REAL = json.loads((Path(__file__).parent / "data" / "busy_steps_ms.json").read_text())
"""Step times of one tiny program (two ranks) trained seven times on two cores with a load of 20 to 50."""


def side(simulated: Timeline, ran: Timeline, work: Work = TWO) -> Side:
    """A run of STEPS steps as long as the recorded one."""
    times_s = [ran.header.step_times_s[0]] * STEPS
    return Side(compare(simulated, ran), work, times_s, class_times_s([ran]), ran.header)


def run(
    core_s: float = 10e-3, transfer_s: float = 2e-3, hash_: str = "ab" * 16, work: Work = TWO, **twin: object
) -> Side:
    return side(predicted(hash_=hash_, **twin), measured(core_s, transfer_s, steps=1, hash_=hash_), work)  # type: ignore[arg-type]


def verdict(after: Side, before: Side | None = None) -> Verdict:
    return check(before or run(), after, tolerance=0.1)


def test_an_equal_run_passes() -> None:
    found = verdict(run())
    assert found.passed
    assert found.same_program
    assert found.slowdown == pytest.approx(0)
    assert found.moved is None


@pytest.mark.parametrize(("slow", "name"), [({"core_s": 14e-3}, "forward"), ({"transfer_s": 6e-3}, "tensor RS")])
def test_a_slower_run_fails_and_the_class_that_moved_is_named(slow: dict[str, float], name: str) -> None:
    found = verdict(run(**slow))
    assert not found.passed
    assert found.slowdown == pytest.approx(4 / 13)
    assert found.moved == name
    assert found.classes[0].excess_s == pytest.approx(4e-3)
    assert f"REGRESSION: {name} moved most" in check_text(found)


def test_slower_within_the_tolerance_passes() -> None:
    assert verdict(run(core_s=11e-3)).passed


def test_another_plan_is_expected_to_err_as_the_baseline_did() -> None:
    """The baseline measured 20 % over its twin; a plan whose twin takes twice as long may take 20 % more than that."""
    before = side(predicted(10e-3, 2e-3), measured(12e-3, 2.4e-3))
    after = side(predicted(20e-3, 5e-3, hash_="cd" * 16), measured(24e-3, 6e-3, hash_="cd" * 16))
    found = verdict(after, before)
    assert not found.same_program
    assert found.expected_s == pytest.approx(26e-3 * 15.4 / 13)
    assert found.passed


def test_efficiency_uses_the_baseline_when_it_ran_on_one_device_with_equal_tokens() -> None:
    found = verdict(run(), run(work=ONE))
    assert found.efficiency.one_device_from == "baseline"
    assert found.efficiency.measured == pytest.approx(0.5)
    assert found.efficiency.twin == pytest.approx(0.5)


def test_efficiency_falls_back_on_the_twin() -> None:
    found = verdict(run(core_s=17e-3))
    assert found.efficiency.one_device_from == "twin"
    assert found.efficiency.measured == pytest.approx(20e-3 / (2 * 20e-3))
    assert found.efficiency.twin == pytest.approx(20e-3 / (2 * 13e-3))


def test_runs_priced_by_different_profiles_are_refused() -> None:
    with pytest.raises(InputError, match="name one for both with --profile"):
        verdict(run(device="h100"))


def test_the_text_fits_the_page() -> None:
    assert max(map(len, check_text(verdict(run(core_s=30e-3))).splitlines())) <= 100


def test_too_few_steps_cannot_tell_and_say_how_many_would() -> None:
    """A 6-step run trained twice was called a 12.7 % regression."""
    times_s = [0.1, 0.1, 0.12, 0.09, 0.1, 0.12]
    with pytest.raises(
        InputError, match=r"cannot tell: the baseline has 6 steps, 5 of them after warm-up; the run has"
    ):
        check(replace(run(), times_s=times_s), replace(run(), times_s=times_s))
    with pytest.raises(InputError, match="train both for at least 29 steps"):
        check(run(), replace(run(), times_s=[0.1] * 28))
    assert check(run(), replace(run(), times_s=run().times_s[:29])).passed


def test_few_recorded_steps_are_said() -> None:
    assert f"1 recorded steps say little about a class; from {FEWEST} on" in check_text(verdict(run()))


def test_another_machine_and_other_versions_are_said() -> None:
    old = header("measured", [1.0], versions={"torch": "2.11.0", "python": "3.12"}, machine_probe={"gemm_s": 1e-3})
    new = header("measured", [1.0], versions={"torch": "2.13.0", "python": "3.12"}, machine_probe={"gemm_s": 1.3e-3})
    found = verdict(replace(run(), header=replace(new, device="another")), replace(run(), header=old))
    assert found.differences == (
        "machine: a machine, now another",
        "torch: 2.11.0, now 2.13.0",
        "the machine's gemm probe took 1.30 times the baseline's",
    )
    assert "differs    torch: 2.11.0, now 2.13.0" in check_text(found)


def test_a_class_has_a_time_in_every_recorded_step() -> None:
    steps = [measured(core_s, 4e-3, steps=1) for core_s in (8e-3, 9e-3)]
    found = class_times_s(steps)
    assert {name: times_s.shape for name, times_s in found.items()} == {
        "forward": (2, 2), "tensor RS": (2, 2), "optimizer": (2, 2)
    }  # fmt: skip
    assert found["forward"].sum(axis=0) == pytest.approx([8e-3, 9e-3])
    one_rank = steps[0].select(steps[0].columns["rank"] == 0)
    assert class_times_s([one_rank, *steps])["forward"].shape == (2, 2)


# Runs of one program on a busy machine: steps are slowed in spells, instructions are interrupted.

SHARES = {"forward": 0.77, "tensor RS": 0.15, "optimizer": 0.08}  # of simulations.py


def busy(seed: int, recorded: int = 60) -> Side:
    """60 steps of 100 ms, 20 instructions a class. One execution in ten is interrupted, for 5 ms on average: more often
    in a busy spell, which lasts some six steps and slows all else a little too. Executions differ by 3 %."""
    random = np.random.default_rng(seed)
    spell = np.zeros(60)
    for step in range(1, 60):
        spell[step] = 0.85 * spell[step - 1] + 0.3 * random.standard_normal()
    class_s = {}
    for name, share in SHARES.items():
        work_s = 0.1 * share / 20 * np.exp(0.02 * spell + 0.03 * random.standard_normal((20, 60)))
        interrupted = random.random((20, 60)) < np.minimum(0.1 * np.exp(spell), 1)
        class_s[name] = work_s + random.exponential(5e-3, (20, 60)) * interrupted
    times_s = sum(times.sum(axis=0) for times in class_s.values())
    return replace(run(), times_s=times_s.tolist(), class_s={n: t[:, 60 - recorded :] for n, t in class_s.items()})


def slower(side: Side, name: str, share: float) -> Side:
    """The logs of the same run with a share more time in one class of every step."""
    more_s = share * side.class_s[name]
    added_s = np.full(len(side.times_s), np.median(more_s.sum(axis=0)))
    added_s[len(added_s) - more_s.shape[1] :] = more_s.sum(axis=0)
    times_s = (np.asarray(side.times_s) + added_s).tolist()
    return replace(side, times_s=times_s, class_s={**side.class_s, name: side.class_s[name] + more_s})


def failures(verdicts: Sequence[Verdict]) -> int:
    return sum(not found.passed for found in verdicts)


def by_medians(before: Side, after: Side) -> bool:
    """The verdict that two medians give."""
    return bool(np.median(after.kept_s) <= 1.1 * np.median(before.kept_s))


@pytest.mark.parametrize("recorded", [60, 3])
def test_two_runs_of_one_program_on_a_busy_machine_pass(recorded: int) -> None:
    pairs = [(busy(2 * seed, recorded), busy(2 * seed + 1, recorded)) for seed in range(40)]
    assert failures([check(*pair) for pair in pairs]) <= 1
    assert sum(not by_medians(*pair) for pair in pairs) > 4


@pytest.mark.parametrize("name", SHARES)
def test_thirty_percent_more_in_one_class_fails_and_names_it(name: str) -> None:
    for seed in range(20):
        same, other = busy(2 * seed), busy(2 * seed + 1)
        for found in (check(same, slower(same, name, 0.3)), check(other, slower(same, name, 0.3))):
            assert not found.passed, (seed, found)
            assert found.moved == name


def test_a_class_that_is_slower_beside_another_stream_is_no_regression() -> None:
    before = replace(busy(1), times_s=[0.1] * 60)
    found = check(before, replace(slower(before, "tensor RS", 0.3), times_s=before.times_s))
    row = next(row for row in found.classes if row.name == "tensor RS")
    assert row.at_least is not None
    assert row.at_least > 0.1
    assert found.passed


def test_recorded_steps_of_a_busy_machine_pass() -> None:
    """Real runs, any two of them, either way round."""
    sides = [replace(run(), times_s=[time_ms / 1e3 for time_ms in times_ms]) for times_ms in REAL]
    pairs = [(one, other) for one in sides for other in sides if one is not other]
    assert failures([check(*pair) for pair in pairs]) <= len(pairs) // 20
    assert sum(not by_medians(*pair) for pair in pairs) > len(pairs) // 4


def test_the_error_grows_with_spells_longer_than_a_batch() -> None:
    """The same times in another order: one slow spell, or slow steps all over."""
    times_s = np.random.default_rng(1).lognormal(0, 0.1, 56)
    assert level(np.sort(times_s), 0.5).error > 3 * level(times_s, 0.5).error


def test_what_both_runs_have_in_common_is_no_spread() -> None:
    """Of two runs that took turns on a machine of long spells, or of one with something added to its logs."""
    spells = np.random.default_rng(1).lognormal(0, 0.5, 56)
    one, other = level(spells, 0.5), level(1.1 * spells, 0.5)
    assert change(one, other).error == pytest.approx(0, abs=1e-12)
    assert change(one, level(spells[::-1], 0.5)).error > one.error


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"), [(0.975, 2, 4.303), (0.99, 4, 3.747), (0.995, 14, 2.977)]
)
def test_students_t(probability: float, freedom: float, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=0.005)
