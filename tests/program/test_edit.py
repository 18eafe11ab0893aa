"""Edits keep references consistent: what is moved is still the one that is waited for, handed out and freed."""

import pytest

from program import Instruction, StepProgram, expand
from program.proofs import prove
from tests.program.edit import drop, drop_call, drop_wait, find, move, move_call, swap
from tests.program.handmade import tiny_program

B = 4  # the backward block of stage 1: I, then W


def labels(program: StepProgram, class_: int) -> list[str]:
    """kind and micro-batch of every instruction, in host order."""
    return [f"{p.instruction.kind}{p.micro}" for p in expand(program.classes[class_])]


def test_swapped_instructions_take_their_waits_and_ports_along() -> None:
    program = tiny_program()
    swapped = swap(program, 1, B, 0, 1)
    block = swapped.classes[1].blocks[B]
    assert [i.kind for i in block.instructions] == ["W", "I"]
    assert [port.instruction for port in block.ports_out] == [1, 0]  # dx is still I's, done still W's
    assert swapped.hash != program.hash
    assert labels(swapped, 1)[4:6] == ["W0", "I0"]


def test_swapping_back_gives_the_program_back() -> None:
    program = tiny_program()
    assert swap(swap(program, 1, B, 0, 1), 1, B, 0, 1) == program
    assert move(move(program, 1, B, 0, 1), 1, B, 1, 0) == program


def test_an_edit_that_changes_lives_of_buffers_measures_the_block_again() -> None:
    block = swap(tiny_program(), 1, B, 0, 1).classes[1].blocks[B]  # y is freed before dx is made
    assert (block.net_bytes, block.peak_bytes) == (0, 0)


def test_a_moved_call_keeps_its_bindings_and_ids() -> None:
    program = tiny_program()
    moved = move_call(program, 0, 3, 2)  # the second send before the second forward
    ids = [p.id for p in expand(moved.classes[0])]
    assert ids == [0, 1, 3, 2, 4, 5, 6, 7, 8, 9]
    assert moved.classes[0].calls[2].bindings == ((3, 0),)
    assert move_call(moved, 0, 2, 3) == program


def test_nobody_waits_for_a_dropped_instruction() -> None:
    program = tiny_program()
    dropped = drop(program, 0, 6, 0)  # the all-reduce
    step = dropped.classes[0].blocks[6].instructions[0]
    assert (step.kind, step.waits) == ("STEP", ())


def test_an_out_port_of_a_dropped_instruction_stands_for_its_predecessor() -> None:
    dropped = drop(tiny_program(), 1, B, 1)
    assert [port.instruction for port in dropped.classes[1].blocks[B].ports_out] == [0, 0]
    with pytest.raises(ValueError, match="would stand for nothing"):
        drop(tiny_program(), 1, B, 0)


def test_ports_bound_to_a_dropped_call_are_bound_to_nothing() -> None:
    program = drop_call(tiny_program(), 0, 1)  # the first send
    assert labels(program, 0)[:3] == ["F0", "F1", "SEND1"]
    assert program.classes[0].calls[4].bindings == ((3, 0), (0, 0), (-1, -1))


def test_what_cannot_be_edited_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"no wait 7 to drop: it waits for \(-1, -3\)"):
        drop_wait(tiny_program(), 0, 4, 0, 7)


def test_find_points_at_instructions_and_sound_edits_still_prove() -> None:
    def is_weight(_: object, i: Instruction) -> bool:
        return i.kind == "W"

    program = tiny_program()
    assert find(program, 1, is_weight) == [(B, 1)]
    prove(move_call(program, 1, 2, 1))  # the second receive posted before the first forward
