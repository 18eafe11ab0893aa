"""Joins the stages of a plan into one step program."""

from __future__ import annotations

from dataclasses import replace

from plan.compile.held import Held, Units
from plan.compile.ranks import coordinates, groups
from plan.compile.repeat import place_calls
from plan.compile.stage import StageBlocks
from plan.compile.words import batches_transfers, degrees, implementation_rules
from plan.layout import layout
from plan.model import Model
from plan.parallel import Plan
from plan.pieces.shapes import Extents, extents
from plan.program import RankProgram, StepProgram
from plan.program.hashing import program_hash
from plan.run import Run
from plan.schedules import Placement, placements
from plan.uncollected import uncollected


def compile_run(run: Run) -> StepProgram:
    """The step program of a run that passed `plan.run.rules`."""
    return compile_plan(run.model, run.plan)


def compile_plan(model: Model, plan: Plan) -> StepProgram:
    """The step program of `model` under `plan`."""
    with uncollected():
        return _compiled(model, plan)


def _compiled(model: Model, plan: Plan) -> StepProgram:
    e, units, placed = extents(model, plan), layout(model, plan), placements(plan)
    classes = tuple(
        _stage(model, plan, e, units[stage], placed[stage], stage) for stage in range(plan.pipeline_parallel)
    )
    if plan.launch_blocking:
        classes = tuple(_blocking(stage) for stage in classes)
    program = StepProgram(
        classes=classes,
        class_of=tuple(coordinates(plan, rank)["pp"] for rank in range(plan.world)),
        groups=groups(model, plan),
        degrees=degrees(model, plan),
        rules=implementation_rules(plan),
    )
    return replace(program, hash=program_hash(program))


def _stage(model: Model, plan: Plan, e: Extents, units: Units, placement: Placement, stage: int) -> RankProgram:
    batched = batches_transfers(plan)
    blocks = StageBlocks(Held(model, plan, e, units, placement.slots, stage, batched))
    blocks.compile()
    return place_calls(blocks, placement)


def _blocking(stage: RankProgram) -> RankProgram:
    """Every instruction blocks the host, so that each launch is paid for in full."""
    blocks = (
        replace(block, instructions=tuple(replace(i, host_sync=True) for i in block.instructions))
        for block in stage.blocks
    )
    return replace(stage, blocks=tuple(blocks))


def stage_of(program: StepProgram, rank: int) -> RankProgram:
    """The program a rank runs."""
    return program.classes[program.class_of[rank]]
