"""A schedule given cell by cell in PyTorch's text form (`torch.distributed.pipelining`): a line a pipeline rank.

    0F0,0F1,0B0,0B1
    1F0,1I0,1F1,1I1,1W0,1W1

A cell is `<stage><F|B|I|W><micro-batch>`: forward, backward in one call, its input and its weight half. Stages count
model chunks over the whole pipeline: rank r holds r, r + PP, … `windtunnel program --csv` writes the form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from plan.parallel import Plan
from plan.pipeline.base import Schedule, Slot, halves_refused, joined
from plan.pipeline.ends import abstract_ends
from program.errors import InputError

CELL = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")
MOST_CELLS = 750_000
NEEDS = {"F": "", "B": "F", "I": "F", "W": "I"}  # what stands before a cell


def rows_of(text: str, where: str) -> list[str]:
    """The lines of a file, blank ones and spaces left out. Raises InputError for more cells than a step has calls."""
    if text.count(",") > MOST_CELLS:
        raise InputError(
            f"{where} has {text.count(',')} cells; a schedule that is written out has at most {MOST_CELLS}"
        )
    lines = (",".join(cell for cell in map(str.strip, line.split(",")) if cell) for line in text.splitlines())
    return [line for line in lines if line]


def _parsed(plan: Plan) -> tuple[tuple[Slot, ...], ...]:
    return _slots(tuple(plan.schedule), plan.pipeline_parallel)


@lru_cache(maxsize=8)
def _slots(rows: tuple[str, ...], p: int) -> tuple[tuple[Slot, ...], ...]:
    """The slots of every line; cells that are wrong (`problems` names them) are left out."""
    found = [[match for cell in row.split(",") if (match := CELL.fullmatch(cell))] for row in rows]
    return tuple(
        tuple(Slot(phase, int(micro), int(stage) // p) for stage, phase, micro in (m.groups() for m in row))  # type: ignore[arg-type]
        for row in found
    )


def _problems(plan: Plan) -> list[str]:
    """What is wrong with the cells, the first of each line; then orders that wait for each other."""
    p, rows = plan.pipeline_parallel, tuple(plan.schedule)
    if len(rows) != p:
        return [
            f"the schedule has {len(rows)} line(s), but pipeline_parallel is {p}; write a line for each pipeline rank"
        ]
    found = [sentence for rank, row in enumerate(rows) if (sentence := next(_line(plan, rank, row.split(",")), None))]
    if not found:
        try:
            abstract_ends(_parsed(plan), plan.virtual_pipeline)
        except ValueError as error:
            found.append(f"{error}; give every micro-batch's forward to stage s before s + 1 and its backward after")
    return found + (halves_refused(plan) if _splits(plan) else [])


def _line(plan: Plan, rank: int, cells: list[str]) -> Iterator[str]:
    """What is wrong with a line."""
    p, m, where = plan.pipeline_parallel, plan.microbatches, f"line {rank + 1} of the schedule"
    stages = [chunk * p + rank for chunk in range(plan.virtual_pipeline)]
    seen: set[tuple[int, str, int]] = set()
    for cell in cells:
        match = CELL.fullmatch(cell)
        if match is None:
            yield f"{where} has the cell {cell[:40]!r}; write <stage><F|B|I|W><micro-batch>, such as {rank}F0"
            return
        stage, phase, micro = int(match[1]), match[2], int(match[3])
        if stage not in stages:
            yield f"{where} has the cell {cell}, but pipeline rank {rank} holds stage {' and '.join(map(str, stages))}"
        if micro >= m:
            yield f"{where} has the cell {cell}, but a step has {m} micro-batches; the last is {m - 1}"
        twins = {"B": "BI", "I": "BI", "W": "BW"}.get(phase, "F")
        if any((stage, twin, micro) in seen for twin in twins):
            yield f"{where} runs {cell} where micro-batch {micro} has had it; write each half of a backward once"
        need = NEEDS[phase]
        if need and (stage, need, micro) not in seen:
            yield f"{where} runs {cell} before {stage}{need}{micro}, which it needs; move it behind"
        seen.add((stage, phase, micro))
    for stage in stages:
        for micro in range(m):
            for phase in "FIW":
                if (stage, phase, micro) not in seen and (phase == "F" or (stage, "B", micro) not in seen):
                    missing = f"{stage}{phase}{micro}" if phase != "I" else f"{stage}B{micro}"
                    yield f"{where} never runs {missing}; every micro-batch runs every stage once"


def _order(plan: Plan, microbatches: int, stage: int) -> tuple[Slot, ...]:
    return joined(list(_parsed(plan)[stage]))


def _splits(plan: Plan) -> bool:
    return any(slot.phase == "I" for slots in _parsed(plan) for slot in joined(list(slots)))


ROWS = Schedule(name="csv", order=_order, chunks="any", splits=_splits, problems=_problems)
