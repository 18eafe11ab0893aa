"""Placement of every tensor of every unit under tensor parallelism: lines are as declared, what gradients owe is what
the compiler sums, and a collective that is missing is found where its result is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from compiler import compile_run
from plan.run import Run
from program.lines import Apply, Lines, Move, Unit
from program.operators import OPERATORS
from program.placement import RULES, Misplaced, check
from tests.compiler.test_units import GPT, LLAMA, Tiny, units

DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}
UNFUSED = {"attention": "unfused"}
SP = {"sequence_parallel": True}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama-sp": (LLAMA, SP),
    "llama-sp-unfused": (LLAMA, SP | UNFUSED),
    "gpt": (GPT, {}),
    "gpt-sp-dropout": (GPT | DROPOUT, SP | UNFUSED),
    "norm-of-embedding-sp": (GPT | {"embedding_norm": True}, SP),
    "alibi": (GPT | {"positions": "alibi", "embedding_norm": True}, UNFUSED),
    "megatron-sp": (GPT | DROPOUT, SP | UNFUSED | {"implementation": "megatron"}),
    "deepspeed": (LLAMA, UNFUSED | {"implementation": "deepspeed"}),
    "deepspeed-alibi": (GPT | {"positions": "alibi"}, UNFUSED | {"implementation": "deepspeed"}),
}


def run_of(tiny: Tiny, variant: str) -> Run:
    model, plan = VARIANTS[variant]
    return tiny(model=model, plan={"tensor_parallel": 2, "precision": "bf16", **plan})


@pytest.mark.parametrize("variant", VARIANTS)
def test_lines_place_what_they_make_as_declared_and_owe_what_the_compiler_sums(tiny: Tiny, variant: str) -> None:
    run = run_of(tiny, variant)
    replicated = {p.name for stage in compile_run(run).classes for p in stage.params if p.tp_replicated}
    owed = set()
    for name, unit in units(run).items():
        owes = check(unit, "tp")
        if name != "cut":
            owed |= {gradient[2:].replace("@", "layers.0") for gradient in owes}
    assert owed == {name for name in replicated if not name.startswith("layers.") or name.startswith("layers.0.")}


def _without(unit: Unit) -> Iterator[tuple[Move, Unit]]:
    """The unit without each of its collectives, whose readers take its source."""
    for gone in (part for part in (*unit.forward, *unit.backward) if isinstance(part, Move)):

        def renamed(part: Lines | Move, gone: Move = gone) -> Lines | Move:
            if isinstance(part, Move):
                return replace(part, source=gone.source) if part.source == gone.target else part
            lines = tuple(_reading(line, gone.target, gone.source) for line in part.lines)
            return replace(part, lines=lines)

        kept = [tuple(renamed(p) for p in parts if p is not gone) for parts in (unit.forward, unit.backward)]
        yield gone, replace(unit, forward=kept[0], backward=kept[1])


def _reading(line: Apply, old: str, new: str) -> Apply:
    return replace(line, args=tuple(new if name == old else name for name in line.args))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_collective_that_is_missing_is_found(tiny: Tiny, variant: str) -> None:
    """But the last sum of a unit, whose reader is the next one."""
    accepted = []
    for name, unit in units(run_of(tiny, variant)).items():
        for gone, edited in _without(unit):
            try:
                check(edited, "tp")
            except Misplaced:
                continue
            if gone.target != unit.output:
                accepted.append((name, gone.phase, gone.kind, gone.piece))
    assert accepted == []


def test_every_operator_of_a_unit_has_a_rule() -> None:
    around = {
        "fill",
        "sqnorm",
        "statistics",
        "clip_coefficient",
        "not_finite",
        "adamw",
        "transfer",
        "load",
        "read",
    }
    assert set(OPERATORS) - set(RULES) == around


def test_a_sum_of_a_maximum_is_refused(tiny: Tiny) -> None:
    unit = units(run_of(tiny, "llama"))["head"]
    wrong = tuple(replace(p, reduce="sum") if isinstance(p, Move) and p.source == "rowmax" else p for p in unit.forward)
    with pytest.raises(Misplaced, match="a sum of Pmax"):
        check(replace(unit, forward=wrong), "tp")
