"""Where profiles are: those that come with the package, and this machine's own in the cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import resources
from pathlib import Path

from program.errors import InputError
from program.nearest import did_you_mean


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    folder = resources.files("calibration") / "profiles"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def cache_folder() -> Path:
    """Where measured profiles are kept: $WINDTUNNEL_CACHE, else ~/.cache/windtunnel, with /profiles."""
    root = os.environ.get("WINDTUNNEL_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windtunnel"
    return base / "profiles"


def machine_key() -> str:
    """What makes a CPU profile valid: processor model, usable cores, and architecture; hashed, so no host name is
    stored."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return hashlib.sha256(f"{platform.machine()}|{model}|{cores}".encode()).hexdigest()[:12]


def cpu_profile_path() -> Path:
    """Where this machine's measured profile is kept."""
    return cache_folder() / f"cpu-{machine_key()}.yaml"


def profile_path(name: str) -> Path:
    """The file behind a profile's name. Raises InputError: unknown name with the nearest, or a CPU not yet measured."""
    if name == "cpu":
        path = cpu_profile_path()
        if not path.exists():
            raise InputError("no profile of this machine's CPU yet: run `windtunnel calibrate` (about a minute)")
        return path
    known = shipped_profiles()
    if name in known:
        return Path(str(resources.files("calibration") / "profiles" / f"{name}.yaml"))
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    raise InputError(f"unknown profile {name!r}; {did_you_mean(name, [*known, 'cpu'])}")
