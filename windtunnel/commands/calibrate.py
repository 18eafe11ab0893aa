"""`windtunnel calibrate`: measures this machine into a profile, with progress on a terminal, then prints where it was
written and how well it fits."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from program.errors import InputError
from program.nearest import did_you_mean
from windtunnel.commands import options as o

if TYPE_CHECKING:
    from windtunnel.results import Calibrated

Progress = Callable[[str, int, int], None]
DEVICES = ("cpu", "cuda")
KERNELS = ("eager", "compiled", "triton")
BASE, KIND = "h200-published", "compiled"
"""Of a GPU's profile, where none is named."""


def calibrate(
    device: Annotated[str, typer.Option(metavar="DEVICE", help="What to measure: cpu, or cuda.")] = "cpu",
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write. Default: the cache.", show_default=False),
    ] = "",
    base: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="cuda: the profile that links and network are taken from. Default: h200-published."
        ),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(metavar="KINDS", help="cuda: some of eager,compiled,triton. Default: compiled.")
    ] = None,
    as_json: o.Json = False,
) -> int:
    """Measure this machine into a profile (under 90 s on 2 cores); prints where it wrote and the residuals."""
    from windtunnel import output as say

    begin = time.perf_counter()
    with _bar() as progress:
        written = measure_device(device, Path(output) if output else None, base, kernels, progress)
    result = calibrated(written, time.perf_counter() - begin)
    if as_json:
        say.emit_json(result)
    else:
        say.emit(text(result, say.width(), say.colour()))
    return 0


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


def calibrated(path: Path, seconds: float) -> Calibrated:
    """The result record of a profile file."""
    from calibration.profile import load_profile
    from reports.forecast_report import profile_hash
    from windtunnel.results import Calibrated

    profile = load_profile(str(path))
    return Calibrated(str(path), profile.name, profile_hash(profile), seconds, dict(sorted(profile.residuals.items())))


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
