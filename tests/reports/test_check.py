"""The gate: a run is held against its baseline through the twins of both, and the class that moved is named."""

import pytest

from plan.errors import InputError
from reports.check import Verdict, Work, check
from reports.check_text import check_text
from reports.compare import Comparison, compare
from tests.reports.flights import measured, predicted

TWO = Work(world=2, tokens=1024, one_device_s=20e-3)
ONE = Work(world=1, tokens=1024, one_device_s=20e-3)


def run(core_s: float = 10e-3, transfer_s: float = 2e-3, hash_: str = "ab" * 16, **twin: float) -> Comparison:
    return compare(predicted(hash_=hash_, **twin), measured(core_s, transfer_s, hash_=hash_))


def verdict(after: Comparison, before: Comparison | None = None, work: Work = TWO, old: Work = TWO) -> Verdict:
    return check(before or run(), after, work, old, tolerance=0.1)


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
    before = compare(predicted(10e-3, 2e-3), measured(12e-3, 2.4e-3))
    after = compare(predicted(20e-3, 5e-3, hash_="cd" * 16), measured(24e-3, 6e-3, hash_="cd" * 16))
    found = verdict(after, before)
    assert not found.same_program
    assert found.expected_s == pytest.approx(26e-3 * 15.4 / 13)
    assert found.passed


def test_efficiency_uses_the_baseline_when_it_ran_on_one_device_with_equal_tokens() -> None:
    found = verdict(run(), work=TWO, old=ONE)
    assert found.efficiency.one_device_from == "baseline"
    assert found.efficiency.measured == pytest.approx(0.5)
    assert found.efficiency.twin == pytest.approx(0.5)


def test_efficiency_falls_back_on_the_twin() -> None:
    found = verdict(run(core_s=17e-3))
    assert found.efficiency.one_device_from == "twin"
    assert found.efficiency.measured == pytest.approx(20e-3 / (2 * 20e-3))
    assert found.efficiency.twin == pytest.approx(20e-3 / (2 * 13e-3))


def test_runs_priced_by_different_profiles_are_refused() -> None:
    other = compare(predicted(device="h100"), measured())
    with pytest.raises(InputError, match="name one for both with --profile"):
        verdict(other)


def test_the_text_fits_the_page() -> None:
    assert max(map(len, check_text(verdict(run(core_s=30e-3))).splitlines())) <= 100
