"""The nearest legal value."""

from hypothesis import given
from hypothesis import strategies as st

from program.nearest import did_you_mean, divisors, nearest_name, nearest_number


def test_a_typo_finds_its_key_and_nonsense_finds_none() -> None:
    keys = ["tensor_parallel", "pipeline_parallel", "precision"]
    assert nearest_name("tensor-paralel", keys) == "tensor_parallel"
    assert nearest_name("Precision", keys) == "precision"
    assert nearest_name("zzz", keys) is None
    assert did_you_mean("zzz", keys) == "known: tensor_parallel, pipeline_parallel, precision"


def test_of_two_equally_near_numbers_the_smaller_is_taken() -> None:
    assert nearest_number(3, [2, 4, 8]) == 2


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_divisors_are_all_that_divide(a: int, b: int) -> None:
    assert divisors(a, b) == [d for d in range(1, min(a, b) + 1) if a % d == 0 and b % d == 0]
