"""A steady state written as a repetition is the same program as one whose calls all stand there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.profile import load_profile
from compiler import compiler
from compiler.call_placer import CallPlacer
from compiler.repeat import repeated
from compiler.schedules import orders, place_transfers, placements
from plan.pipeline import schedule
from program import Call, Repeated, StepProgram, block_uses, columns, repetitions, with_repetitions, written_out
from program.hashing import program_hash
from program.proofs import ProofError, prove
from simulator.memory import simulate_memory
from tests.program.edit import drop_call, with_block
from tests.simulator.runs import small
from tests.simulator.test_steady import PLANS

MORE = {
    "gpipe": {"pipeline_parallel": 4, "schedule": "gpipe", "global_batch_size": 40},
    "short": {"pipeline_parallel": 4, "global_batch_size": 12},
    "pp4": {"pipeline_parallel": 4, "global_batch_size": 80},
    "deep": {"pipeline_parallel": 8, "global_batch_size": 81},
    "deep-megatron": {"pipeline_parallel": 8, "global_batch_size": 80, "implementation": "megatron"},
    "deep-deepspeed": {"pipeline_parallel": 8, "global_batch_size": 81, "implementation": "deepspeed"},
    "interleaved-4": {
        "pipeline_parallel": 4,
        "virtual_pipeline": 2,
        "schedule": "interleaved-1f1b",
        "global_batch_size": 104,
        "microbatch_group": 5,
    },
    "tied": {"pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 1, "global_batch_size": 100},
}


def plainly(plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **model: Any) -> StepProgram:
    """The program of a plan with every call placed for itself."""
    with monkeypatch.context() as patch:
        patch.setattr(
            compiler, "placements", lambda plan: place_transfers(orders(plan, plan.microbatches), plan.virtual_pipeline)
        )
        return small(plan, **model)[0]


def layers(plan: dict[str, Any]) -> int:
    return 8 if plan.get("pipeline_parallel", 1) * plan.get("virtual_pipeline", 1) == 8 else 4


@pytest.mark.parametrize("plan", [*PLANS, "deep", "interleaved-4"])
def test_fill_and_drain_keep_no_repetition_that_may_go(plan: str) -> None:
    """Less is kept than the short step holds, of which one repetition was there to be compared."""
    wanted = (PLANS | MORE)[plan]
    program, run = small(wanted, layers=layers(wanted))
    steady = schedule(run.plan).steady
    assert steady is not None
    for stage in program.classes:
        assert isinstance(stage.calls, Repeated)
        assert run.plan.microbatches - stage.calls.times * stage.calls.micros < steady(run.plan)[0]


def test_what_two_steps_share_is_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = []
    plainly_placed = CallPlacer._slot
    monkeypatch.setattr(CallPlacer, "_slot", lambda placer, slot: (placed.append(slot), plainly_placed(placer, slot)))
    run = small(MORE["deep"], layers=8)[1]
    alone = [len(p.slots) + len(p.steady.longer.slots) for p in placements(run.plan) if p.steady]
    assert len(alone) == 8
    assert len(placed) < 0.7 * sum(alone)


@pytest.mark.parametrize("plan", PLANS | MORE)
def test_a_repetition_is_the_calls_it_stands_for(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (PLANS | MORE)[plan]
    program = small(wanted, layers=layers(wanted), tied_embeddings=plan == "tied")[0]
    plain = plainly(wanted, monkeypatch, layers=layers(wanted), tied_embeddings=plan == "tied")
    assert all(isinstance(stage.calls, tuple) for stage in plain.classes)
    assert (repetitions(program) > 0) == (plan not in ("gpipe", "short"))
    assert program.hash == plain.hash == program_hash(program) == program_hash(written_out(program))
    assert program.classes == plain.classes
    for mine, stage in zip(program.classes, plain.classes, strict=True):
        assert tuple(mine.calls) == stage.calls
        assert [mine.calls[index] for index in range(len(stage.calls))] == list(stage.calls)
        assert all(np.array_equal(a, b) for a, b in zip(columns(mine.calls), columns(stage.calls), strict=True))
        assert block_uses(mine) == block_uses(stage)


@settings(max_examples=12)
@given(
    pipeline=st.sampled_from([1, 2, 3, 4]),
    chunks=st.sampled_from([1, 1, 2]),
    times=st.integers(1, 12),
    rest=st.integers(0, 5),
    implementation=st.sampled_from(["windtunnel", "megatron", "deepspeed"]),
)
def test_any_number_of_micro_batches(pipeline: int, chunks: int, times: int, rest: int, implementation: str) -> None:
    chunks = chunks if pipeline > 1 and implementation != "deepspeed" else 1
    plan: dict[str, Any] = {"pipeline_parallel": pipeline, "implementation": implementation}
    plan["global_batch_size"] = 7 * pipeline * times + (0 if chunks > 1 else rest)
    if chunks > 1:
        plan |= {"virtual_pipeline": chunks, "schedule": "interleaved-1f1b"}
    program = small(plan, layers=24)[0]
    with pytest.MonkeyPatch.context() as patch:
        assert program.hash == plainly(plan, patch, layers=24).hash


def test_memory_is_that_of_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = load_profile("h100").allocator
    for plan in ("deep", "interleaved", "offload"):
        program, plain = small((PLANS | MORE)[plan], layers=8)[0], plainly((PLANS | MORE)[plan], monkeypatch, layers=8)
        for mine, stage in zip(program.classes, plain.classes, strict=True):
            assert simulate_memory(mine, allocator) == simulate_memory(stage, allocator)


def test_calls_are_found_from_either_end() -> None:
    calls = small(PLANS["pp2-deepspeed"])[0].classes[0].calls
    plain = tuple(calls)
    assert isinstance(calls, Repeated)
    assert calls[-2] == plain[-2]
    assert calls[3:-3] == plain[3:-3]
    assert calls == plain
    assert calls != plain[1:]
    with pytest.raises(IndexError):
        calls[len(plain)]


def test_what_grows_in_no_rhythm_is_no_repetition() -> None:
    """A stretch put in whose calls look back ever farther, change their block or skip an id is placed call by call."""
    short = [Call(0, k, 2 * k, ((k - 1, 0),)) for k in range(10)]
    longer = [Call(0, k, 2 * k, ((k - 1, 0),)) for k in range(11)]
    assert repeated(short, longer, 5, 1) is not None
    for spoiled in (
        replace(longer[9], bindings=((7, 0),)),
        replace(longer[9], bindings=((8, 1),)),
        replace(longer[9], block=1),
        replace(longer[9], base=19),
        replace(longer[9], micro=8),
    ):
        assert repeated(short, [*longer[:9], spoiled, longer[10]], 5, 2) is None


def test_a_broken_repetition_is_refused_where_it_is_broken() -> None:
    program = small(PLANS["pp2-deepspeed"])[0]
    middle = len(program.classes[0].calls) // 2
    prove(program)
    prove(with_repetitions(program, 1))
    with pytest.raises(ProofError):
        prove(drop_call(program, 0, middle))
    stage = program.classes[0]
    assert isinstance(stage.calls, Repeated)
    shifted = replace(stage, calls=replace(stage.calls, micros=stage.calls.micros + 1))
    with pytest.raises(ProofError, match="complete"):
        prove(replace(program, classes=(shifted, program.classes[1])))


def test_blocks_that_differ_do_not_take_each_others_place() -> None:
    """Editing one receive slot's block makes it unlike the others of its ring: such a step is simulated and proved call
    by call."""
    program = small(MORE["pp4"])[0]
    stage = program.classes[1]
    assert isinstance(stage.calls, Repeated)
    turned = next(block for block, after in enumerate(stage.calls.turn) if after != block)
    block = stage.blocks[turned]
    slower = replace(block.instructions[0], transient_bytes=1 << 20)
    edited = with_block(program, 1, turned, replace(block, instructions=(slower, *block.instructions[1:])))
    assert repetitions(program) > 0
    assert repetitions(edited) == 0
