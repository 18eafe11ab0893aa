"""Rules are asked while values are wrong, and say only what does not hang on the right values."""

from itertools import combinations
from typing import Any

import pytest

from plan.run import load
from program.errors import InputError

BASE: dict[str, Any] = {"model": "gpt2-124m", "cluster": {"preset": "dgx-h100", "nodes": 2}}


def problems_of(plan: dict[str, Any], **sections: Any) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load({**BASE, **sections, "plan": plan})
    return caught.value.problems


def test_a_wrong_number_hides_no_rule() -> None:
    """12 heads are not split by 8, whatever the micro batch is; the batch itself is not spoken of."""
    found = problems_of({"micro_batch_size": "x", "tensor_parallel": 8, "global_batch_size": 3, "precision": "fp8"})
    assert len(found) == 3
    assert found[0].startswith("plan.micro_batch_size")
    assert found[1].startswith("tensor_parallel 8 does not divide heads 12")
    assert found[2].startswith("plan.precision fp8 is not yet forecast")


def test_nothing_is_said_of_a_stand_in() -> None:
    """A wrong degree makes no world of a wrong size, a wrong width no heads that do not divide it."""
    assert len(problems_of({"tensor_parallel": "x", "data_parallel": 3})) == 1
    assert len(problems_of({}, model={"preset": "gpt2-124m", "hidden": -5, "heads": 7})) == 1
    assert len(problems_of({"recompute": "fulll", "partition_activations": True, "tensor_parallel": 4})) == 1


def test_a_wrong_value_of_any_kind_has_a_stand_in() -> None:
    """A word of a list, a yes or no, a value inside a mapping."""
    wrong = {"precision": "bf17", "communication": {"overlap": "ja"}, "zero": {"prefetch": "much"}}
    found = problems_of({**wrong, "zero_stage": 2, "pipeline_parallel": 2})
    assert len(found) == 5
    assert found[3].startswith("zero_stage 2 with pipeline_parallel 2")
    assert found[4].startswith("plan.zero.prefetch is for zero_stage 3 (it is 2)")


def test_where_nothing_can_stand_in_the_values_are_said_alone() -> None:
    found = problems_of({"zero_stage": 7, "tensor_parallel": 8})
    assert found == ("plan.zero_stage is 7; it must be at most 3; the nearest is 3",)


LEGAL: list[dict[str, Any]] = [
    {
        "model": {"layers": 8, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 100, "seq_length": 32,
                  "positions": "rotary"},
        "plan": {"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 4, "micro_batch_size": 1,
                 "global_batch_size": 16, "data_parallel": 2},
    },
    {
        "model": {"layers": 4, "hidden": 96, "heads": 12, "head_dim": 8, "vocab": 100, "seq_length": 64,
                  "positions": "learned", "max_positions": 64, "attention_dropout": 0.1},
        "plan": {"zero_stage": 3, "tensor_parallel": 4, "data_parallel": 4, "micro_batch_size": 2,
                 "zero": {"prefetch": "auto"}, "global_batch_size": 16, "recompute": "full"},
    },
]  # fmt: skip


@pytest.mark.parametrize("legal", LEGAL)
def test_a_legal_run_with_values_spoilt_is_said_to_be_wrong_in_these_alone(legal: dict[str, Any]) -> None:
    """Its right values would break no rule, so a sentence more would be false. Every three numbers of a section, and
    every two across both."""
    cluster = {"preset": "dgx-h100", "nodes": 2}
    assert load({**legal, "cluster": cluster})
    numbers = [
        (section, key) for section in legal for key, value in legal[section].items() if type(value) in (int, float)
    ]
    for spoilt in (*combinations(numbers, 2), *combinations(numbers, 3)):
        raw = {section: dict(legal[section]) for section in legal}
        for section, key in spoilt:
            raw[section][key] = "x"
        with pytest.raises(InputError) as caught:
            load({**raw, "cluster": cluster})
        assert len(caught.value.problems) == len(spoilt), (spoilt, caught.value.problems)
