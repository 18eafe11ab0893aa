"""Whole dense families: their configuration is read, and one step on copied weights gives transformers' own logits,
loss and gradients."""

from typing import Any

import pytest

from plan.huggingface import model_section
from plan.ledger import Ledger
from tests.trainer.copied import hold, one_batch
from tests.trainer.families import FAMILIES, pairs, theirs


def _read(config: dict[str, Any]) -> dict[str, Any]:
    """Our `model:` section of a configuration that must be read whole."""
    ledger = Ledger()
    section = model_section(config, ledger)
    assert (ledger.problems, ledger.not_forecast, ledger.unknowns) == ([], [], [])
    return section | {"vocab_multiple": 8}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_transformers(family: str) -> None:
    """In fp32: transformers' own norms and rotary tables are fp32 whatever the model's type."""
    model, config = theirs(family)
    run = one_batch(_read(config), "fp32")
    assert run.model.parameters() == model.num_parameters()
    hold(run, model, pairs(family, run.model))
