"""Every proof refuses what it is for, names who is at fault, and is alone in refusing it; sound programs pass them
all.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from program import Comm, StepProgram
from program.proofs import ProofError, prove, prove_complete, prove_order, prove_storage
from program.proofs.extents import prove_extents
from tests.program.edit import drop_wait, find, move_call, rebind, with_class, with_instruction
from tests.program.handmade import tiny_program
from tests.program.plain_proof import prove_expanded

# Calls of the hand-made program (see its docstring): stage 0 and stage 1.
F0, S0, F1, S1, R0, B0, R1, B1, END = range(9)
LR0, LF0, LR1, LF1, LB0, LS0, LB1, LS1, LEND = range(9)
ROOMS = {"complete": prove_complete, "extents": prove_extents, "order": prove_order, "storage": prove_storage}


def refusal(program: StepProgram, room: str) -> ProofError:
    """The error of the one room of proofs that refuses a program; all others accept it."""
    errors = {}
    for name, check in ROOMS.items():
        try:
            check(program)
        except ProofError as error:
            errors[name] = error
    assert list(errors) == [room], errors
    with pytest.raises(ProofError):
        prove(program)
    if room == "storage":
        with pytest.raises(ProofError) as judged:
            prove_expanded(program)
        assert judged.value.proof == errors[room].proof
    return errors[room]


def named(error: ProofError) -> list[tuple[int, str]]:
    """(class, label) of the instructions an error names."""
    return [(n.class_, n.label) for n in error.instructions]


def block_of(program: StepProgram, class_: int, call: int) -> int:
    return program.classes[class_].calls[call].block


def edit_instruction(program: StepProgram, class_: int, call: int, local: int, **changes: object) -> StepProgram:
    block = block_of(program, class_, call)
    instruction = program.classes[class_].blocks[block].instructions[local]
    return with_instruction(program, class_, block, local, replace(instruction, **changes))  # type: ignore[arg-type]


def test_the_handmade_program_passes_every_proof() -> None:
    prove(tiny_program())
    prove_expanded(tiny_program())


def test_an_error_names_class_stage_id_and_label() -> None:
    program = edit_instruction(tiny_program(), 1, LB0, 1, frees=())
    error = refusal(program, "storage")
    assert str(error) == (
        "memory proof failed: buffer 1 (y) of F is never freed\n  class 1 (stage 1) instruction 1 `F F0.1 head`"
    )


# --- complete


def with_micro(program: StepProgram, class_: int, call: int, micro: int) -> StepProgram:
    stage = program.classes[class_]
    calls = list(stage.calls)
    calls[call] = replace(calls[call], micro=micro)
    return with_class(program, class_, replace(stage, calls=tuple(calls)))


def test_complete_refuses_a_micro_batch_run_twice() -> None:
    error = refusal(with_micro(tiny_program(), 0, F1, 0), "complete")
    assert error.proof == "complete"
    assert named(error) == [(0, "F F0.0 embed"), (0, "F F0.0 embed")]


def test_complete_refuses_a_missing_micro_batch() -> None:
    program = with_micro(tiny_program(), 0, F1, 1)
    error = refusal(replace(program, degrees=program.degrees | {"microbatches": 3}), "complete")
    assert "`F F embed` of unit 0 is missing for micro-batch 2" in error.reason


def test_complete_refuses_a_reduction_before_the_last_gradient() -> None:
    program = tiny_program()
    early = rebind(move_call(program, 0, END, B1), 0, B1, 0, (B0, 0))
    with pytest.raises(ProofError) as caught:
        prove_complete(early)
    assert "reduced before its last gradient" in caught.value.reason
    assert named(caught.value) == [(0, "step AR0 bucket"), (0, "W W1.0 embed")]


def test_complete_refuses_an_unreduced_bucket() -> None:
    program = edit_instruction(tiny_program(), 0, END, 0, reads=(), writes=())
    error = refusal(program, "complete")
    assert "bucket 0 is reduced 0 times over dp instead of 1" in error.reason


# --- transfers and collectives


def test_transfers_refuses_other_bytes_on_the_two_ends() -> None:
    program = tiny_program()
    block = program.classes[0].blocks[block_of(program, 0, S0)]
    comm = block.instructions[0].comm
    assert comm is not None
    edited = edit_instruction(program, 0, S0, 0, comm=replace(comm, bytes=64))
    with pytest.raises(ProofError) as caught:
        prove_order(edited)
    assert caught.value.proof == "transfers"
    assert named(caught.value) == [(0, "F SEND0.0 embed"), (1, "F RECV0.1 head")]
    with pytest.raises(ProofError, match="the send of 64 bytes over 2 ranks reads sent of 128 bytes; it should be 64"):
        prove(edited)


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("all_gather", r"all_gather of 128 bytes over 2 ranks reads sent of 128 bytes; it should be 64"),
        ("all_reduce", r"all_reduce of 96 bytes over 2 ranks reads sent of 128 bytes; it should be 96"),
        ("reduce_scatter", r"reduce_scatter of 127 bytes leaves a rest over 2 ranks"),
    ],
)
def test_collectives_refuses_buffers_that_do_not_fit_what_moves(op: str, says: str) -> None:
    """A share is a whole part of the tensor: an input cut over ranks that do not divide it is lost in part."""
    program = tiny_program()
    bytes_ = {"all_gather": 128, "all_reduce": 96, "reduce_scatter": 127}[op]
    comm = Comm(op, "dp", bytes_, "fp32", "dp")  # type: ignore[arg-type]
    with pytest.raises(ProofError, match=says) as caught:
        prove_extents(edit_instruction(program, 0, S0, 0, comm=comm))
    assert caught.value.proof == "collectives"


def test_transfers_refuses_micro_batches_in_another_order() -> None:
    error = refusal(with_micro(with_micro(tiny_program(), 1, LR0, 1), 1, LR1, 0), "order")  # same bytes, wrong data
    assert error.proof == "transfers"
    assert "micro-batch 0 meets micro-batch 1" in error.reason


def joint(program: StepProgram, size: int) -> StepProgram:
    """Both stages' reductions joined over `world`, stage 1 with `size` bytes."""
    for class_, bytes_ in ((0, 512), (1, size)):
        end = program.classes[class_].blocks[block_of(program, class_, END)]
        comm = end.instructions[0].comm
        assert comm is not None
        local = replace(comm, role="world", channel="norm", bytes=bytes_)
        extra = replace(end.instructions[0], kind="NORM", comm=local, reads=(), writes=(), waits=())
        stage = program.classes[class_]
        step = replace(end.instructions[1], waits=(1, *end.instructions[1].waits))
        block = replace(end, instructions=(end.instructions[0], extra, step))
        blocks = list(stage.blocks)
        blocks[block_of(program, class_, END)] = block
        program = with_class(program, class_, replace(stage, blocks=tuple(blocks)))
    world = replace(program.groups["dp"][0], role="world", ranks=(0, 1, 2, 3))
    return replace(program, groups=program.groups | {"world": (world,)})


