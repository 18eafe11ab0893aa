"""`windtunnel doctor`: what this machine has for Windtunnel, and what would not work on it.

Each `Finding` has a state: ok, note (works, with less) or bad (must be mended first; the command then exits 1). The
check that matters most is the last: our folders are import names, and `kernels` is also a Hugging Face
distribution, `trainer` another project's; an environment in which one of them resolves elsewhere would run somebody
else's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from windtunnel.commands import options as o

OURS = ("plan", "kernels", "calibration", "simulator", "trainer", "reports", "windtunnel")
BASE = ("numpy", "simpy", "pydantic", "pyyaml", "typer", "rich")
TRAIN = ("torch", "triton", "scipy")
OLD_PROFILE_DAYS = 30.0
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True, "extra": "forbid"}
    subject: str
    state: Literal["ok", "note", "bad"]
    """ok; note: works, with less; bad: must be mended first."""
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was looked at; `ok` when nothing is bad."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True, "extra": "forbid"}
    ok: bool
    findings: tuple[Finding, ...]


def doctor(as_json: o.Json = False) -> int:
    """What this machine has, and what would not work. Exit 1: something must be mended first."""
    from windtunnel import output

    diagnosis = examine()
    if as_json:
        output.emit_json(diagnosis)
    else:
        output.emit(text(diagnosis, output.width(), output.colour()))
    return 0 if diagnosis.ok else 1


def examine() -> Diagnosis:
    """Look at everything. A check that itself fails is a bad finding, never an exception."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (python, packages, machine, devices, network, profile, names)
    findings = tuple(finding for check in checks for finding in _safely(check))
    return Diagnosis(all(finding.state != "bad" for finding in findings), findings)


def _safely(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:
        return [Finding(check.__name__, "bad", f"could not be examined: {type(error).__name__}: {error}")]


def python() -> Iterator[Finding]:
    """The interpreter: 3.11 or newer."""
    version = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    yield Finding("python", "ok" if good else "bad", version if good else f"{version}; Windtunnel needs 3.11 or newer")


def packages() -> Iterator[Finding]:
    """Libraries of the base install (a forecast) and of the `train` extra."""
    for name in BASE:
        yield _package(name, "bad", "a forecast needs it: pip install windtunnel")
    for name in TRAIN:
        yield _package(name, "note", "training and calibrating need it: pip install 'windtunnel[train]'")


def _package(name: str, missing: Literal["note", "bad"], remedy: str) -> Finding:
    import importlib.metadata

    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, missing, f"not installed; {remedy}")


def machine() -> Iterator[Finding]:
    """Cores and memory, as a run on `cluster: cpu` shares them out."""
    from program.cluster import machine as host

    found = host()
    few = found.cores < 2
    text = f"{found.cores} usable cores, {found.memory_gib:.1f} GiB memory"
    yield Finding("machine", "note" if few else "ok", text + ("; the demo's two ranks share one core" if few else ""))


def devices() -> Iterator[Finding]:
    """GPUs, and the collective libraries torch was built with."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        card = torch.cuda.get_device_properties(index)
        yield Finding(f"gpu {index}", "ok", f"{card.name}, {card.total_memory / 2**30:.1f} GiB")
    if not count:
        yield Finding("gpu", "note", "none: runs train on the CPU (cluster: cpu); forecasts of any cluster work")
    gloo = dist.is_available() and dist.is_gloo_available()
    yield Finding("gloo", "ok" if gloo else "bad", "available" if gloo else "this torch cannot train on CPU ranks")
    if count:
        nccl = dist.is_nccl_available()
        yield Finding("nccl", "ok" if nccl else "bad", "available" if nccl else "this torch cannot train on GPUs")


def network() -> Iterator[Finding]:
    """Ranks on one machine talk over its loopback."""
    from calibration.loopback import loopback
    from program.errors import InputError

    try:
        yield Finding("network", "ok", f"ranks on this machine talk over {loopback()}")
    except InputError as error:
        yield Finding("network", "bad", str(error))


def profile() -> Iterator[Finding]:
    """The measured profile of this machine's CPU: present, readable, and how old."""
    import time

    from calibration.profile import load_profile
    from calibration.profile_paths import cpu_profile_path
    from program.errors import InputError

    path = cpu_profile_path()
    if not path.exists():
        yield Finding("cpu profile", "note", "not measured yet: windtunnel calibrate (about a minute)")
        return
    try:
        load_profile("cpu")
    except InputError as error:
        yield Finding("cpu profile", "bad", f"{path} is damaged ({error.problems[0]}): windtunnel calibrate")
        return
    days = (time.time() - path.stat().st_mtime) / 86400
    old = days > OLD_PROFILE_DAYS
    advice = "; old: windtunnel calibrate measures anew" if old else ""
    yield Finding("cpu profile", "note" if old else "ok", f"{path}, {days:.1f} days old{advice}")


def names() -> Iterator[Finding]:
    """Whether each of our import names finds our own package."""
    import importlib.util

    for name in OURS:
        spec = importlib.util.find_spec(name)
        place = _place(spec)
        if place is None:
            yield Finding(name, "bad", "cannot be imported; reinstall windtunnel in an environment of its own")
        elif not _is_ours(place, name):
            owner = _owner(name)
            yield Finding(
                name,
                "bad",
                f"`import {name}` finds {place}{owner}, not Windtunnel's; give Windtunnel its own environment",
            )
        elif name in sys.modules and not _is_ours(_module_place(name), name):
            yield Finding(name, "bad", f"{name} was already imported from {_module_place(name)}, not Windtunnel's")
    shadows = sorted(name for name in OURS if name != "windtunnel" and _distribution_of(name))
    for name in shadows:
        yield Finding(
            name, "bad", f"the distribution {name!r} is installed too and owns the same import name: uninstall it"
        )


def _place(spec: Any) -> Path | None:
    if spec is None:
        return None
    where = spec.origin or next(iter(spec.submodule_search_locations or []), None)
    return Path(where).resolve() if where else None


def _module_place(name: str) -> Path:
    return Path(getattr(sys.modules[name], "__file__", None) or ".").resolve()


def _is_ours(place: Path, name: str) -> bool:
    folder = place if place.is_dir() else place.parent
    return folder == ROOT / name


def _owner(name: str) -> str:
    import importlib.metadata

    owners = importlib.metadata.packages_distributions().get(name, [])
    others = sorted(set(owners) - {"windtunnel"})
    return f" (distribution {', '.join(others)})" if others else ""


def _distribution_of(name: str) -> bool:
    """Whether another distribution claims the import name (an editable install of ours lists no top-level files of
    others)."""
    import importlib.metadata

    owners = importlib.metadata.packages_distributions().get(name, [])
    return any(owner.lower() != "windtunnel" for owner in owners)


def text(diagnosis: Diagnosis, width: int = 100, colour: bool = False) -> str:
    """The findings as a table, what is bad below it."""
    from reports import tables

    rows = [(finding.subject, finding.state, finding.text) for finding in diagnosis.findings]
    bad = sum(finding.state == "bad" for finding in diagnosis.findings)
    end = "everything that was looked at is in order" if diagnosis.ok else f"{bad} to mend first"
    return tables.render(
        tables.spaced([tables.table("", ("what", "state", "found"), rows, left=3), end]), width, colour
    )
