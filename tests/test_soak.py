"""What `make soak` ends with: the draws of all tests added up, and those that failed."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak import Counts, mark_scaled, summary


def report(nodeid: str, failed: bool = False, when: str = "call", **drawn: int) -> SimpleNamespace:
    kinds = {kind.replace("_", " "): n for kind, n in drawn.items()}
    return SimpleNamespace(nodeid=nodeid, failed=failed, when=when, user_properties=[("soak", kinds), ("other", 1)])


def test_draws_of_one_kind_add_up_over_tests() -> None:
    reports = [report("a", random_plans=1500), report("b", random_plans=20, fuzzed_inputs=3), SimpleNamespace()]
    assert summary(reports) == ["3 fuzzed inputs; 1,520 random plans: none at exit 3"]


def test_the_report_of_a_teardown_repeats_what_the_call_counted() -> None:
    assert summary([report("a", plans=2), report("a", when="teardown", plans=2)]) == ["2 plans: none at exit 3"]


def test_a_failure_is_named() -> None:
    assert summary([report("a", plans=2), report("b", failed=True, plans=1)]) == ["3 plans: failures in b"]


def test_a_test_that_failed_before_it_counted_is_named() -> None:
    broken = SimpleNamespace(nodeid="b", failed=True, when="call", user_properties=[])
    assert summary([report("a", plans=2), broken]) == ["2 plans: failures in b"]


def test_nothing_drawn_says_nothing() -> None:
    assert summary([SimpleNamespace(), report("a", when="setup")]) == []


def test_counts_travel_in_the_report_of_the_test_that_drew(request: pytest.FixtureRequest) -> None:
    counts = Counts()
    counts.begin(request.node)
    counts("plans", 2)
    counts("plans")
    assert request.node.user_properties == [("soak", {"plans": 3})]


@given(st.integers())
def test_a_property_test_is_scaled_and_may_count(
    soak_count: Counts, request: pytest.FixtureRequest, number: int
) -> None:
    assert isinstance(number, int)
    soak_count("examples of a property")
    assert request.node.get_closest_marker("scaled")


def test_an_ordinary_test_is_not_scaled(request: pytest.FixtureRequest) -> None:
    mark_scaled([request.node])
    assert request.node.get_closest_marker("scaled") is None


def test_what_asks_whether_it_soaks_is_run_by_the_soak() -> None:
    """A campaign that scaled but was not marked stood in no soak at all."""
    root = Path(__file__).parent
    asking = {f: text for f in root.rglob("test_*.py") if "soaking()" in (text := f.read_text(encoding="utf-8"))}
    assert len(asking) > 3
    assert [str(f) for f, text in asking.items() if not re.search(r"mark\.(scaled|soak)\b|@given", text)] == []
