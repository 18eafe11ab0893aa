"""The proof of values refuses by name: each broken program here is sound to the proofs that know no values, or they are
left out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compiler import compile_run
from program import Instruction, StepProgram
from program.proofs import ProofError
from program.proofs.rank_grid import prove_grid
from program.proofs.values_calls import prove_values
from tests.program import edit
from tests.program.edit_places import at, places
from tests.trainer.ranks import GPT, LLAMA, make_run

Wanted = Callable[[Instruction], bool]


def compiled(model: dict[str, Any], **plan: Any) -> StepProgram:
    """The program of a small model."""
    return compile_run(make_run(model, plan))


def without(program: StepProgram, wanted: Wanted) -> StepProgram:
    """The program without the first such instruction."""
    return edit.drop(program, *places(program, wanted)[0])


def refused(program: StepProgram, *said: str) -> None:
    """The proof refuses, and says so."""
    with pytest.raises(ProofError) as caught:
        prove_values(program)
    for words in said:
        assert words in str(caught.value)


def is_(kind: str, piece: str, phase: str = "F") -> Wanted:
    """An instruction by its label."""
    return lambda i: (i.kind, i.piece, i.phase) == (kind, piece, phase)


def test_a_dropped_sum_is_missed_by_whoever_reads_the_tensor() -> None:
    program = compiled(LLAMA, tensor_parallel=2)
    refused(without(program, is_("AR", "attn.out")), "z1 of unit 1 is asked for", "(P+ over tp)", "attn.out")
    refused(without(program, is_("AR", "head.logits")), "rowmax of unit 5 is asked for", "(Pmax over tp)")


def test_a_maximum_is_no_sum() -> None:
    program = compiled(LLAMA, tensor_parallel=2)
    place = places(program, is_("AR", "mlp.out"))[0]
    i = at(program, place)
    assert i.comm is not None
    refused(
        edit.with_instruction(program, *place, replace(i, comm=replace(i.comm, reduce="max"))),
        "all_reduce max over tp does not take z2 from P+ to R",
    )


def test_arguments_of_one_shape_are_not_exchanged() -> None:
    program = compiled(LLAMA)
    place = places(program, is_("F", "mlp.out"))[0]
    i = at(program, place)
    refused(edit.with_instruction(program, *place, replace(i, reads=i.reads[::-1])), "is asked for", "holds")
    norms = [p for p in places(program, is_("F", "attn.in")) if at(program, p).unit in (1, 2)]
    one, two = (at(program, p) for p in norms[:2])
    reads = (one.reads[0], two.reads[1])
    refused(edit.with_instruction(program, *norms[0], replace(one, reads=reads)), "layers.0.attn.norm.weight is asked")


def test_micro_batches_keep_apart() -> None:
    program = compiled(LLAMA)
    stage = program.classes[0]
    backward = [k for k, call in enumerate(stage.calls) if stage.blocks[call.block].name == "B0"]
    a, b = (stage.calls[k] for k in backward[:2])
    calls = list(stage.calls)
    calls[backward[1]] = replace(b, bindings=a.bindings)
    refused(replace(program, classes=(replace(stage, calls=tuple(calls)),)), "of micro-batch 1 is asked for")


def test_gradients_are_not_cleared_once_made() -> None:
    program = compiled(LLAMA)
    blocks = [block.name for block in program.classes[0].blocks]
    stage = program.classes[0]
    opens = next(k for k, call in enumerate(stage.calls) if blocks[call.block] == "open")
    backward = next(k for k, call in enumerate(stage.calls) if blocks[call.block] == "B0")
    refused(edit.move_call(program, 0, opens, backward), "nobody cleared")


def test_a_bucket_is_reduced_over_everyone_who_owes() -> None:
    plan = {"tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 2}
    program = compiled(GPT, **plan)
    refused(without(program, is_("AR", "replicated", "step")), "still owes a sum over tp")
    tied = compiled(GPT, pipeline_parallel=2)
    refused(without(tied, is_("AR", "tied", "step")), "still owes a sum over embed")
    refused(without(program, is_("AR", "norm", "step")), "the statistics owe a sum over model")


def test_the_period_closes() -> None:
    """DeepSpeed gathers the weights at the end of the step; its first forward relies on it."""
    program = compiled(GPT, data_parallel=2, zero_stage=1, implementation="deepspeed")
    last = places(program, is_("AG", "weights", "step"))[-1]
    refused(edit.drop(program, *last), "begins with whole weights", "ends with share ones")


def test_what_a_stage_receives_is_what_its_neighbour_sends() -> None:
    program = compiled(LLAMA, pipeline_parallel=2)
    stage = program.classes[0]
    sends = [k for k, call in enumerate(stage.calls) if stage.blocks[call.block].name == "send.fwd.0"]
    calls = list(stage.calls)
    one, two = calls[sends[0]], calls[sends[1]]
    calls[sends[1]] = replace(two, bindings=one.bindings)
    refused(edit.with_class(program, 0, replace(stage, calls=tuple(calls))), "micro-batch")
    refused(
        edit.with_instruction(program, *(place := places(program, is_("RECV", "x"))[-1]),
                              replace(at(program, place), stream="recv_bwd")),
        "it runs on stream recv_bwd",
    )  # fmt: skip


def test_groups_are_those_of_a_grid() -> None:
    program = compiled(GPT, tensor_parallel=2, pipeline_parallel=2)
    prove_grid(program)
    for role in ("tp", "pp_next", "embed"):
        groups = tuple(replace(group, ranks=group.ranks[::-1]) for group in program.groups[role])
        with pytest.raises(ProofError, match="group"):
            prove_grid(replace(program, groups=program.groups | {role: groups}))
    with pytest.raises(ProofError, match="runs stage"):
        prove_grid(replace(program, class_of=program.class_of[::-1]))


def test_an_edited_body_is_not_the_declared_one() -> None:
    program = compiled(LLAMA)
    place = places(program, is_("STEP", "adamw", "step"))[0]
    i = at(program, place)
    assert i.lines is not None
    lines = replace(i.lines, lines=i.lines.lines[1:])
    refused(edit.with_instruction(program, *place, replace(i, lines=lines)), "not those that were declared")


def test_a_constant_table_is_read_where_it_lies() -> None:
    program = compiled(LLAMA)
    place = next(p for p in places(program, is_("F", "attn.core")))
    i = at(program, place)
    assert i.values is not None
    tables = [k for k, value in enumerate(i.values.reads) if value.name.startswith("c:")]
    names = [program.classes[0].buffers[-1 - i.reads[k]].what for k in tables]
    assert names == [i.values.reads[k].name for k in tables]
    assert len(names) == len(set(names)) == 2  # once for all layers
    reads = list(i.reads)
    reads[tables[0]], reads[tables[1]] = reads[tables[1]], reads[tables[0]]
    refused(
        edit.with_instruction(program, *place, replace(i, reads=tuple(reads))), "the table cos is asked for in c:sin"
    )


def test_an_instruction_that_has_no_like_keeps_its_own_body() -> None:
    """Of the embedding's lookup and the head's product of the same operands' shapes."""
    program = compiled(GPT, tensor_parallel=2)
    lookup = places(program, is_("F", "embed"))[0]
    product = next(p for p in places(program, is_("I", "head.logits", "B")))
    i, other = at(program, lookup), at(program, product)
    assert i.lines is not None
    assert other.lines is not None
    assert i.lines.arguments == other.lines.arguments
    taken = replace(i, lines=other.lines, body=other.body)
    refused(edit.with_instruction(program, *lookup, taken), "its lines are not those of what it declares", "embed")
