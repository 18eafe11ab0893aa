"""What a plan asked for and got otherwise (in whole pieces, or not at all), in a sentence beside the forecast."""

from __future__ import annotations

from plan.implementations import implementation
from plan.run import Run
from program import RankProgram, StepProgram


def notes(run: Run, program: StepProgram) -> tuple[str, ...]:
    """Everything of a plan that came out otherwise."""
    return (*_without_effect(run), *_offloaded_share(run, program))


def _without_effect(run: Run) -> tuple[str, ...]:
    """ZeRO beyond what the implementation does by itself, where nobody shares the states."""
    plan = run.plan
    if plan.data_parallel > 1 or plan.zero_stage <= implementation(plan.implementation).zero_stage:
        return ()
    return (f"ZeRO-{plan.zero_stage} does nothing at data-parallel 1: there is no other rank to share states with",)


def _offloaded_share(run: Run, program: StepProgram) -> tuple[str, ...]:
    """The share of the optimizer that the host steps, where `offload.fraction` ended inside a bucket."""
    offload = run.plan.offload
    if offload.optimizer == "none" or offload.fraction in (0.0, 1.0):
        return ()
    shares = sorted(_offloaded(stage) for stage in program.classes)
    low, high = f"{shares[0]:.1%}", f"{shares[-1]:.1%}"
    if low == high == f"{offload.fraction:.1%}":
        return ()
    reached = high if low == high else f"{low} to {high}, depending on the stage,"
    nearer = "; a smaller communication.bucket_mb comes nearer" if run.plan.zero_stage < 2 else ""
    return (
        f"offload.fraction {offload.fraction:g} is rounded up to whole buckets: {reached} of the parameters{nearer}",
    )


def _offloaded(stage: RankProgram) -> float:
    """Share of a stage's parameters whose optimizer state is on the host."""
    hosted = sum(p.local_numel for p in stage.params if stage.buckets[p.bucket].offloaded)
    return hosted / sum(p.local_numel for p in stage.params)
