"""Joins the stages of a plan into one step program."""

from __future__ import annotations

from dataclasses import replace

from compiler.balance import laid_out
from compiler.header import degrees, execution, implementation_rules
from compiler.rank_groups import coordinates, groups
from compiler.repeat import place_calls
from compiler.schedules import Placement, placements
from compiler.stage import StageBlocks
from compiler.stage_context import StageContext, Units
from compiler.units import AdamNumbers, UnitShape, unit_shape
from plan.implementations import engine
from plan.layout import layout
from plan.model import Model
from plan.parallel import Plan
from plan.run import Run
from program import RankProgram, StepProgram
from program.gc_paused import gc_paused
from program.hashing import program_hash


def compile_run(run: Run) -> StepProgram:
    """The step program of a run that passed `plan.run.rules`."""
    run = laid_out(run)
    given = run.optimizer
    scaled = run.plan.loss_scale is not None  # its overflows are left out, whatever else is not finite
    conditional = scaled or run.train.nonfinite != "continue"
    optimizer = AdamNumbers(given.betas, given.eps, given.weight_decay, given.clip_norm, conditional, scaled)
    return compile_plan(run.model, run.plan, optimizer)


def compile_plan(model: Model, plan: Plan, optimizer: AdamNumbers | None = None) -> StepProgram:
    """The step program of `model` under `plan`; the optimizer's numbers are the usual ones where none are given. On no
    known cluster nothing is balanced: `pipeline_layout: auto` counts units (`plan.layout`)."""
    with gc_paused():
        return _compiled(model, plan, optimizer or AdamNumbers(scaled=plan.loss_scale is not None))


def _compiled(model: Model, plan: Plan, optimizer: AdamNumbers) -> StepProgram:
    e, units, placed = unit_shape(model, plan), layout(model, plan), placements(plan)
    classes = tuple(
        _stage(model, plan, optimizer, e, units[stage], placed[stage], stage) for stage in range(plan.pipeline_parallel)
    )
    if plan.launch_blocking:
        classes = tuple(_blocking(stage) for stage in classes)
    program = StepProgram(
        classes=classes,
        class_of=tuple(coordinates(plan, rank)["pp"] for rank in range(plan.world)),
        groups=groups(model, plan),
        degrees=degrees(model, plan),
        execution=execution(plan),
        rules=implementation_rules(plan),
    )
    return replace(program, hash=program_hash(program))


def _stage(
    model: Model, plan: Plan, optimizer: AdamNumbers, e: UnitShape, units: Units, placement: Placement, stage: int
) -> RankProgram:
    batched = engine(plan).transfers == "batched"
    blocks = StageBlocks(StageContext(model, plan, optimizer, e, units, placement.slots, stage, batched))
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
