"""Random valid plans prove; random edits of them are judged alike by the fast proofs, with and without skipping, and
by the plain ones.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import Phase, assume, given, reject, settings
from hypothesis import strategies as st

from compiler import compile_run
from plan.presets import merge
from plan.run import load
from program import StepProgram
from program.errors import InputError
from program.proofs import ProofError, prove, prove_storage
from tests.conftest import TINY
from tests.program import edit
from tests.program.plain_proof import prove_expanded

Draw = Callable[[st.SearchStrategy[Any]], Any]


DEGREES = {
    "implementation": ["windtunnel", "megatron", "deepspeed"],
    "tensor_parallel": [1, 2],
    "sequence_parallel": [False, True],
    "pipeline_parallel": [1, 2, 4],
    "virtual_pipeline": [1, 1, 2],
    "data_parallel": [1, 2],
    "zero_stage": [0, 1, 2, 3],
    "offload": [{}, {}, {"optimizer": "cpu"}, {"optimizer": "cpu", "parameters": "cpu"}],
    "schedule": ["auto", "gpipe"],
    "recompute": ["none", "selective", "full"],
    "partition_activations": [False, True],
    "global_batch_size": [2, 4, 8, 24],
    "loss_chunks": [1, 4],
    "communication": [{}, {"bucket_mb": 0.02}],
}


def _allowed(plan: dict[str, Any]) -> dict[str, Any]:
    """A drawn plan without the combinations that would only be drawn again: too few would be left."""
    own, stage = plan["implementation"] == "windtunnel", plan["zero_stage"]
    if stage >= 2:
        engine = "deepspeed" if stage == 2 and not own else "windtunnel"
        plan |= {"implementation": engine, "pipeline_parallel": 1, "virtual_pipeline": 1}
        own = True
    if stage < 3 or plan["data_parallel"] == 1:
        plan["offload"] = {"optimizer": plan["offload"].get("optimizer", "none") if own and stage else "none"}
    if plan["tensor_parallel"] == 1:
        plan["sequence_parallel"] = False
    if plan["tensor_parallel"] > 1 or plan["implementation"] == "deepspeed":
        plan["loss_chunks"] = 1
    if plan["pipeline_parallel"] == 1:
        plan["virtual_pipeline"] = 1
    if plan["virtual_pipeline"] > 1 or plan["implementation"] == "deepspeed":
        plan["schedule"] = "auto"
    if plan["tensor_parallel"] == 1 or plan["recompute"] != "full" or plan["sequence_parallel"]:
        plan["partition_activations"] = False
    return plan


plans = st.fixed_dictionaries({key: st.sampled_from(values) for key, values in DEGREES.items()}).map(_allowed)


def compiled(plan: dict[str, Any], tied: bool) -> StepProgram:
    """The program of a small model under a plan; plans that no rule allows are drawn again."""
    try:
        run = load(merge(TINY, {"plan": plan, "model": {"tied_embeddings": tied}}))
    except InputError:
        reject()
    return compile_run(run)


# A failure is told by its plan and edit; explaining it line by line would trace the whole compiler for minutes.
quickly = settings(phases=(Phase.explicit, Phase.generate, Phase.shrink))


# A head whose loss is computed in chunks reads its weights in no forward: its first backward waits for them. Plans
# drawn at random rarely meet all it takes, so these are drawn around it.
chunked = st.fixed_dictionaries(
    {key: st.sampled_from(values) for key, values in DEGREES.items() if key not in ("schedule", "implementation")}
    | {
        "implementation": st.sampled_from(["windtunnel", "megatron"]),
        "tensor_parallel": st.just(1),
        "data_parallel": st.just(2),
        "zero_stage": st.sampled_from([1, 1, 2]),
        "loss_chunks": st.sampled_from([2, 4]),
        "communication": st.sampled_from([{"bucket_mb": mb} for mb in (0.005, 0.02, 0.05)]),
        "schedule": st.just("auto"),
    }
).map(_allowed)


@quickly
@given(chunked, st.booleans())
def test_a_chunked_loss_waits_for_its_weights(
    soak_count: Callable[..., None], plan: dict[str, Any], tied: bool
) -> None:
    soak_count("random plans compiled and proved")
    program = compiled(plan, tied)
    prove(program)
    prove_expanded(program)


@quickly
@given(plans, st.booleans())
def test_whatever_compiles_proves(soak_count: Callable[..., None], plan: dict[str, Any], tied: bool) -> None:
    soak_count("random plans compiled and proved")
    program = compiled(plan, tied)
    prove(program)
    prove_expanded(program)


def _drop_wait(draw: Draw, program: StepProgram, class_: int) -> StepProgram:
    waiting = edit.find(program, class_, lambda _, i: bool(i.waits))
    assume(waiting)
    block, local = draw(st.sampled_from(waiting))
    waits = program.classes[class_].blocks[block].instructions[local].waits
    return edit.drop_wait(program, class_, block, local, draw(st.sampled_from(waits)))


def _move(draw: Draw, program: StepProgram, class_: int) -> StepProgram:
    block = draw(st.integers(0, len(program.classes[class_].blocks) - 1))
    place = st.integers(0, len(program.classes[class_].blocks[block].instructions) - 1)
    return edit.move(program, class_, block, draw(place), draw(place))


def _move_call(draw: Draw, program: StepProgram, class_: int) -> StepProgram:
    last = len(program.classes[class_].calls) - 1
    call = draw(st.integers(0, last))
    return edit.move_call(program, class_, call, min(last, max(0, call + draw(st.integers(-3, 3)))))


def _free_elsewhere(draw: Draw, program: StepProgram, class_: int) -> StepProgram:
    block, local = draw(st.sampled_from(edit.find(program, class_, lambda _, i: bool(i.frees))))
    instruction = program.classes[class_].blocks[block].instructions[local]
    gone = draw(st.sampled_from(instruction.frees))
    kept = tuple(ref for ref in instruction.frees if ref != gone)
    without = edit.with_instruction(program, class_, block, local, replace(instruction, frees=kept))
    others = [k for b, k in edit.find(without, class_, lambda _, i: i.stream == "compute") if b == block]
    there = draw(st.sampled_from(others))
    other = without.classes[class_].blocks[block].instructions[there]
    return edit.with_instruction(without, class_, block, there, replace(other, frees=(*other.frees, gone)))


def _rebind(draw: Draw, program: StepProgram, class_: int) -> StepProgram:
    """A port is bound to nothing, or to the same out-port of another call of the same block."""
    calls = program.classes[class_].calls
    bound = [(c, k) for c, call in enumerate(calls) for k, (source, _) in enumerate(call.bindings) if source >= 0]
    assume(bound)
    call, port = draw(st.sampled_from(bound))
    source, out = calls[call].bindings[port]
    twins = [c for c in range(call) if calls[c].block == calls[source].block]
    binding = draw(st.sampled_from([(-1, -1), *((c, out) for c in twins)]))
    return edit.rebind(program, class_, call, port, binding)


EDITS = [_drop_wait, _move, _move_call, _free_elsewhere, _rebind]


def refused(check: Callable[[], None]) -> str | None:
    """What a proof says, None when it accepts."""
    try:
        check()
    except ProofError as error:
        return str(error)
    return None


@quickly
@given(plans, st.booleans(), st.sampled_from(EDITS), st.data())
def test_edits_are_judged_as_the_plain_proofs_judge_them(
    soak_count: Callable[..., None],
    plan: dict[str, Any],
    tied: bool,
    change: Callable[[Draw, StepProgram, int], StepProgram],
    data: st.DataObject,
) -> None:
    soak_count("edited programs")
    program = compiled(plan, tied)
    edited = change(data.draw, program, data.draw(st.integers(0, len(program.classes) - 1)))
    fast = refused(lambda: prove_storage(edited))
    assert fast == refused(lambda: prove_storage(edited, skip=False))
    assert (fast is None) == (refused(lambda: prove_expanded(edited)) is None)
