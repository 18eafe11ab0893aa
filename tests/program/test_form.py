"""A malformed program is refused, whatever is wrong with it: every number and reference of it, made one that stands for
nothing."""

import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from compiler import compile_run
from program import StepProgram
from program.proofs import ProofError, prove
from tests.trainer.ranks import GPT, make_run

PLANS: dict[str, dict[str, Any]] = {
    "pipeline": {"pipeline_parallel": 2, "tensor_parallel": 2},
    "zero3": {"data_parallel": 2, "zero_stage": 3},
    "deepspeed": {"pipeline_parallel": 2, "implementation": "deepspeed"},
}
STRANGE = (-1_000, -7, -2, -1, 0, 1, 5, 1_000, None)


def spoiled(thing: Any, draw: random.Random) -> Any:
    """The thing with one number, name or part of it, drawn at random, made a strange one, or gone."""
    if is_dataclass(thing) and not isinstance(thing, type):
        name = draw.choice([f.name for f in fields(thing) if f.init and f.name not in ("rules", "hash")])
        return replace(thing, **{name: spoiled(getattr(thing, name), draw)})
    if isinstance(thing, dict) and thing:
        key = draw.choice(sorted(thing))
        return thing | {key: spoiled(thing[key], draw)}
    if isinstance(thing, tuple) and thing:
        place = draw.randrange(len(thing))
        if draw.random() < 0.2:
            return (*thing[:place], *thing[place + 1 :])
        return (*thing[:place], spoiled(thing[place], draw), *thing[place + 1 :])
    return draw.choice(STRANGE) if not isinstance(thing, str) else draw.choice(["", "nothing", "x"])


@pytest.mark.parametrize("plan", PLANS)
def test_a_spoiled_program_is_judged_and_never_crashes(plan: str) -> None:
    program = compile_run(make_run(GPT, PLANS[plan]))
    draw, refused = random.Random(0), 0
    for _ in range(300):
        refused += _refused(spoiled(program, draw))
    assert refused > 100


def _refused(program: StepProgram) -> bool:
    try:
        prove(program)
    except ProofError:
        return True
    return False


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("block", 10_000, "places block 10000"),
        ("micro", 10_000, "micro-batch 10000"),
        ("bindings", (), "binds 0 in-ports"),
    ],
)
def test_a_call_that_stands_for_nothing_is_named(field: str, value: Any, said: str) -> None:
    program = compile_run(make_run(GPT, PLANS["pipeline"]))
    stage = program.classes[0]
    calls = (*stage.calls[:3], replace(stage.calls[3], **{field: value}), *stage.calls[4:])
    spoiled_program = replace(program, classes=(replace(stage, calls=calls), *program.classes[1:]))
    with pytest.raises(ProofError, match=rf"form proof failed: class 0: call 3: .*{said}"):
        prove(spoiled_program)
