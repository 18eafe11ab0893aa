"""Compiles a run into its step program: every strategy is decided here, once.

    plan.load → Run → compile → StepProgram → (simulator | trainer)

`plan.pieces` says what a unit does, `plan.schedules` in what order a stage computes, `plan.compile.stage` puts both
into blocks and calls; this file lays out ranks and groups and joins the stages. It never looks at a cost.
"""

from __future__ import annotations

from dataclasses import replace

from plan.compile.calls import CallPlacer
from plan.compile.partition import partition_rules
from plan.compile.stage import StageBlocks, Units
from plan.deepspeed import is_deepspeed, overlaps_gradients
from plan.layout import layout
from plan.model import Model
from plan.parallel import Plan
from plan.pieces.shapes import Extents, extents
from plan.program import Group, RankProgram, StepProgram
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
        degrees=_degrees(model, plan),
        rules=implementation_rules(plan),
    )
    return replace(program, hash=program_hash(program))


def _stage(model: Model, plan: Plan, e: Extents, units: Units, placement: Placement, stage: int) -> RankProgram:
    batched = batches_transfers(plan)
    blocks = StageBlocks(model, plan, e, units, placement.slots, stage, batched)
    blocks.compile()
    placer = CallPlacer(blocks, placement)
    placer.open()
    if is_deepspeed(plan):
        placer.blocking()
    elif batched:
        placer.batched()
    else:
        placer.separate()
    return placer.program()


def _blocking(stage: RankProgram) -> RankProgram:
    """Every instruction blocks the host, so that each launch is paid for in full."""
    blocks = (
        replace(block, instructions=tuple(replace(i, host_sync=True) for i in block.instructions))
        for block in stage.blocks
    )
    return replace(stage, blocks=tuple(blocks))


def batches_transfers(plan: Plan) -> bool:
    """Whether sends are paired with receives: Megatron-LM's non-interleaved 1F1B."""
    return plan.implementation == "megatron" and plan.schedule == "1f1b" and plan.virtual_pipeline == 1


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """tp, cp, dp and pp index of a global rank; `rank_order` names axes from the fastest to the slowest."""
    sizes = _axes(plan)
    found = {}
    for axis in plan.rank_order.split("-"):
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def _axes(plan: Plan) -> dict[str, int]:
    return {
        "tp": plan.tensor_parallel,
        "cp": plan.context_parallel,
        "ep": 1,  # expert parallelism re-uses data-parallel ranks
        "dp": plan.data_parallel,
        "pp": plan.pipeline_parallel,
    }


def groups(model: Model, plan: Plan) -> dict[str, tuple[Group, ...]]:
    """Every group of every role, members in the order of the axis they differ in."""
    where = [coordinates(plan, rank) for rank in range(plan.world)]

    def along(role: str, *axes: str) -> tuple[Group, ...]:
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, at in enumerate(where):
            found.setdefault(tuple(n for axis, n in at.items() if axis not in axes), []).append(rank)
        ordered = [sorted(ranks, key=lambda r: [where[r][axis] for axis in reversed(axes)]) for ranks in found.values()]
        return tuple(Group(role, tuple(ranks)) for ranks in ordered)  # type: ignore[arg-type]

    made = {
        "tp": along("tp", "tp"),
        "dp": along("dp", "dp"),
        "pp_next": along("pp_next", "pp"),
        "pp_prev": along("pp_prev", "pp"),
        "model": along("model", "tp", "pp"),
        "world": along("world", "tp", "cp", "ep", "dp", "pp"),
    }
    if model.tied_embeddings and plan.pipeline_parallel > 1:
        made["embed"] = tuple(Group("embed", (g.ranks[0], g.ranks[-1])) for g in made["pp_next"])
    return made


def _degrees(model: Model, plan: Plan) -> dict[str, int]:
    return {
        "tp": plan.tensor_parallel,
        "dp": plan.data_parallel,
        "pp": plan.pipeline_parallel,
        "vpp": plan.virtual_pipeline,
        "microbatches": plan.microbatches,
        "micro_batch_size": plan.micro_batch_size,
        "seq_length": model.seq_length,
    }


def implementation_rules(plan: Plan) -> dict[str, str]:
    """The choices the named implementation made, in words, for the program's header."""
    separate = "separate sends and receives on four streams, receives posted ahead where the global order allows"
    blocking = "one blocking send or receive after another, in the order of DeepSpeed's TrainSchedule"
    whole, bucket = "none: one flat gradient, all-reduced as one", f"{plan.communication.bucket_mb:g} MB"
    batched = "a send paired with the opposite receive of the same neighbour, the host blocked on each"
    launches = {"launches": "blocking, as CUDA_LAUNCH_BLOCKING=1 has it"} if plan.launch_blocking else {}
    return (
        launches
        | {
            "implementation": plan.implementation,
            "pipeline": blocking if is_deepspeed(plan) else batched if batches_transfers(plan) else separate,
            "buckets": whole if is_deepspeed(plan) else f"close at {bucket} of {plan.gradient_dtype} gradient",
            "gradients": "overlapped with backward" if overlaps_gradients(plan) else "reduced after backward",
        }
        | partition_rules(plan)
    )


def stage_of(program: StepProgram, rank: int) -> RankProgram:
    """The program a rank runs."""
    return program.classes[program.class_of[rank]]
