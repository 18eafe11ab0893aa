"""Composes simulator and trainer output: a run folder is simulated again from its run.yaml and held against what it
measured.

The profile is the one that the measured timeline's header names (its run's cluster), unless another is asked for. A
program that compiles to another hash than the one measured is refused: instructions with equal ids would not be the
same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program.errors import InputError
from windtunnel import output
from windtunnel.folders import RunFolder
from windtunnel.simulating import SimulatedRun, simulate

if TYPE_CHECKING:
    from plan.run import Run
    from program.timeline import Timeline
    from reports.check import Verdict
    from reports.check_side import Side, Work
    from reports.compare import Comparison

LARGEST_TOLERANCE = 10.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison with both timelines, and the run when it came from a run folder."""

    comparison: Comparison
    predicted: Timeline
    measured: Timeline
    run: Run | None


def compared(first: str, second: str | None, profile: Any = None, top: int = 12) -> Compared:
    """RUN_DIR, or PREDICTED and MEASURED (each a timeline file; MEASURED may be a run folder). Raises InputError."""
    if second is None:
        return compare_folder(RunFolder.open(first), profile, top)
    from program.timeline import load
    from reports.compare import compare

    if profile is not None:
        raise InputError(
            "--profile has no use when the forecast is given as a timeline; leave PREDICTED out to simulate it"
        )
    predicted = load(_file(first))
    if Path(second).is_dir():
        folder = RunFolder.open(second)
        measured, times_s = _recorded(folder, folder.run().plan.world), folder.step_times_s()
    else:
        measured, times_s = load(second), []
    return Compared(compare(predicted, measured, times_s, top), predicted, measured, None)


def compare_folder(folder: RunFolder, profile: Any = None, top: int = 12) -> Compared:
    """Simulate a folder's run and compare."""
    from reports.compare import compare

    run = folder.run()
    measured, times_s = _recorded(folder, run.plan.world), folder.step_times_s()
    simulated = simulate(run, profile=profile or profile_named(measured) or run.cluster.profile)
    predicted = simulated.timeline()
    interval = simulated.simulation.interval
    comparison = compare(predicted, measured, times_s, top, (interval.low_s, interval.high_s), _probe(simulated))
    return Compared(comparison, predicted, measured, run)


def _recorded(folder: RunFolder, world: int) -> Timeline:
    """A folder's measured timeline; a warning names the ranks that it lacks."""
    measured = folder.timeline()
    for steps, ranks in unrecorded(measured, world).items():
        output.note(
            f"warning: {folder.path} has no timeline of {_named('rank', ranks)} for {_named('step', steps)}: the run"
            " was killed or the disk was full; what these ranks did, and how long others waited for them, is left out"
        )
    return measured


def unrecorded(measured: Timeline, world: int) -> dict[tuple[int, ...], list[int]]:
    """Ranks of a run of `world` ranks that a measured timeline has nothing of, by the steps of which it has nothing."""
    have = set(zip(measured.ints("rank"), measured.ints("step"), strict=True))
    steps = sorted({step for _, step in have})
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world):
        if missing := tuple(step for step in steps if (rank, step) not in have):
            found.setdefault(missing, []).append(rank)
    return found


def _named(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _probe(simulated: SimulatedRun) -> dict[str, float]:
    """The profile's machine probe, where a run's can be held against it (calibration probes with one thread)."""
    comparable = simulated.run.cluster.device != "cpu" or simulated.run.cluster.threads_per_rank == 1
    return dict(simulated.profile.file.probe) if comparable else {}


def profile_named(measured: Timeline) -> str | None:
    """The profile that a measured timeline's header names."""
    cluster = measured.header.run.get("cluster")
    return str(cluster["profile"]) if isinstance(cluster, dict) and cluster.get("profile") else None


def compare_command(
    first: str, second: str | None, profile: str | None, top: int, trace: str | None, as_json: bool
) -> int:
    """Print the comparison; write the trace when asked for."""
    found = compared(first, second, profile, top)
    if trace:
        from reports.trace import write_comparison

        output.note(f"wrote {write_comparison(found.predicted, found.measured, trace)} (open it in ui.perfetto.dev)")
    if as_json:
        output.emit_json(found.comparison)
    else:
        from reports.compare_text import compare_text

        output.emit(compare_text(found.comparison, output.width(), output.colour()))
    return 0


def judged(baseline: str, run_dir: str, tolerance: float, profile: Any = None) -> Verdict:
    """The gate's verdict on `run_dir` against `baseline`, both run folders; one profile prices the twins of both, the
    run's unless another is asked for. Raises InputError where a run has too few steps to tell."""
    from reports.check import check

    if not 0 <= tolerance <= 10:
        raise InputError(f"a tolerance of {tolerance} is not a share between 0 and 10; 0.1 allows 10 %")
    old, new = RunFolder.open(baseline), RunFolder.open(run_dir)
    yardstick = _profile(profile or profile_named(new.timeline()) or new.run().cluster.profile)
    return check(_side(old, yardstick), _side(new, yardstick), tolerance)


def _side(folder: RunFolder, profile: Any) -> Side:
    from reports.check_classes import class_times_s
    from reports.check_side import Side

    found, classes = compare_folder(folder, profile, 1), class_times_s(folder.recorded_steps())
    return Side(found.comparison, _work(found, profile), folder.step_times_s(), classes, found.measured.header)


def _profile(given: Any) -> Any:
    from calibration.profile import load_profile

    return given if hasattr(given, "kernel_s") else load_profile(given)


def _work(found: Compared, profile: Any) -> Work:
    from reports.check_side import Work

    assert found.run is not None  # both sides of the gate are run folders
    return Work(found.run.plan.world, found.run.tokens_per_step, one_device_s(found.run, profile))


def one_device_s(run: Run, profile: Any = None) -> float | None:
    """The twin's step time of the same model and global batch on one device; None where no such plan can be
    simulated."""
    from plan.run import load

    raw = run.to_dict()
    alone = {
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "context_parallel": 1,
        "data_parallel": 1,
        "virtual_pipeline": 1,
    }
    plan = (
        raw["plan"]
        | alone
        | {"sequence_parallel": False, "schedule": "1f1b", "pipeline_layout": "auto", "microbatch_group": "auto"}
    )
    cluster = raw["cluster"] | {
        "gpus": 1,
        "gpus_per_node": 1,
        "nodes": 1,
        "threads_per_rank": run.cluster.threads_per_rank,
    }
    try:
        simulated = simulate(load(raw | {"plan": plan, "cluster": cluster}), profile=profile)
    except InputError:
        return None
    return float(simulated.simulation.step_time_s)


def check_command(baseline: str, run_dir: str, tolerance: float, profile: str | None, as_json: bool) -> int:
    """Print the verdict; exit 1 when the gate failed."""
    if not 0 <= tolerance <= LARGEST_TOLERANCE:  # not a number neither
        raise InputError(f"--tolerance {tolerance}: give the share that a run may be slower, 0 to {LARGEST_TOLERANCE}")
    verdict = judged(baseline, run_dir, tolerance, profile)
    if as_json:
        output.emit_json(verdict)
    else:
        from reports.check_text import check_text

        output.emit(check_text(verdict, output.width(), output.colour()))
    return 0 if verdict.passed else 1


def _file(path: str) -> str:
    if Path(path).is_dir():
        raise InputError(
            f"{path} is a folder; PREDICTED is a timeline file, as `windtunnel forecast --timeline FILE` writes it"
        )
    return path
