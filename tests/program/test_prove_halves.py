"""Backwards in two halves are proved like any other call: a half that is missing, early or bound to another micro-batch
is refused."""

from __future__ import annotations

import pytest

from program import StepProgram
from program.proofs import ProofError, prove
from tests.program.edit import drop_call, move_call, rebind
from tests.simulator.runs import small

CLASS = 1  # the last of two stages parts its backwards


@pytest.fixture(scope="module")
def halves() -> StepProgram:
    plan = {"pipeline_parallel": 2, "schedule": "zb-h1", "global_batch_size": 6, "data_parallel": 1}
    return small(plan, layers=2)[0]


def calls_of(program: StepProgram, name: str) -> dict[int, int]:
    """Micro-batch → call of every call whose block's name begins so."""
    stage = program.classes[CLASS]
    return {c.micro: i for i, c in enumerate(stage.calls) if stage.blocks[c.block].name.startswith(name)}


def refused(program: StepProgram) -> str:
    with pytest.raises(ProofError) as caught:
        prove(program)
    return str(caught.value)


@pytest.mark.parametrize("micro", [0, 3, 5])
@pytest.mark.parametrize("half", ["I0", "W0"])
def test_a_missing_half_is_refused(halves: StepProgram, half: str, micro: int) -> None:
    said = refused(drop_call(halves, CLASS, calls_of(halves, half)[micro]))
    assert f"is missing for micro-batch {micro}" in said


@pytest.mark.parametrize("micro", [0, 3, 5])
def test_weight_gradients_before_their_input_gradients_are_refused(halves: StepProgram, micro: int) -> None:
    early = move_call(halves, CLASS, calls_of(halves, "W0")[micro], calls_of(halves, "I0")[micro])
    said = refused(early)
    assert "is bound to call" in said
    assert f"`W W{micro}." in said


def test_weight_gradients_of_another_micro_batch_s_gradients_are_refused(halves: StepProgram) -> None:
    stage, weights, inputs = halves.classes[CLASS], calls_of(halves, "W0"), calls_of(halves, "I0")
    for port, (call, out) in enumerate(stage.calls[weights[3]].bindings):
        if call == inputs[3] and stage.blocks[stage.calls[call].block].ports_out[out].buffer is not None:
            refused(rebind(halves, CLASS, weights[3], port, (inputs[2], out)))
