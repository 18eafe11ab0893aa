"""The whole loop on this machine's CPU: calibrate, forecast, train, compare; then again with another run and the
*unchanged* profile.

The first run (tensor parallel 2) and the second (other width, heads, sequence, and a pipeline of 2) share nothing
but the machine's profile, which is hashed before and after. So the second error is what a forecast is worth on a
run that nobody tuned for. Step times are medians after warm-up; on a machine that does other work at the same time,
look at the middle half beside them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from plan.run import Run, load
from program.errors import WindtunnelError
from windtunnel import api, output
from windtunnel.folders import RunFolder, new_folder
from windtunnel.results import Demo, DemoRun, Residual

if TYPE_CHECKING:
    from reports.compare import Comparison

RUNS = ("cpu-demo.yaml", "cpu-demo-second.yaml")
WORST = 3
BUSY = 0.5
STOP_S = 5.0
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Loop:
    """One run of the demo with everything that was found out about it."""

    run: Run
    folder: Path
    comparison: Comparison


def demo_command(target: str | None, fresh: bool, as_json: bool) -> int:
    """Run the demo and print both comparisons in one table."""
    begin = time.perf_counter()
    folder = _folder(target)
    say = output.note if as_json else output.emit
    busy = load_average()
    if busy > BUSY:
        output.note(f"note: other work runs on this machine (load average {busy:.1f}); measured times include it")
    profile = calibrated_profile(folder, fresh)
    result = demonstrate(folder, profile, [example(name) for name in RUNS], say)
    result = replace(result, seconds=time.perf_counter() - begin, load_average=busy)
    output.emit_json(result) if as_json else output.emit("\n" + text(result, output.width(), output.colour()))
    return 0


def demonstrate(
    folder: Path, profile: Path, examples: Sequence[Path], say: Callable[[str], None] = output.progress
) -> Demo:
    """Forecast, train and compare each example in turn, with one profile that must stay what it is."""
    begin = time.perf_counter()
    before = _hash(profile)
    say(f"profile {profile}, hash {before[:16]}")
    runs = []
    for path in examples:
        simulated = loop(path, folder, profile)
        runs.append(_run(simulated))
        say(_summary(simulated, output.width(), output.colour()))
    after = _hash(profile)
    if before != after:
        raise WindtunnelError(f"the profile {profile} changed during the demo: something else wrote to it")
    return Demo(
        folder=str(folder),
        profile=str(profile),
        profile_hash_before=before,
        profile_hash_after=after,
        seconds=time.perf_counter() - begin,
        load_average=load_average(),
        runs=tuple(runs),
    )


def load_average() -> float:
    """Processes that want a core, as a mean over the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def loop(path: Path, folder: Path, profile: Path) -> Loop:
    """Forecast, train and compare one run file with a profile; writes both timelines as a trace into the run folder."""
    from reports.trace import write_comparison
    from windtunnel.comparing import compare_folder
    from windtunnel.training import launch

    run = load(path, [f"cluster.profile={profile}"])
    with output.waiting(f"forecasting {path.name}"):
        forecast = api.forecast(run)
    output.progress(
        f"{path.name}: forecast {forecast.step_time_s * 1e3:.1f} ms a step; training {run.train.steps} steps"
    )
    with output.waiting(f"training {path.name} on {run.plan.world} ranks"):
        trained = launch(run, folder / path.stem)
    found = compare_folder(RunFolder.open(trained))
    write_comparison(found.predicted, found.measured, trained / "trace.json")
    return Loop(run, trained, found.comparison)