def test_collectives_refuses_members_that_bring_other_bytes() -> None:
    prove(joint(tiny_program(), 512))
    error = refusal(joint(tiny_program(), 256), "order")
    assert error.proof == "collectives"
    assert named(error) == [(0, "step NORM0 bucket"), (1, "step NORM0 bucket")]


def test_collectives_refuses_a_role_without_a_group() -> None:
    program = joint(tiny_program(), 512)
    groups = {role: found for role, found in program.groups.items() if role != "world"}
    error = refusal(replace(program, groups=groups), "order")
    assert error.proof == "collectives"
    assert named(error) == [(0, "step NORM0 bucket")]


# --- deadlock and rendezvous


def test_deadlock_refuses_a_backward_that_the_other_stage_cannot_have_started() -> None:
    program = move_call(move_call(tiny_program(), 0, R0, F1), 0, B0, S1)  # F0 s0 r0 B0 F1: B0 needs the last stage's F1
    error = refusal(program, "order")
    assert error.proof == "deadlock"
    assert {(0, "B RECV0.0 embed"), (0, "W W0.0 embed"), (1, "F F1.1 head")} <= {*named(error)} | {
        (0, "B RECV0.0 embed")
    }


def test_deadlock_refuses_a_wait_for_what_is_issued_later() -> None:
    error = refusal(edit_instruction(tiny_program(), 1, LB0, 0, waits=(1,)), "storage")
    assert error.proof == "deadlock"
    assert named(error) == [(1, "B I0.1 head"), (1, "W W0.1 head")]


def test_deadlock_refuses_a_port_bound_to_a_later_call() -> None:
    error = refusal(rebind(tiny_program(), 0, S0, 0, (F1, 0)), "storage")
    assert error.proof == "deadlock"
    assert named(error) == [(0, "F SEND0.0 embed")]


def test_rendezvous_refuses_host_orders_in_a_circle_that_streams_would_survive() -> None:
    error = refusal(move_call(tiny_program(), 0, R0, S1), "order")  # the receive is posted before the second send
    assert error.proof == "rendezvous"
    assert named(error) == [(0, "B RECV0.0 embed"), (1, "F RECV1.1 head")]


# --- race


def test_race_refuses_a_read_that_does_not_wait_for_the_receive() -> None:
    program = tiny_program()
    error = refusal(drop_wait(program, 1, block_of(program, 1, LF0), 0), "storage")
    assert error.proof == "race"
    assert named(error) == [(1, "F RECV0.1 head"), (1, "F F0.1 head")]


def test_race_refuses_a_gradient_reduced_while_it_is_written() -> None:
    program = tiny_program()
    error = refusal(drop_wait(program, 0, block_of(program, 0, END), 0), "storage")
    assert error.proof == "race"
    assert named(error) == [(0, "W W1.0 embed"), (0, "step AR0 bucket")]


