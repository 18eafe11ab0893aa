"""A run compiled, proved and simulated with a profile's costs; its report, timeline and trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan.run import Run, load
from program import StepProgram
from program.errors import InputError

if TYPE_CHECKING:
    from calibration.profile import Profile
    from plan.ledger import Assumption
    from program.timeline import Timeline
    from reports.forecast import Forecast
    from simulator.simulation import Simulation

RunLike = Run | str | Path


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A simulated run: what was simulated, with what, and how it went."""

    run: Run
    program: StepProgram
    profile: Profile
    simulation: Simulation

    def timeline(self) -> Timeline:
        """The predicted timeline; its header says the run."""
        return self.simulation.timeline(run=self.run.to_dict())


def compile_run(run: Run) -> StepProgram:
    """The step program of a run, proved sound. Raises UnsoundProgram, a fault of ours, when a proof fails."""
    from compiler.compile_checked import compile_checked

    return compile_checked(run)


def simulate(run: RunLike, overrides: Sequence[str] = (), *, profile: Any = None, unfold: bool = False) -> SimulatedRun:
    """Compile, prove and simulate a run. `profile`: a Profile, a shipped name or a file; by default the one the cluster
    names."""
    from simulator.simulation import simulate as simulate

    run = run_of(run, overrides)
    priced = _priced(run, profile)
    program = compile_run(run)
    try:
        return SimulatedRun(run, program, priced, simulate(program, run.cluster, priced, unfold=unfold))
    except OverflowError:
        raise InputError(
            f"the step takes longer than any time that can be told: a rate in profile {priced.name} or a bandwidth of "
            f"cluster {run.cluster.name} is next to zero"
        ) from None


def _priced(run: Run, given: Any) -> Profile:
    """The profile that a run is simulated with; raises InputError when it is of another kind of device."""
    from calibration.profile import load_profile

    try:
        profile: Profile = given if hasattr(given, "kernel_s") else load_profile(given or run.cluster.profile)
    except InputError as error:
        if given or run.cluster.profile != run.cluster.gpu or run.cluster.device == "cpu":
            raise
        raise InputError(
            f"no profile of the cluster's card {run.cluster.gpu} ships, and nobody named another: {error.problems[0]}; "
            "set cluster.profile, or give --profile"
        ) from None
    if profile.device != run.cluster.device:
        raise InputError(
            f"profile {profile.name} is of a {profile.device} device and cluster {run.cluster.name} has "
            f"{run.cluster.device} devices; name a profile of the cluster's device with --profile or cluster.profile"
        )
    _check_links(run, profile)
    return profile


def _check_links(run: Run, profile: Any) -> None:
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


def run_of(run: RunLike, overrides: Sequence[str]) -> Run:
    """A run as given, or loaded from its file."""
    if isinstance(run, Run):
        if overrides:
            raise InputError(
                "overrides apply to a run file, not to a Run: use dataclasses.replace, or load(path, overrides)"
            )
        return run
    return load(run, overrides)


def forecast_of(
    simulated: SimulatedRun,
    *,
    flops: str = "exact",
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    assumptions: Sequence[Assumption] = (),
) -> Forecast:
    """The report of a simulation."""
    from reports.forecast_report import report

    return report(
        simulated.run,
        simulated.program,
        simulated.profile,
        simulated.simulation,
        flops=flops,
        notes=notes,
        warnings=warnings,
        assumptions=assumptions,
    )


def save_timeline(simulated: SimulatedRun, path: str | Path) -> None:
    """Write the predicted timeline of a simulation (.json.gz)."""
    from program.timeline import save

    _writing(lambda: save(simulated.timeline(), path), path)


def save_trace(timelines: Sequence[Timeline], path: str | Path) -> None:
    """Write timelines as a Chrome/Perfetto trace."""
    from reports.trace import write_trace

    write_trace(timelines, path)


def _writing(action: Any, path: str | Path) -> None:
    try:
        action()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