def calibrated_profile(folder: Path, fresh: bool) -> Path:
    """The profile of this machine in the demo's folder: measured now, in a process of its own, or copied from the
    cache."""
    from calibration.profile_paths import cpu_profile_path

    target, cached = folder / "profile.yaml", cpu_profile_path()
    if fresh or not cached.exists():
        output.progress("calibrating this machine (about a minute)")
        command = [sys.executable, "-m", "windtunnel", "calibrate", "--output", str(target), "--json"]
        code, said = _finished(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if code:
            raise WindtunnelError(f"calibrating failed with exit code {code}: {said.strip()[-500:]}")
        if not cached.exists():
            _keep(target, cached)
    else:
        shutil.copyfile(cached, target)
    return target


def _finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and output of a process. On Ctrl-C, which a terminal sends to both, it says so and we end quietly."""
    try:
        said, _ = process.communicate()
    except KeyboardInterrupt:
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:  # only we were interrupted
            process.terminate()
            code = process.wait()
        raise typer.Exit(INTERRUPTED) if code == INTERRUPTED else KeyboardInterrupt from None
    return process.returncode, said


def _keep(profile: Path, cached: Path) -> None:
    """The first calibration also becomes this machine's cached profile; a cache that cannot be written is no reason
    to stop."""
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(profile, cached)
    except OSError as error:
        output.note(f"note: the profile was not kept in {cached}: {error.strerror}")


def example(name: str) -> Path:
    """An example run file: from the checkout, or the copy in the package."""
    checkout = Path(__file__).resolve().parent.parent / "examples" / name
    return checkout if checkout.is_file() else Path(str(resources.files("windtunnel") / "examples" / name))


def _folder(target: str | None) -> Path:
    if target is None:
        return new_folder(name="demo-").resolve()
    from program.errors import InputError

    folder = Path(target)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder; give a new one for the demo")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}") from None
    return folder.resolve()


def _hash(profile: Path) -> str:
    from calibration.profile import load_profile
    from reports.forecast_report import profile_hash

    return profile_hash(load_profile(str(profile)))


def _run(simulated: Loop) -> DemoRun:
    step = simulated.comparison.step_time
    worst = [Residual(r.name, r.predicted_s, r.measured_s, r.error) for r in simulated.comparison.classes[:WORST]]
    return DemoRun(
        name=simulated.run.model.name + " " + _layout(simulated.run),
        run_dir=str(simulated.folder),
        steps=step.steps,
        predicted_s=step.predicted_s,
        measured_s=step.measured_s,
        measured_quartiles_s=step.measured_quartiles_s,
        error=step.error,
        worst=tuple(worst),
    )


def _layout(run: Run) -> str:
    plan = run.plan
    degrees = {"TP": plan.tensor_parallel, "PP": plan.pipeline_parallel, "DP": plan.data_parallel}
    return " ".join(f"{name}{n}" for name, n in degrees.items() if n > 1) or "one rank"


def _summary(simulated: Loop, width: int, colour: bool) -> str:
    from reports.compare_text import compare_text

    return f"\n{simulated.folder}\n" + compare_text(simulated.comparison, width, colour, pieces=6)


def text(result: Demo, width: int = 100, colour: bool = False) -> str:
    """The last word: both runs in one table."""
    from reports import tables
    from reports.tables import milliseconds, percent

    rows = []
    for run in result.runs:
        worst = [f"{r.name} {percent(r.error, signed=True)}" for r in run.worst]
        quartiles = " to ".join(f"{value * 1e3:.1f}" for value in run.measured_quartiles_s)
        times = (milliseconds(run.predicted_s), milliseconds(run.measured_s), quartiles)
        rows.append((run.name, "\n".join(worst), *times, percent(run.error, signed=True)))
    columns = ("run", "top residuals", "predicted ms", "measured ms", "middle half", "error")
    same = f"profile hash {result.profile_hash_before[:16]} before, {result.profile_hash_after[:16]} after: unchanged"
    end = (
        f"{same}\ndone in {result.seconds:.0f} s; everything is in {result.folder}; trace.json opens in ui.perfetto.dev"
    )
    title = "Step time: forecast and measured"
    return tables.render(tables.spaced([tables.table(title, columns, rows, left=2), end]), width, colour)
