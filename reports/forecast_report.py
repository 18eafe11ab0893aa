"""From a simulation to the forecast record: throughput, utilisation, memory, cost, warnings. Arithmetic only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from compiler import laid_out
from plan.flops import CONVENTIONS, Convention, hardware_flops_per_step, model_flops_per_step
from plan.implementations import engine
from plan.ledger import Assumption
from plan.run import Run
from program import StepProgram
from program.errors import InputError
from reports import card, coverage, peaks, rounded, tiles
from reports.forecast import (
    NOT_MODELLED,
    SEVERAL_NODES,
    Assumed,
    Cost,
    Forecast,
    Memory,
    PriceDoubt,
    Stage,
    TimeShares,
    cost_of,
    steps_of,
    utilisation,
)
from reports.memory_interval import communicators, held, start_bytes
from reports.unread import unread

if TYPE_CHECKING:
    from calibration.profile import Profile
    from simulator.memory import StageMemory
    from simulator.simulation import Simulation

GIB = 2.0**30


def report(
    run: Run,
    program: StepProgram,
    profile: Profile,
    simulation: Simulation,
    *,
    flops: str = "exact",
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    assumptions: Sequence[Assumption] = (),
) -> Forecast:
    """The forecast record of a simulation. `flops`: exact, megatron or palm; `notes`, `warnings` and `assumptions`:
    the importer's."""
    if flops not in CONVENTIONS:
        raise InputError(f"FLOP convention {flops!r} is not known; use one of {', '.join(CONVENTIONS)}")
    convention = cast(Convention, flops)
    step, gpus = simulation.step_time_s, program.world
    rate = 1.0 / step if step > 0 else float("inf")
    model_tflops = model_flops_per_step(run, convention) * rate / gpus / 1e12
    hardware_tflops = hardware_flops_per_step(laid_out(run), convention) * rate / gpus / 1e12
    peak = peak_tflops(run, profile)
    priced = simulation.profile
    peaks.refuse_impossible(run, program, priced, step, peak)
    memory = memory_of(run, profile, simulation)
    steps = steps_of(run.budget.tokens, run.tokens_per_step, run.train.steps)
    cost = cost_of(step, steps, gpus, run.price_per_gpu_hour)
    _refuse_infinite(run, profile, cost, memory)
    return Forecast(
        assumptions=tuple(Assumed(each.subject, each.value, each.flag, each.moves) for each in assumptions),
        step_time_s=step,
        step_time_interval_s=(simulation.interval.low_s, simulation.interval.high_s),
        step_time_interval_level=simulation.interval.level,
        doubts=tuple(PriceDoubt(term.what, term.share, term.sigma) for term in simulation.interval.error_terms),
        tokens_per_s=run.tokens_per_step * rate,
        tokens_per_s_per_gpu=run.tokens_per_step * rate / gpus,
        model_tflops_per_gpu=model_tflops,
        hardware_tflops_per_gpu=hardware_tflops,
        mfu=utilisation(model_tflops, peak),
        hfu=utilisation(hardware_tflops, peak),
        flop_convention=flops,
        peak_tflops_per_gpu=peak,
        parameters=run.model.parameters(),
        gpus=gpus,
        memory=memory,
        time=TimeShares(**simulation.breakdown),
        cost=cost,
        warnings=(*warnings, *_doubts(run, priced, memory), *_unpriced(run, program, priced)),
        notes=(*notes, *rounded.notes(run, program)),
        not_modelled=(*NOT_MODELLED, *([SEVERAL_NODES] if run.cluster.nodes > 1 else []), *unread(run)),
        remedies=(),
        advice=(),
        run=run.to_dict(),
        profile=profile.name,
        profile_hash=profile_hash(profile),
        program_hash=program.hash,
    )


def _refuse_infinite(run: Run, profile: Profile, cost: Cost, memory: Memory) -> None:
    """Raises InputError for a cost or memory that is no number any more."""
    told = {"cost.usd": cost.usd, "cost.gpu_hours": cost.gpu_hours, "cost.days": cost.days}
    told |= {f"memory.{name}": getattr(memory, name) for name in ("peak_reserved_gib", "capacity_gib", "host_gib")}
    endless = [name for name, value in told.items() if not math.isfinite(value)]
    if endless:
        raise InputError(
            f"the forecast's {', '.join(endless)} is infinite: a size, price or budget of the run, or a "
            f"number of profile {profile.name}, is beyond anything real"
        )


def _unpriced(run: Run, program: StepProgram, profile: Profile) -> tuple[str, ...]:
    return (*card.warnings(run, profile), *coverage.warnings(program, profile), *tiles.warnings(run))


def _doubts(run: Run, profile: Profile, memory: Memory) -> list[str]:
    """What about these prices is not what the plan asks for, and memory that only just fits."""
    found = _borderline(run, profile, memory)
    own = profile.framework or profile.priced_as
    priced = own or ("eager" if run.cluster.device == "cpu" else run.plan.kernels)
    if run.plan.kernels != priced:
        found.append(f"plan.kernels {run.plan.kernels}: profile {profile.name} prices every operator as {priced}")
    if run.plan.cuda_graph and not profile.prices_graphs:
        found.append(
            f"plan.cuda_graph: profile {profile.name} has no host time of kind GRAPH, so launching the graph costs the "
            "host nothing here; `windtunnel calibrate --device cuda` measures it"
        )
    if run.plan.kernels == "eager" and run.cluster.device != "cpu" and run.plan.precision not in ("bf16", "fp16"):
        found.append(
            f"plan.kernels eager at {run.plan.precision}: temporaries between an operator's kernels are counted in 16 "
            "bits only, and are not in the memory forecast"
        )
    return found


