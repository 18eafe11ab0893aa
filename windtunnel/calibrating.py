"""Measuring this machine into a profile: progress on a terminal, then where it was written and how well it fits."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from plan.errors import InputError
from plan.nearest import did_you_mean
from windtunnel import output
from windtunnel.results import Calibrated

if TYPE_CHECKING:
    from calibration.profile import Profile

Progress = Callable[[str, int, int], None]
DEVICES = ("cpu", "cuda")
KERNELS = ("eager", "compiled", "triton")
BASE, KIND = "h200-published", "compiled"
"""Of a GPU's profile, where none is named."""


def measure(path: Path | None = None, progress: Progress | None = None) -> Path:
    """Measure the CPU and write its profile (the cache's place by default). Raises InputError for what cannot be
    written."""
    from calibration.profile_paths import cpu_profile_path

    _check_target(path or cpu_profile_path(), "cpu")
    try:
        from calibration.calibrate import calibrate
    except ModuleNotFoundError as error:
        raise _needs(error) from None
    try:
        return calibrate(path, progress=progress or (lambda what, done, of: None))
    except OSError as error:
        raise _unwritten(path, error) from None


def measure_gpu(path: Path | None, base: str, kernels: str, progress: Progress | None = None) -> Path:
    """Measure one GPU and write its profile to `path` (gpu.yaml here by default). Raises InputError without a GPU, for
    an unknown base profile and for what cannot be written."""
    from calibration.profile import load_profile

    names = list(dict.fromkeys(part.strip() for part in kernels.split(",")))
    problems = [f"--kernels {name}: {did_you_mean(name, list(KERNELS))}" for name in names if name not in KERNELS]
    if problems:
        raise InputError(problems)
    load_profile(base)
    target = path or Path("gpu.yaml")
    _check_target(target, "gpu")
    try:
        from calibration.calibrate import calibrate_gpu
    except ModuleNotFoundError as error:
        raise _needs(error) from None
    try:
        return calibrate_gpu(target, base, names, progress or (lambda what, done, of: None))
    except OSError as error:
        raise _unwritten(target, error) from None


def measure_device(
    device: str, path: Path | None, base: str | None, kernels: str | None, progress: Progress | None = None
) -> Path:
    """Measure `device`, cpu or cuda. Raises InputError for another, and for what a CPU's profile has no use for."""
    if device not in DEVICES:
        raise InputError(f"--device {device}: it must be one of {', '.join(DEVICES)}")
    if device == "cuda":
        return measure_gpu(path, base or BASE, kernels or KIND, progress)
    idle = [f"--{name} {given}" for name, given in (("base", base), ("kernels", kernels)) if given is not None]
    if idle:
        raise InputError(
            f"{option}: a CPU's profile has no use for it; leave it out, or --device cuda" for option in idle
        )
    return measure(path, progress)


def _check_target(path: Path, name: str) -> None:
    """Raises InputError, before a minute is spent on measuring, when `path` cannot be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the profile file to write, such as {path / name}.yaml")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _unwritten(path, error) from None


def _needs(error: ModuleNotFoundError) -> InputError:
    return InputError(f"calibrating needs {error.name}: pip install 'windtunnel[train]'")


def _unwritten(path: Path | None, error: OSError) -> InputError:
    return InputError(f"the profile cannot be written to {path or 'the cache'}: {error.strerror}")


def calibrate_command(device: str, target: str | None, as_json: bool, base: str | None, kernels: str | None) -> int:
    """Measure, then print the file and the residuals."""
    begin = time.perf_counter()
    with _bar() as progress:
        written = measure_device(device, Path(target) if target else None, base, kernels, progress)
    result = calibrated(written, time.perf_counter() - begin)
    if as_json:
        output.emit_json(result)
    else:
        output.emit(text(result, output.width(), output.colour()))
    return 0


def calibrated(path: Path, seconds: float) -> Calibrated:
    """The result record of a profile file."""
    from calibration.profile import load_profile

    profile = load_profile(str(path))
    return Calibrated(str(path), profile.name, profile_hash(profile), seconds, dict(sorted(profile.residuals.items())))


def profile_hash(profile: Profile) -> str:
    """SHA-256 of a profile's content: equal numbers, equal hash."""
    from reports.flight_report import profile_hash as hashed

    return hashed(profile)


def text(result: Calibrated, width: int = 100, colour: bool = False) -> str:
    """Where the profile is and how well each class fits."""
    from reports import tables

    rows = [(name, tables.percent(sigma)) for name, sigma in result.residuals.items()]
    head = f"wrote {result.path} in {result.seconds:.0f} s (profile {result.profile}, hash {result.profile_hash[:16]})"
    table = tables.table("Residuals: spread of measured / fitted", ("class", "sigma"), rows)
    return tables.render(tables.spaced([head, table]), width, colour)


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """A progress bar for each class on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    tasks: dict[str, TaskID] = {}
    with Bars(console=Console(stderr=True)) as bars:

        def show(what: str, done: int, of: int) -> None:
            task = tasks[what] if what in tasks else tasks.setdefault(what, bars.add_task(what, total=of))
            bars.update(task, completed=done, total=of)

        yield show
