"""Numbers as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program import numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [("5e8", 5e8), ("1_000_000", 1_000_000), ("6.0e-4", 6e-4), (".5", 0.5), ("-3", -3), (7, 7), (0.25, 0.25)],
)
def test_a_number_may_be_written_as_people_write_it(text: object, value: float) -> None:
    assert numbers.number(text) == value


@pytest.mark.parametrize(
    "text", ["", "five", "1e", "0x10", "1,000", True, None, [1], float("nan"), float("inf"), "nan", "²", "٣", "1e400"]
)
def test_what_is_not_a_number_is_quoted(text: object) -> None:
    with pytest.raises(ValueError, match="is not a"):
        numbers.number(text)


def test_5e8_is_a_whole_number_and_5_5_is_not() -> None:
    """Case: YAML 1.1 loaders hand over the string '5e8' (ArcticTraining issue 165)."""
    assert numbers.integer("5e8") == 500_000_000
    assert isinstance(numbers.integer("5e8"), int)
    assert numbers.integer("1.0e9") == 10**9
    with pytest.raises(ValueError, match=r"5\.5e0 is not a whole number; the nearest are 5 and 6"):
        numbers.integer("5.5e0")


def test_large_whole_numbers_stay_exact() -> None:
    assert numbers.integer("9_007_199_254_740_993") == 9_007_199_254_740_993


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (numbers.gib, "80 GiB", 80),
        (numbers.gib, "80GB", 80e9 / 2**30),
        (numbers.gib, 80, 80),
        (numbers.microseconds, "2 us", 2),
        (numbers.microseconds, "1.5 ms", 1500),
        (numbers.gb_per_s, "200 Gb/s", 25),
        (numbers.gb_per_s, "3.35 TB/s", 3350),
        (numbers.gb_per_s, "400Gbps", 50),
        (numbers.megabytes, "2e6 B", 2),
    ],
)
def test_a_unit_converts_and_a_bare_number_is_in_the_keys_own_unit(parse, text: object, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-12)


def test_an_unknown_unit_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown unit 'parsec'; use one of ps, ns, us"):
        numbers.microseconds("3 parsec")


@given(st.floats(min_value=-1e18, max_value=1e18))
def test_every_float_survives_being_written_down(value: float) -> None:
    assert numbers.number(repr(value)) == value


@given(st.integers(min_value=-(10**18), max_value=10**18))
def test_every_int_survives_with_underscores(value: int) -> None:
    assert numbers.integer(f"{value:_}") == value


@given(st.floats(min_value=1e-3, max_value=1e6), st.sampled_from(sorted(numbers.BYTES)))
def test_units_scale_by_their_size(value: float, unit: str) -> None:
    assert numbers.gib(f"{value!r} {unit}") == pytest.approx(value * numbers.BYTES[unit] / 2**30, rel=1e-12)


@pytest.mark.parametrize("value", [10**18 + 1, -(10**19), 10**400, 1e19, "9" * 50, "9" * 90, "1e200"])
def test_a_number_beyond_10_to_18_is_said_with_the_limit(value: object) -> None:
    with pytest.raises(ValueError, match=r"the most is 10\^18"):
        numbers.number(value)
