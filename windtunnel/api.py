"""The public API: what the command line does, as functions.

    run = load("examples/llama-3-8b.yaml", ["plan.tensor_parallel=4"])
    simulate(run).simulation.breakdown     # compiled, proved, simulated
    forecast(run).step_time_s              # the same as a report
    compare("runs/0001").step_time.error   # a run folder: forecast and measurement
    check("runs/baseline", "runs/0001").passed

Everything raises `program.errors.InputError` for wrong input and imports torch only to train and to calibrate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan.run import load
from windtunnel.simulating import (
    RunLike,
    SimulatedRun,
    compile_run,
    forecast_of,
    run_of,
    save_timeline,
    save_trace,
    simulate,
)

if TYPE_CHECKING:
    from reports.check import Verdict
    from reports.compare import Comparison
    from reports.forecast import Forecast

__all__ = [
    "SimulatedRun",
    "calibrate",
    "check",
    "compare",
    "compile_run",
    "forecast",
    "forecast_of",
    "load",
    "save_timeline",
    "save_trace",
    "simulate",
    "train",
]  # fmt: skip


def forecast(run: RunLike, overrides: Sequence[str] = (), *, profile: Any = None, flops: str = "exact") -> Forecast:
    """The forecast of a run: step time, throughput, memory, cost. See `reports.forecast.Forecast` for its fields."""
    return forecast_of(simulate(run, overrides, profile=profile), flops=flops)


def train(run: RunLike, overrides: Sequence[str] = (), *, output: str | Path | None = None) -> Path:
    """Train a run, one process a rank, and return its folder. Raises WindtunnelError when a rank dies."""
    from windtunnel.training import launch

    return launch(run_of(run, overrides), Path(output) if output else None)


def compare(first: str | Path, second: str | Path | None = None, *, profile: Any = None, top: int = 12) -> Comparison:
    """A run folder held against its forecast, or a predicted timeline against a measured one."""
    from windtunnel.comparing import compared

    return compared(str(first), None if second is None else str(second), profile, top).comparison


def check(baseline: str | Path, run_dir: str | Path, *, tolerance: float = 0.1, profile: Any = None) -> Verdict:
    """Whether a run became slower than its baseline by more than `tolerance`, beyond what its plan explains."""
    from windtunnel.comparing import judged

    return judged(str(baseline), str(run_dir), tolerance, profile)


def calibrate(
    device: str = "cpu", output: str | Path | None = None, base: str | None = None, kernels: str | None = None
) -> Path:
    """Measure this machine's CPU, or one GPU (links and network from profile `base`, h200-published by default;
    `kernels`: some of eager,compiled,triton, compiled by default), into a profile; its path."""
    from windtunnel.commands.calibrate import measure_device

    return measure_device(device, None if output is None else Path(output), base, kernels)
