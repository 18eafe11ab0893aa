"""Sizes that tensor cores take badly are warned of, with the sizes that BigScience went to."""

from typing import Any

import pytest

from plan.run import load
from reports.tiles import warnings


def said(hidden: int, heads: int, tensor: int, **plan: Any) -> tuple[str, ...]:
    model = {"layers": 4, "hidden": hidden, "heads": heads, "vocab": 50257, "seq_length": 2048}
    run = {"model": model, "cluster": {"preset": "dgx-a100-80gb"}, "plan": {"tensor_parallel": tensor, **plan}}
    return warnings(load(run))


def test_a_size_that_fits_is_passed_in_silence() -> None:
    """12288 over 96 heads, 8 ranks."""
    assert said(12288, 96, 8) == said(13824, 96, 8) == ()


def test_case_032_names_the_size_that_was_taken_instead() -> None:
    """14400 / 96 = 150 a head, 1800 a rank."""
    head, width, ffn = said(14400, 96, 8)
    assert head.startswith("head_dim 150 is not a multiple of 8")
    assert width.startswith("hidden 14400 / tensor_parallel 8 = 1800 is not a multiple of 64")
    assert all("nearest hidden sizes are 13824 and 15360" in text for text in (head, width))
    assert ffn.startswith("ffn 57600 / tensor_parallel 8 = 7200 is not a multiple of 64")


def test_case_126_is_145_a_head_and_2900_a_rank() -> None:
    """BigScience's 104B."""
    head, width, _ = said(11600, 80, 4)
    assert "head_dim 145" in head
    assert "11600 / tensor_parallel 4 = 2900" in width


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_wider_precisions_are_not_spoken_of(precision: str) -> None:
    """Their products do not run on these tiles."""
    assert said(11600, 80, 4, precision=precision) == ()


def test_a_small_model_has_one_nearest_size() -> None:
    """Nothing below one step."""
    assert "nearest hidden sizes are 128" in said(96, 4, 2)[0]
