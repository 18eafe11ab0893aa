"""`windtunnel calibrate`: measure this machine's CPU into a profile, in about a minute, and keep it in the cache
folder.

    path = calibrate(progress=print)          # measures, writes, returns the file
    python -m calibration.calibrate           # the same, with a line of progress a class

The grid is fixed (`calibration.grid`) and depends on no run. Kernels are timed through the registry with one thread
and with all cores, collectives between two gloo processes in the rhythm of a training step, and what sharing the cores
costs between those two.
Everything is written with its source and its spread; other work on the machine is met by taking the 25th percentile
where the samples say that it interfered.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calibration import comm_bench, grid, measured, microbench, schema
from calibration.profile import kernel_class
from calibration.profile_paths import cpu_profile_path, machine_key
from calibration.write import write_profile
from plan.cluster import machine
from plan.program import KernelCall

Progress = Callable[[str, int, int], None]  # (what is being measured, done, of how many)


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds spent on a point of each class, and how much of the grid is taken (1: all; 16: every sixteenth call)."""

    gemm_s: float = 0.06
    attention_s: float = 0.06
    memory_s: float = 0.025
    rehearsals: int = 3  # of each collective, in each of four rounds
    sharing_s: float = 0.4
    probe_s: float = 5.0
    every: int = 1


FULL = Effort()
QUICK = Effort(0.01, 0.01, 0.005, 1, 0.05, 0.1, every=16)


def calibrate(
    path: Path | None = None, effort: Effort = FULL, progress: Progress = lambda what, done, of: None
) -> Path:
    """Measure and write the profile of this machine. Returns its path (the cache's by default)."""
    torch.manual_seed(0)
    context_bytes = _resident_bytes()
    comm, delays, sharing = _collectives(effort, progress)
    cores = machine().cores
    kernels = [point for threads in sorted({1, cores}) for point in _kernels(threads, effort, progress)]
    progress("machine probe", 0, 1)
    probe = microbench.machine_probe(effort.probe_s)
    host_s = microbench.host_costs()
    progress("machine probe", 1, 1)
    by_class = {name: [p for p in kernels if kernel_class(p.call) == name] for name in ("gemm", "attention", "memory")}
    data: dict[str, Any] = {
        "name": "cpu",
        "device": "cpu",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"torch": str(torch.__version__), "collectives": "gloo"},
        "machine": {"key": machine_key(), "cores": cores, "memory_gib": round(machine().memory_gib, 2)},
        "probe": probe,
        "sources": {measured.SOURCE: _source(sharing)},
        "gemm": measured.gemm_sections(by_class["gemm"]),
        "attention": measured.attention_sections(by_class["attention"]),
        "memory": measured.memory_sections(by_class["memory"]),
        "collectives": measured.collective_sections(comm, delays),
        "host": _host(host_s, sharing),
        "cores": {
            "source": measured.SOURCE,
            "cores": cores,
            "communication_demand": sharing.comm_demand,
            "busy_slowdown": sharing.busy,
        },
        "allocator": {
            "round_bytes": 64, "small_limit_bytes": 0, "small_segment_bytes": 0, "large_segment_bytes": 0,
            "segment_round_bytes": 4096, "context_bytes": context_bytes,
        },
    }  # fmt: skip
    target = path or cpu_profile_path()
    schema.check(data, "measured profile")
    write_profile(data, target, "Measured by `windtunnel calibrate`. Delete the file to measure again.")
    return target


def _collectives(
    effort: Effort, progress: Progress
) -> tuple[list[comm_bench.CommPoint], dict[str, comm_bench.Delay], comm_bench.Sharing]:
    progress("collectives and core sharing", 0, 1)
    sizes = comm_bench.SIZES if effort.every == 1 else comm_bench.SIZES[:6:2]
    found = comm_bench.measure(sizes, effort.rehearsals, effort.sharing_s)
    progress("collectives and core sharing", 1, 1)
    return found


def _kernels(threads: int, effort: Effort, progress: Progress) -> list[microbench.KernelPoint]:
    points: list[microbench.KernelPoint] = []
    classes: tuple[tuple[str, list[KernelCall], float], ...] = (
        ("GEMM", grid.gemm_calls(), effort.gemm_s),
        ("attention", grid.attention_calls(), effort.attention_s),
        ("memory-bound operators", grid.memory_calls(), effort.memory_s),
    )
    for label, calls, budget_s in classes:
        kept = calls[:: effort.every] if threads == 1 else [c for c in calls if c.dtype == "fp32"][:: effort.every]
        what = f"{label}, {threads} thread{'s' if threads > 1 else ''}"
        for index in range(0, len(kept), 16):
            progress(what, index, len(kept))
            points += microbench.measure_kernels(kept[index : index + 16], threads, budget_s)
        progress(what, len(kept), len(kept))
    return points


def _host(host_s: float, sharing: comm_bench.Sharing) -> list[dict[str, Any]]:
    """A CPU's kernels are called by the host itself, so issuing one costs nothing beyond the kernel's own time.
    `wake`: what a waiter pays for the way to another thread and back."""
    base = {"source": measured.SOURCE, "per_kernel_s": 0.0}
    return [
        {**base, "kind": "compute", "base_s": host_s},
        {**base, "kind": "comm", "base_s": host_s + sharing.handover_s},
        {**base, "kind": "wake", "base_s": sharing.wake_s},
        {**base, "kind": "*", "base_s": host_s},
    ]


def _source(sharing: comm_bench.Sharing) -> dict[str, Any]:
    return {
        "kind": "measured",
        "text": "this machine: kernels through the registry, gloo between two processes; "
        "sigma: reading between points together with the spread of repetitions",
        "residuals": {"gemm_beside_collective_factor": sharing.beside_comm},
    }


def _resident_bytes() -> int:
    """Memory the process holds before its first tensor of a step."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure with a line of progress for each class."""

    def show(what: str, done: int, of: int) -> None:
        if done in (0, of):
            print(f"{what}: {'measuring' if done == 0 else 'done'}", flush=True)

    print(calibrate(progress=show))


if __name__ == "__main__":
    main()