def test_race_refuses_a_slot_taken_while_it_is_read() -> None:
    program = tiny_program()  # the second receive into the ring's first slot, with its in-port bound to nothing
    stage = program.classes[1]
    calls = list(stage.calls)
    calls[LR1] = replace(calls[LR1], block=calls[LR0].block)
    calls[LF1] = replace(calls[LF1], block=calls[LF0].block)
    error = refusal(with_class(program, 1, replace(stage, calls=tuple(calls))), "storage")
    assert error.proof == "race"
    assert named(error) == [(1, "F F0.1 head"), (1, "F RECV1.1 head")]
    bound = replace(calls[LR1], bindings=((LF0, 0),))  # and with the reuse waited for
    calls[LR1] = bound
    prove(with_class(program, 1, replace(stage, calls=tuple(calls))))


def test_race_refuses_a_slot_read_after_the_next_tenant_came() -> None:
    program = tiny_program()
    stage = program.classes[1]
    calls = list(stage.calls)
    calls[LR1] = replace(calls[LR1], block=calls[LR0].block, bindings=((LR0, 0),))
    moved = with_class(program, 1, replace(stage, calls=tuple(calls)))
    error = refusal(move_call(moved, 1, LF0, LR1), "storage")
    assert error.proof == "race"
    assert "another tenant" in error.reason


# --- memory


def test_memory_refuses_a_free_that_a_send_still_reads() -> None:
    program = tiny_program()
    block = block_of(program, 0, B0)
    error = refusal(drop_wait(program, 0, block, 0, -3), "storage")
    assert error.proof == "memory"
    assert named(error) == [(0, "F SEND0.0 embed"), (0, "W W0.0 embed")]


def test_memory_refuses_a_use_after_the_free() -> None:
    program = edit_instruction(tiny_program(), 1, LB0, 0, frees=(0,))
    error = refusal(edit_instruction(program, 1, LB0, 1, frees=()), "storage")
    assert error.proof == "memory"
    assert named(error) == [(1, "W W0.1 head"), (1, "B I0.1 head")]


def test_memory_refuses_a_second_free() -> None:
    program = edit_instruction(tiny_program(), 1, LB0, 0, frees=(0,))
    error = refusal(program, "storage")
    assert error.proof == "memory"


def test_memory_refuses_a_port_of_another_shape() -> None:
    program = tiny_program()
    stage = program.classes[1]
    number = block_of(program, 1, LB0)
    block = stage.blocks[number]
    buffers = (replace(block.buffers[0], shape=(4, 4)), *block.buffers[1:])
    blocks = list(stage.blocks)
    blocks[number] = replace(block, buffers=buffers)
    error = refusal(with_class(program, 1, replace(stage, blocks=tuple(blocks))), "storage")
    assert error.proof == "memory"
    assert "takes (4, 4) fp32 but gets (4, 8) fp32" in error.reason


def test_memory_refuses_an_allocation_by_another_stream() -> None:
    program = tiny_program()
    block = program.classes[1].blocks[block_of(program, 1, LR0)]
    buffers = (replace(block.buffers[0], slot=None),)
    blocks = list(program.classes[1].blocks)
    blocks[block_of(program, 1, LR0)] = replace(block, buffers=buffers)
    error = refusal(with_class(program, 1, replace(program.classes[1], blocks=tuple(blocks))), "storage")
    assert error.proof == "memory"
    assert named(error) == [(1, "F RECV0.1 head")]


# --- close


def test_close_refuses_a_step_that_ends_before_the_optimizer() -> None:
    program = edit_instruction(tiny_program(), 0, END, 1, host_sync=False)
    error = refusal(edit_instruction(program, 0, END, 0, host_sync=True), "storage")
    assert error.proof == "close"
    assert named(error) == [(0, "step STEP0 bucket"), (0, "step AR0 bucket")]


# --- compiled programs


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_compiled_program_is_refused_when_a_collective_is_not_waited_for(
    tiny: Callable[..., object], pipeline: int
) -> None:
    from compiler import compile_run

    plan = {"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": pipeline, "global_batch_size": 4}
    program = compile_run(tiny(plan=plan))  # type: ignore[arg-type]
    prove(program)
    block, local = find(program, 0, lambda _, i: i.kind == "F" and i.piece == "mlp.core")[0]
    error = refusal(drop_wait(program, 0, block, local), "storage")
    assert error.proof == "race"
    assert [label for _, label in named(error)] == ["F AG0.1 mlp.in", "F F0.1 mlp.core"]


def test_a_steady_state_is_stepped_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler import compile_run
    from plan.run import load
    from program.proofs import storage_proof

    taken = []

    class Counted(storage_proof.Step):
        def take(self) -> None:
            taken.append(self.here)
            super().take()

    monkeypatch.setattr(storage_proof, "Step", Counted)
    plan = {"tensor_parallel": 8, "sequence_parallel": True, "pipeline_parallel": 8, "global_batch_size": 96}
    run = load({"model": {"preset": "gpt3-175b"}, "cluster": {"preset": "dgx-a100-80gb", "nodes": 8}, "plan": plan})
    program = compile_run(run)
    calls = sum(len(stage.calls) for stage in program.classes)
    prove(program)
    assert len(taken) < calls / 4
    taken.clear()
    prove(program, skip=False)
    assert len(taken) == calls
