"""The public API: what the command line does, as functions.

    run = load("examples/llama-3-8b.yaml", ["plan.tensor_parallel=4"])
    flown = fly(run)                       # compiled, proved, flown: Flown(run, program, profile, flight)
    forecast(run).step_time_s              # the same as a report
    compare("runs/0001").step_time.error   # a run folder: forecast and measurement
    check("runs/baseline", "runs/0001").passed

Everything raises `plan.errors.InputError` for wrong input and imports torch only to train and to calibrate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan.errors import InputError
from plan.program import StepProgram
from plan.run import Run, load

if TYPE_CHECKING:
    from calibration.profile import Profile
    from plan.timeline import Timeline
    from reports.check import Verdict
    from reports.compare import Comparison
    from reports.forecast import Forecast
    from simulator.flight import Flight

__all__ = ["Flown", "calibrate", "check", "compare", "compile_run", "fly", "forecast", "load", "save_timeline", "train"]
RunLike = Run | str | Path


@dataclass(frozen=True, slots=True)
class Flown:
    """A flown run: what was flown, with what, and how it went."""

    run: Run
    program: StepProgram
    profile: Profile
    flight: Flight


def compile_run(run: Run) -> StepProgram:
    """The step program of a run, proved sound. Raises UnsoundProgram, a fault of ours, when a proof fails."""
    from plan.sound import compile_proved

    return compile_proved(run)


def fly(run: RunLike, overrides: Sequence[str] = (), *, profile: Any = None, unfold: bool = False) -> Flown:
    """Compile, prove and fly a run. `profile`: a Profile, a shipped name or a file; by default the one the cluster
    names."""
    from calibration.profile import load_profile
    from simulator.flight import fly as simulate

    run = _run(run, overrides)
    priced = load_profile(profile or run.cluster.profile) if not hasattr(profile, "kernel_s") else profile
    if priced.device != run.cluster.device:
        raise InputError(
            f"profile {priced.name} is of a {priced.device} device and cluster {run.cluster.name} has "
            f"{run.cluster.device} devices; name a profile of the cluster's device with --profile or cluster.profile"
        )
    _priced_links(run, priced)
    program = compile_run(run)
    try:
        return Flown(run, program, priced, simulate(program, run, priced, unfold=unfold))
    except OverflowError:
        raise InputError(
            f"the step takes longer than any time that can be told: a rate in profile {priced.name} or a bandwidth of "
            f"cluster {run.cluster.name} is next to zero"
        ) from None


def _priced_links(run: Run, profile: Any) -> None:
    """Raises InputError for communication that a profile file has no entry for: it would cost nothing."""
    file = getattr(profile, "file", None)
    if file is None or run.plan.world == 1:
        return
    missing = [] if file.collectives else ["collectives"]
    missing += ["network"] if run.cluster.nodes > 1 and file.network is None else []
    if missing:
        raise InputError(
            f"profile {profile.name} has no entry for {' nor '.join(missing)}, and the run has {run.plan.world} ranks "
            f"on {run.cluster.nodes} nodes; name a profile that has, with --profile or cluster.profile"
        )


def forecast(run: RunLike, overrides: Sequence[str] = (), *, profile: Any = None, flops: str = "exact") -> Forecast:
    """The forecast of a run: step time, throughput, memory, cost. See `reports.forecast.Forecast` for its fields."""
    return forecast_of(fly(run, overrides, profile=profile), flops=flops)


def forecast_of(
    flown: Flown, *, flops: str = "exact", notes: Sequence[str] = (), warnings: Sequence[str] = ()
) -> Forecast:
    """The report of a flight."""
    from reports.flight_report import report

    return report(flown.run, flown.program, flown.profile, flown.flight, flops=flops, notes=notes, warnings=warnings)


def train(run: RunLike, overrides: Sequence[str] = (), *, output: str | Path | None = None) -> Path:
    """Train a run under torchrun and return its folder. Raises WindtunnelError when a rank dies."""
    from windtunnel.training import launch

    return launch(_run(run, overrides), Path(output) if output else None)


def compare(first: str | Path, second: str | Path | None = None, *, profile: Any = None, top: int = 12) -> Comparison:
    """A run folder held against its forecast, or a predicted timeline against a measured one."""
    from windtunnel.comparing import compared

    return compared(str(first), None if second is None else str(second), profile, top).comparison


def check(baseline: str | Path, run_dir: str | Path, *, tolerance: float = 0.1, profile: Any = None) -> Verdict:
    """Whether a run became slower than its baseline by more than `tolerance`, beyond what its plan explains."""
    from windtunnel.comparing import judged

    return judged(str(baseline), str(run_dir), tolerance, profile)


def calibrate(
    device: str = "cpu", output: str | Path | None = None, base: str = "h200-published", kernels: str = "compiled"
) -> Path:
    """Measure this machine's CPU, or one GPU (links and network from profile `base`), into a profile; its path."""
    from windtunnel.calibrating import measure_device

    return measure_device(device, None if output is None else Path(output), base, kernels)


def save_timeline(flown: Flown, path: str | Path) -> None:
    """Write the predicted timeline of a flight (.json.gz)."""
    from plan.timeline import save

    _writing(lambda: save(flown.flight.timeline(), path), path)


def save_trace(timelines: Sequence[Timeline], path: str | Path) -> None:
    """Write timelines as a Chrome/Perfetto trace."""
    from reports.trace import write_trace

    write_trace(timelines, path)


def _run(run: RunLike, overrides: Sequence[str]) -> Run:
    if isinstance(run, Run):
        if overrides:
            raise InputError(
                "overrides apply to a run file, not to a Run: use dataclasses.replace, or load(path, overrides)"
            )
        return run
    return load(run, overrides)


def _writing(action: Any, path: str | Path) -> None:
    try:
        action()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
