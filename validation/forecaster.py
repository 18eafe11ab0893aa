"""Simulates a case: predicted step time, interval and memory of one published row.

A row may run thousands of micro-batches a step; the simulator leaves out those of the steady state. Compiled programs
are kept by (model, plan), profiles by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from plan.model import Model
from plan.parallel import Plan
from plan.run import Run
from program import StepProgram

if TYPE_CHECKING:
    from calibration.profile import Allocator, Profile
    from simulator.memory import StageMemory
    from simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a simulation says of a run. `memory_bytes` by what a source may have measured: allocated, reserved,
    device."""

    step_time_s: float
    interval_s: tuple[float, float]
    memory_bytes: dict[str, float]
    breakdown: dict[str, float]


@dataclass(slots=True)
class Forecaster:
    """Simulates runs with the profile each cluster names, or with `profile` for all of them."""

    profile: Any = None
    _loaded: dict[str, Profile] = field(default_factory=dict)

    def profile_of(self, run: Run) -> Profile:
        """The profile a run is priced with. Raises InputError when there is none of that name."""
        from calibration.profile import load_profile

        given = self.profile if self.profile is not None else run.cluster.profile
        if not isinstance(given, str):
            return cast("Profile", given)
        if given not in self._loaded:
            self._loaded[given] = load_profile(given)
        return self._loaded[given]

    def simulate(self, run: Run, framework: str = "") -> Predicted:
        """Step time, interval and memory of a run, with the kernels of a framework that is none of ours."""
        return self._predicted(run, framework)

    def memory(self, run: Run, framework: str = "") -> dict[str, float]:
        """Peak memory of a run in bytes, without simulating it in time."""
        from calibration.workspace import NOTHING
        from simulator.memory import simulate_memory

        profile = self.profile_of(run)
        allocator, workspace = profile.allocator, NOTHING if framework else profile.workspace(run.plan.kernels)
        stages = [simulate_memory(stage, allocator, workspace) for stage in _program(run.model, run.plan).classes]
        return _peaks(stages, allocator, held_beyond(run, framework))

    def _simulation(self, run: Run, framework: str) -> Simulation:
        from calibration.frameworks import FRAMEWORKS
        from simulator.simulation import simulate

        profile = self.profile_of(run)
        key = f"{profile.name} {framework}"
        if framework and key not in self._loaded:
            self._loaded[key] = profile.with_kernels_of(FRAMEWORKS[framework])
        return simulate(_program(run.model, run.plan), run.cluster, self._loaded[key] if framework else profile)

    def _predicted(self, run: Run, framework: str) -> Predicted:
        simulation = self._simulation(run, framework)
        interval = (simulation.interval.low_s, simulation.interval.high_s)
        memory = _peaks(simulation.memory, simulation.profile.allocator, held_beyond(run, framework))
        return Predicted(simulation.step_time_s, interval, memory, dict(simulation.breakdown))


def held_beyond(run: Run, framework: str) -> Callable[[StageMemory], int]:
    """Bytes that a framework holds at a stage's peak beyond the program that stands for it (1F1B, no recompute)."""
    from calibration.frameworks import FRAMEWORKS
    from plan.layout import layout

    if not framework:
        return lambda stage: 0
    own, model, plan = FRAMEWORKS[framework], run.model, run.plan
    tokens = plan.micro_batch_size * model.seq_length // plan.tensor_parallel  # of a rank's share of every wide tensor
    stages = layout(model, plan)

    def held(stage: StageMemory) -> int:
        units = [unit for chunk in stages[stage.stage] for unit in chunk]
        layers = sum(0 < unit <= model.layers for unit in units)
        in_flight = min(plan.microbatches, plan.pipeline_parallel - stage.stage)
        silu = own.kept_ffn * layers * in_flight * tokens * model.ffn * 2
        logits = own.logit_copies * tokens * model.vocab * 4 if model.layers + 1 in units else 0
        buckets = stage.parts["weights"] if own.gradient_buckets and plan.data_parallel > 1 else 0
        return silu + logits + buckets

    return held


def _peaks(
    stages: Sequence[StageMemory], allocator: Allocator, beyond: Callable[[StageMemory], int]
) -> dict[str, float]:
    """Memory of the fullest stage, counted in each way that a source may have measured it."""
    allocated = float(max(stage.peak_allocated_bytes + beyond(stage) for stage in stages))
    reserved = float(max(stage.peak_reserved_bytes + beyond(stage) for stage in stages))
    return {"allocated": allocated, "reserved": reserved, "device": reserved + allocator.context_bytes}


@lru_cache(maxsize=4)
def _program(model: Model, plan: Plan) -> StepProgram:
    from compiler import compile_plan

    return compile_plan(model, plan)
