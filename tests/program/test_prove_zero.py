"""Partitioned and offloaded buckets: what is missing, doubled or misplaced is found by the proof of completeness."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compiler import compile_run
from plan.run import load
from program import Block, Instruction, StepProgram
from program.proofs import ProofError, prove, prove_complete
from tests.conftest import TINY
from tests.program.edit import drop, find, with_instruction
from tests.program.plain_proof import prove_expanded

Wanted = Callable[[Block, Instruction], bool]


def made(**plan: Any) -> StepProgram:
    """Two micro-batches of a tiny model over two data-parallel ranks."""
    plan = {"data_parallel": 2, "global_batch_size": 4, "zero_stage": 3, **plan}
    return compile_run(load(TINY | {"plan": plan}))


def without(program: StepProgram, wanted: Wanted) -> StepProgram:
    """The program without the instruction that `wanted` accepts, in whichever blocks have one."""
    for block, local in find(program, 0, wanted):
        program = drop(program, 0, block, local)
    return program


def refusal(program: StepProgram) -> str:
    with pytest.raises(ProofError) as error:
        prove_complete(program)
    assert error.value.proof == "complete"
    return error.value.reason


OFFLOAD = {"optimizer": "cpu", "parameters": "cpu"}


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("offload", [{}, {"optimizer": "cpu"}, {"optimizer": "cpu", "fraction": 0.4}])
@pytest.mark.parametrize("tied", [False, True])
def test_sound_programs_pass(stage: int, offload: dict[str, Any], tied: bool) -> None:
    plan = {"data_parallel": 2, "global_batch_size": 4, "zero_stage": stage, "offload": offload}
    program = compile_run(load(TINY | {"plan": plan, "model": TINY["model"] | {"tied_embeddings": tied}}))
    prove(program)
    prove_expanded(program)


def test_a_unit_that_is_not_gathered() -> None:
    program = without(made(), lambda b, i: b.name == "F0" and i.kind == "AG" and i.unit == 2)
    assert "is read before its bucket" in refusal(program)


def test_a_shard_that_stays_on_the_host() -> None:
    program = without(made(offload=OFFLOAD), lambda b, i: b.name == "F0" and i.kind == "H2D" and i.unit == 2)
    assert "is read before its bucket" in refusal(program)


def test_gradients_added_to_what_nobody_cleared() -> None:
    program = without(made(), lambda b, i: i.kind == "ZERO" and i.piece == "gradients" and i.unit == 2)
    assert "added to what nobody cleared" in refusal(program)


@pytest.mark.parametrize(("kind", "said"), [("RS", "is not reduced once after"), ("ADD", "is not added once")])
def test_a_micro_batch_whose_gradients_are_lost(kind: str, said: str) -> None:
    program = without(made(), lambda b, i: i.kind == kind and i.phase == "B" and i.unit == 2)
    assert said in refusal(program)


def test_a_reduction_that_overwrites_what_earlier_ones_left() -> None:
    """Both micro-batches reduce straight into the shard."""
    program = made()
    for block, local in find(program, 0, lambda b, i: i.kind == "RS" and i.unit == 2):
        stage = program.classes[0]
        reduce = stage.blocks[block].instructions[local]
        adds = find(program, 0, lambda b, i: i.kind == "ADD" and i.unit == 2)
        shard = next(stage.blocks[b].instructions[k].writes for b, k in adds if b == block)
        program = with_instruction(program, 0, block, local, replace(reduce, writes=shard))
    assert "overwritten by a later reduction" in refusal(program)


def test_a_gradient_that_never_reaches_the_host() -> None:
    program = without(made(offload=OFFLOAD), lambda b, i: i.kind == "D2H" and i.unit == 1)
    assert "is not once copied to the host" in refusal(program)


def test_weights_that_never_come_back() -> None:
    program = without(made(offload={"optimizer": "cpu"}), lambda b, i: i.kind == "H2D" and i.unit == 1)
    assert "is not once copied back to the device" in refusal(program)


def test_a_step_without_a_wait_for_its_gradient_races() -> None:
    program = made(offload={"optimizer": "cpu"})
    block, local = find(program, 0, lambda b, i: i.kind == "STEP")[0]
    step = program.classes[0].blocks[block].instructions[local]
    with pytest.raises(ProofError) as error:
        prove(with_instruction(program, 0, block, local, replace(step, waits=())))
    assert error.value.proof == "race"