def profile_hash(profile: Profile) -> str:
    """SHA-256 of a profile's content and time factor: equal numbers, equal hash, wherever the file lies."""
    text = f"{profile.file.model_dump_json()}|{profile.time_factor!r}"
    return hashlib.sha256(text.encode()).hexdigest()


def peak_tflops(run: Run, profile: Profile) -> float | None:
    """Dense peak of one GPU at the run's precision from its data sheet; of a CPU rank the best GEMM rate that was
    measured."""
    stated = run.cluster.peak_flops(run.plan.precision)
    if stated is not None:
        return stated / 1e12
    dtypes, threads = (run.plan.precision, "*"), (0, profile.for_threads(run.cluster.threads_per_rank).threads)
    fits = (entry for entry in profile.file.gemm if entry.dtype in dtypes and entry.threads in threads)
    rates = [rate for entry in fits for rate in (entry.form.flops_per_s, *map(_rate, entry.points))]
    return max(rates) / 1e12 if rates and run.cluster.device == "cpu" else None


def _rate(point: Sequence[float]) -> float:
    batch, m, n, k, seconds = point
    return 2 * batch * m * n * k / seconds


def memory_of(run: Run, profile: Profile, simulation: Simulation) -> Memory:
    """What is held and what there is, with the interval of a real run."""
    stages: Sequence[StageMemory] = simulation.memory
    context = profile.allocator.context_bytes
    reserved = max(stage.peak_reserved_bytes for stage in stages)
    capacity, host = run.cluster.gpu_memory_gib * GIB, _host_bytes(run, simulation)
    spare = run.cluster.host.memory_gib * GIB
    if run.cluster.device == "cpu":  # its devices are the host's memory too
        spare -= reserved * run.cluster.gpus_per_node
    weights = max(stage.parts["weights"] for stage in stages)
    found = held(run, profile, reserved, weights, host)
    return Memory(
        peak_allocated_gib=max(stage.peak_allocated_bytes for stage in stages) / GIB,
        peak_reserved_gib=reserved / GIB,
        context_gib=context / GIB,
        capacity_gib=run.cluster.gpu_memory_gib,
        fits=found.fits(capacity, spare),
        borderline=found.borderline(capacity, spare),
        interval_gib=_gib(found.device_interval),
        per_stage=tuple(_stage(stage) for stage in stages),
        host_gib=host / GIB,
        host_interval_gib=_gib(found.host_interval),
        host_capacity_gib=max(0.0, spare) / GIB,
    )


def _gib(interval: tuple[float, float]) -> tuple[float, float]:
    return interval[0] / GIB, interval[1] / GIB


def _borderline(run: Run, profile: Profile, memory: Memory) -> list[str]:
    """A warning when what there is lies inside the interval of what a real run may hold, with what makes it wide."""
    found = []
    low, high = memory.interval_gib
    if memory.borderline and low <= memory.capacity_gib < high:
        error, many = profile.file.memory_error, communicators(run)
        causes = [f"{error.below:.0%} below to {error.above:.0%} above what the allocator holds"] if error else []
        causes += [f"up to {error.communicator_bytes / 1e9:g} GB of NCCL buffers for each of {many}"] if error else []
        weights = max(stage.weights_gib for stage in memory.per_stage)
        if start_bytes(run, weights) + memory.context_gib >= high:
            bytes_ = engine(run.plan).start_bytes
            causes = [f"its start flattens weights that may be loaded in fp32, {bytes_} bytes a parameter at once"]
        found.append(
            f"memory is borderline: a real run may hold {low:.1f} to {high:.1f} GiB of {memory.capacity_gib:.1f} "
            f"({'; '.join(causes)})"
        )
    low, high = memory.host_interval_gib
    if memory.borderline and memory.host_gib and low <= memory.host_capacity_gib < high:
        found.append(
            f"host memory is borderline: a real run may hold {low:.1f} to {high:.1f} GiB of "
            f"{memory.host_capacity_gib:.1f} a node (fp32 gradients, pinned buffers, weights loaded by every rank)"
        )
    return found


def _stage(stage: StageMemory) -> Stage:
    parts: dict[str, Any] = {f"{name}_gib": bytes_ / GIB for name, bytes_ in stage.parts.items()}
    return Stage(stage=stage.stage, peak_gib=stage.peak_allocated_bytes / GIB, peak_at=stage.where, **parts)


def _host_bytes(run: Run, simulation: Simulation) -> int:
    """The fullest node's host memory: what its ranks keep there."""
    of_node: dict[int, int] = {}
    for rank, number in enumerate(simulation.program.class_of):
        node = run.cluster.node_of(rank)
        of_node[node] = of_node.get(node, 0) + simulation.memory[number].host_bytes
    return max(of_node.values())
