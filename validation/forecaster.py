"""Simulates a case: predicted step time, interval and memory of one published row.

A row may run thousands of micro-batches a step; the simulator leaves out those of the steady state. Compiled programs
are kept by (model, plan), profiles by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from plan.model import Model
from plan.parallel import Plan
from plan.run import Run
from program import StepProgram
from reports.memory_interval import Held, held

if TYPE_CHECKING:
    from calibration.profile import Allocator, Profile
    from simulator.memory import StageMemory


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

    def simulate(self, run: Run) -> Predicted:
        """Step time, interval and memory of a run."""
        from simulator.simulation import simulate

        simulation = simulate(_program(run.model, run.plan), run.cluster, self.profile_of(run))
        interval = (simulation.interval.low_s, simulation.interval.high_s)
        memory = _peaks(simulation.memory, simulation.profile.allocator)
        return Predicted(simulation.step_time_s, interval, memory, dict(simulation.breakdown))

    def memory(self, run: Run) -> dict[str, float]:
        """Peak memory of a run in bytes, without simulating it in time."""
        return _peaks(self._stages(run), self.profile_of(run).allocator)

    def held(self, run: Run) -> Held:
        """What a run holds, in bytes, with the interval of a real run."""
        stages = self._stages(run)
        reserved = max(stage.peak_reserved_bytes for stage in stages)
        weights = max(stage.parts["weights"] for stage in stages)
        return held(run, self.profile_of(run), reserved, weights, 0.0)

    def _stages(self, run: Run) -> list[StageMemory]:
        from simulator.memory import simulate_memory

        profile = self.profile_of(run)
        allocator, workspace = profile.allocator, profile.workspace(run.plan.kernels)
        return [simulate_memory(stage, allocator, workspace) for stage in _program(run.model, run.plan).classes]


def _peaks(stages: Sequence[StageMemory], allocator: Allocator) -> dict[str, float]:
    """Memory of the fullest stage, counted in each way that a source may have measured it."""
    allocated = float(max(stage.peak_allocated_bytes for stage in stages))
    reserved = float(max(stage.peak_reserved_bytes for stage in stages))
    return {"allocated": allocated, "reserved": reserved, "device": reserved + allocator.context_bytes}


@lru_cache(maxsize=4)
def _program(model: Model, plan: Plan) -> StepProgram:
    from compiler import compile_plan

    return compile_plan(model, plan)
