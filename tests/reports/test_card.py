"""A forecast priced with another card's profile says so, with what the data sheets tell apart."""

from dataclasses import dataclass
from typing import Any

import pytest

from plan.run import load
from reports.card import card_of, warnings
from windtunnel import api


@dataclass
class Named:
    """As much of a profile as is looked at."""

    name: str


def said(cluster: str, profile: str) -> tuple[str, ...]:
    model = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "seq_length": 64}
    named: Any = Named(profile)
    return warnings(load({"model": model, "cluster": cluster, "plan": {}}), named)


def test_the_smaller_a100_is_priced_as_the_larger_one() -> None:
    """1,555 GB/s against 2,039: memory-bound operators take up to 31 % longer than forecast."""
    (text,) = said("dgx-a100-40gb", "a100-80gb")
    assert text.startswith("the cluster's cards are a100-40gb, but profile a100-80gb was made for a100-80gb")
    assert "1555 GB/s here and 2039 GB/s there" in text
    assert "forecast too fast, by up to 31%" in text
    assert "peak" not in text  # both have 312
    assert "a card holds 39.39 GiB here and 79.15 there (0.50)" in text


def test_another_generation_has_another_peak() -> None:
    (text,) = said("dgx-a100-80gb", "h100")
    assert "forecast too slow" not in text
    assert "forecast too fast, by up to 64%" in text
    assert "the bf16 peak is 312 TFLOP/s here and 989.4 there (0.32)" in text


@pytest.mark.parametrize(
    ("cluster", "profile"),
    [("dgx-a100-80gb", "a100-80gb"), ("dgx-h200", "h200-published"), ("dgx-h100", "mine"), ("cpu", "h100")],
)
def test_its_own_card_and_an_unknown_one_are_passed_in_silence(cluster: str, profile: str) -> None:
    assert said(cluster, profile) == ()


def test_the_longest_name_counts() -> None:
    assert (card_of("h200"), card_of("a100-80gb-mine"), card_of("h2000"), card_of("a100")) == (
        "h200",
        "a100-80gb",
        None,
        None,
    )


def test_the_forecast_carries_it() -> None:
    run = {"model": "gpt2-124m", "cluster": "dgx-a100-40gb", "plan": {"micro_batch_size": 1}}
    assert any("1555 GB/s" in text for text in api.forecast(run).warnings)
    assert not any("cards are" in text for text in api.forecast({**run, "cluster": "dgx-a100-80gb"}).warnings)
