"""Schedules that a user writes out: what a file says is what runs, and what it may not say has a sentence."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from compiler import compile_run
from plan.pipeline import Slot
from plan.run import load
from program import StepProgram
from program.errors import InputError, NotYetForecast
from program.proofs import prove
from program.text import schedule_csv
from tests.program.plain_proof import prove_expanded
from tests.simulator.runs import small

FIRST, LAST = "0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"
NAMED: list[dict[str, Any]] = [
    {"pipeline_parallel": 2, "schedule": "1f1b"},
    {"pipeline_parallel": 3, "schedule": "gpipe"},
    {"pipeline_parallel": 2, "virtual_pipeline": 2, "schedule": "interleaved-1f1b"},
    {"pipeline_parallel": 4, "schedule": "zb-h1"},
]


def written(rows: Any, **plan: Any) -> StepProgram:
    return small({"pipeline_parallel": 2, "global_batch_size": 2, "schedule": rows} | plan)[0]


@pytest.mark.parametrize("plan", NAMED, ids=lambda plan: plan["schedule"])
def test_the_text_of_a_schedule_gives_its_program(plan: dict[str, Any], tmp_path: Path) -> None:
    """And the run keeps the rows: its own file needs no other."""
    file = tmp_path / "own.csv"
    program, _ = small(plan | {"global_batch_size": 6})
    file.write_text(schedule_csv(program).replace(",", ", ") + "\n")
    again, run = small(plan | {"global_batch_size": 6, "schedule": str(file)})
    assert again.hash == program.hash
    file.unlink()
    kept = load(run.to_dict())
    assert kept == run
    assert compile_run(kept).hash == program.hash


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([FIRST], "has 1 line(s), but pipeline_parallel is 2"),
        (["0F0,0F1,0B0,0X1", LAST], "line 1 of the schedule has the cell '0X1'; write <stage><F|B|I|W><micro-batch>"),
        (["0F0,0F1,0B0,0B2", LAST], "cell 0B2, but a step has 2 micro-batches; the last is 1"),
        (["0F0,0F1,0B0,1B1", LAST], "cell 1B1, but pipeline rank 0 holds stage 0"),
        (["0F0,0F1,0B0", LAST], "never runs 0B1"),
        ([FIRST, "1F0,1B0,1B1,1F1"], "runs 1B1 before 1F1"),
        ([FIRST, "1F0,1B0,1F1,1W1,1I1"], "runs 1W1 before 1I1"),
        ([FIRST, "1F0,1B0,1F1,1I1"], "never runs 1W1"),
        ([FIRST, "1F0,1B0,1F1,1B1,1I1"], "runs 1I1 where micro-batch 1 has had it"),
        (["0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1"], "waits in a circle: stage 0 at 0B0; stage 1 at 1F1"),
        ("nowhere.csv", "nowhere.csv does not exist"),
    ],
)
def test_what_cannot_run_has_one_sentence(rows: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        written(rows)
    (problem,) = caught.value.problems
    assert sentence in problem


def test_a_file_of_more_cells_than_a_step_has_calls_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("0F0," * 750_001)
    with pytest.raises(InputError, match="long.csv has 750001 cells; a schedule that is written out has at most"):
        written(str(file))


def test_weight_gradients_apart_are_ours_and_need_what_was_kept() -> None:
    apart = [FIRST, "1F0,1I0,1F1,1I1,1W0,1W1"]
    with pytest.raises(NotYetForecast, match="schedule csv with implementation megatron is not yet forecast"):
        written(apart, implementation="megatron")
    with pytest.raises(InputError, match="what recompute full throws away"):
        written(apart, recompute="full")


@pytest.mark.parametrize("seed", range(12))
def test_any_order_that_can_run_is_proved(seed: int) -> None:
    """Orders drawn from a pool of what is ready, halves of backwards apart or not, over one chunk or two."""
    rng = Random(seed)
    p, v, m = rng.choice([2, 3]), rng.choice([1, 2]), rng.choice([2, 3, 5])
    plan = {"pipeline_parallel": p, "virtual_pipeline": v, "global_batch_size": m, "zero_stage": 1}
    plan |= {"tensor_parallel": 2, "sequence_parallel": True} if seed % 3 == 0 else {}
    rows = drawn(rng, p, v, m)
    program, _ = small(plan | {"schedule": rows}, layers=p * v)
    prove(program)
    prove_expanded(program)


def test_a_file_with_any_damage_is_refused_or_right(tmp_path: Path) -> None:
    """Two hundred damaged files: each has sentences, or a program that is proved. Nothing else."""
    said = {"refused": 0, "proved": 0}
    for seed in range(200):
        rng = Random(seed)
        text = "\n".join(drawn(rng, 2, 1, 3))
        for _ in range(rng.choice([1, 1, 2, 5])):
            text = damaged(rng, text)
        file = tmp_path / f"{seed}.csv"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            program, _ = small({"pipeline_parallel": 2, "global_batch_size": 3, "schedule": str(file)}, layers=2)
        except InputError:
            said["refused"] += 1
            continue
        prove(program)
        said["proved"] += 1
    assert min(said.values()) >= 10, said


HOSTILE = [
    "",
    ",",
    "\n",
    "\x00",
    "\ufeff",
    "\ud800",
    "٣F0",
    "0F99999999999",
    "-1F0",
    "0F0",
    "1B2",
    "0W1",
    "0I1",
    " ",
    "F",
    "9",
]


def damaged(rng: Random, text: str) -> str:
    """One cell moved, doubled, dropped or exchanged, two lines exchanged, or hostile text put in anywhere."""
    rows = [line.split(",") for line in text.split("\n")]
    row = rng.choice(rows)
    at, to = rng.randrange(len(row)), rng.randrange(len(row))
    kind = rng.choice(["move", "move", "double", "drop", "swap rows", "hostile", "hostile"])
    if kind == "hostile":
        place = rng.randrange(len(text) + 1)
        return text[:place] + rng.choice(HOSTILE) + text[place + rng.choice([0, 0, 1, 2]) :]
    if kind == "swap rows":
        rows.reverse()
    elif kind == "move":
        row.insert(to, row.pop(at))
    elif kind == "double":
        row.insert(to, row[at])
    elif len(row) > 1:
        row.pop(at)
    return "\n".join(",".join(row) for row in rows)


def drawn(rng: Random, p: int, v: int, m: int) -> list[str]:
    """Rows of a random order that waits for nothing in a circle."""
    left = {(s, phase, k) for s in range(p * v) for k in range(m) for phase in rng.choice(["FB", "FIW"])}
    done: set[tuple[int, str, int]] = set()
    rows: list[list[str]] = [[] for _ in range(p)]

    def back(s: int, k: int) -> bool:
        return (s, "B", k) in done or (s, "I", k) in done

    def ready(s: int, phase: str, k: int) -> bool:
        if phase == "F":
            return s == 0 or (s - 1, "F", k) in done
        if phase == "W":
            return back(s, k)
        return (s, "F", k) in done and (s == p * v - 1 or back(s + 1, k))

    while left:
        s, phase, k = rng.choice(sorted(cell for cell in left if ready(*cell)))
        left.remove((s, phase, k))
        done.add((s, phase, k))
        rows[s % p].append(Slot(phase, k, s // p).cell(s % p, p))  # type: ignore[arg-type]
    return [",".join(row) for row in rows]
