"""`windtunnel calibrate`: measure this machine's CPU, or one of its GPUs, into a profile.

    path = calibrate(progress=print)                               # the CPU, in about a minute, into the cache folder
    calibrate_gpu(path, "h200-published", ("eager", "triton"))     # one GPU; `windtunnel calibrate --device cuda`

The grid is fixed (`calibration.grid`) and depends on no run. Everything is written with its source and its spread.

On a CPU kernels are timed through the registry with one thread and with all cores, collectives between two gloo
processes in the rhythm of a training step, and what sharing the cores costs between those two.

On a GPU kernels, copies, host cost and context are measured; what one GPU cannot show (links, network, contention) is
taken from a base profile of the same kind of GPU, source by source. Collectives, transfers and their host cost are
measured where the machine has more than one GPU, for that many ranks. Products, attention and the operators that every
kind of kernels shares are measured once (`kernels: "*"`); the others once for each kind asked for. The file is written
after each kind, so that what was measured survives a time limit.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from calibration import comm_gloo, comm_nccl, grid, measured, schema
from calibration.comm_bench import CommPoint
from calibration.host import GRAPH
from calibration.microbench import Cpu, Cuda, KernelPoint, require_gpu
from calibration.profile import kernel_class
from calibration.profile_paths import cpu_profile_path, machine_key, profile_path
from calibration.write import write_profile
from kernels.registry import POINTWISE
from program import KernelCall
from program.cluster import machine
from program.files import parse_yaml, text_of

Progress = Callable[[str, int, int], None]  # (what is being measured, done, of how many)
Section = dict[str, Any]
ANY = "*"
LINKS = "links-here"
MEASURED_BY = "Measured by `windtunnel calibrate --device cuda`; links and network from `{base}`."
SOURCE = measured.SOURCE


def silent(what: str, done: int, of: int) -> None:
    """No progress."""


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


def _file(name: str, device: str, about: Section, points: Sequence[KernelPoint], **sections: Any) -> Section:
    """A profile: what was measured of every device, then `sections`."""
    return {
        "name": name,
        "device": device,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **about,
        "gemm": measured.gemm_sections(_of(points, "gemm")),
        "attention": measured.attention_sections(_of(points, "attention")),
        **sections,
    }


def _points(device: Cpu | Cuda, what: str, calls: Sequence[KernelCall], progress: Progress, *how: float) -> Any:
    """The points of calls, with progress; a device may leave a call out."""
    found: list[KernelPoint] = []
    progress(what, 0, len(calls))
    for point in device.points(calls, *how):
        found.append(point)
        progress(what, len(found), len(calls))
    progress(what, len(calls), len(calls))
    return found


def _of(points: Sequence[KernelPoint], kind: str) -> list[KernelPoint]:
    return [point for point in points if kernel_class(point.call) == kind]


# ---------------------------------------------------------------- the CPU


def calibrate(path: Path | None = None, effort: Effort = FULL, progress: Progress = silent) -> Path:
    """Measure and write the profile of this machine. Returns its path (the cache's by default)."""
    torch.manual_seed(0)
    cpu, cores = Cpu(), machine().cores
    context_bytes = cpu.context_bytes()
    comm, delays, sharing = _collectives(effort, progress)
    points = [point for threads in sorted({1, cores}) for point in _kernels(threads, effort, progress)]
    progress("machine probe", 0, 1)
    probe, host_s = cpu.probe(effort.probe_s), cpu.instruction_s()
    progress("machine probe", 1, 1)
    about = {
        "versions": {"torch": str(torch.__version__), "collectives": "gloo"},
        "machine": {"key": machine_key(), "cores": cores, "memory_gib": round(machine().memory_gib, 2)},
        "probe": probe,
        "sources": {SOURCE: _source(sharing)},
    }
    data = _file(
        "cpu", cpu.name, about, points,
        memory=measured.memory_sections(_of(points, "memory")),
        collectives=measured.collective_sections(comm, delays),
        host=_host(host_s, sharing),
        cores={
            "source": SOURCE, "cores": cores, "communication_demand": sharing.comm_demand,
            "busy_slowdown": sharing.busy,
        },
        allocator={
            "round_bytes": 64, "small_limit_bytes": 0, "small_segment_bytes": 0, "large_segment_bytes": 0,
            "segment_round_bytes": 4096, "context_bytes": context_bytes,
        },
    )  # fmt: skip
    target = path or cpu_profile_path()
    schema.check(data, "measured profile")
    write_profile(data, target, "Measured by `windtunnel calibrate`. Delete the file to measure again.")
    return target


def _collectives(effort: Effort, progress: Progress) -> Any:
    """(points, delays, sharing)."""
    progress("collectives and core sharing", 0, 1)
    sizes = comm_gloo.SIZES if effort.every == 1 else comm_gloo.SIZES[:6:2]
    found = comm_gloo.measure(comm_gloo.Gloo(sizes, effort.rehearsals, effort.sharing_s))
    progress("collectives and core sharing", 1, 1)
    return found


def _kernels(threads: int, effort: Effort, progress: Progress) -> list[KernelPoint]:
    points: list[KernelPoint] = []
    for label, calls, budget_s in (
        ("GEMM", grid.gemm_calls(), effort.gemm_s),
        ("attention", grid.attention_calls(), effort.attention_s),
        ("memory-bound operators", grid.memory_calls(), effort.memory_s),
    ):
        kept = calls[:: effort.every] if threads == 1 else [c for c in calls if c.dtype == "fp32"][:: effort.every]
        what = f"{label}, {threads} thread{'s' if threads > 1 else ''}"
        points += _points(Cpu(threads), what, kept, progress, budget_s)
    return points


def _host(host_s: float, sharing: comm_gloo.Sharing) -> list[Section]:
    """A CPU's kernels are called by the host itself, so issuing one costs nothing beyond the kernel's own time.
    `wake`: what a waiter pays for the way to another thread and back."""
    base = {"source": SOURCE, "per_kernel_s": 0.0}
    return [
        {**base, "kind": "compute", "base_s": host_s},
        {**base, "kind": "comm", "base_s": host_s + sharing.handover_s},
        {**base, "kind": "wake", "base_s": sharing.wake_s},
        {**base, "kind": "*", "base_s": host_s},
    ]


def _source(sharing: comm_gloo.Sharing) -> Section:
    return {
        "kind": "measured",
        "text": "this machine: kernels through the registry, gloo between two processes; "
        "sigma: reading between points together with the spread of repetitions",
        "residuals": {"gemm_beside_collective_factor": sharing.beside_comm},
    }


# ---------------------------------------------------------------- a GPU


@dataclass(slots=True)
class _Gpu:
    """What has been measured so far: points and host seconds an execution, by kind of kernels (ANY: shared); links:
    points and host seconds by kind of instruction, for `ranks`."""

    about: Section
    ranks: int
    links: tuple[list[CommPoint], dict[str, float]] | None
    points: dict[str, list[KernelPoint]] = field(default_factory=dict)
    issue_s: dict[str, dict[str, float]] = field(default_factory=dict)

    def measure(self, kind: str, what: str, calls: list[KernelCall], progress: Progress) -> None:
        """Points and host seconds of a kind's operators."""
        gpu = Cuda("eager" if kind == ANY else kind)
        self.points[kind] = _points(gpu, what, calls, progress)
        self.issue_s[kind] = gpu.issue_costs([point.call for point in self.points[kind]])

    def memory(self, kind: str) -> list[Section]:
        """A kind's operators with the shared ones, so that the class's fit is of what a run of that kind executes."""
        issue_s = self.issue_s[ANY] | self.issue_s[kind]
        points = [*_of(self.points[ANY], "memory"), *self.points[kind]]
        return [_with_issue(entry, kind, issue_s) for entry in measured.memory_sections(points)]


def calibrate_gpu(
    path: Path, base: str, kernels: Sequence[str] = ("compiled",), progress: Progress = silent, every: int = 1
) -> Path:
    """Measure this GPU under each kind of `kernels` and write its profile to `path`. `base` names the profile links
    are taken from; `every` thins the grid (tests)."""
    require_gpu()
    torch.manual_seed(0)
    path_of_base = profile_path(base)
    lender = parse_yaml(text_of(path_of_base), str(path_of_base))
    ranks = torch.cuda.device_count()
    found = _Gpu(_about_gpu(), ranks, _links(ranks, progress))
    shared = [*grid.gpu_gemm_calls(), *grid.gpu_attention_calls(), *_memory_calls(ANY)]
    found.measure(ANY, "products, attention, shared operators", shared[::every], progress)
    for kind in kernels:
        found.measure(kind, f"{kind} operators", _memory_calls(kind)[::every], progress)
        data = measured.borrowed(_gpu_file(path.stem, found), lender)
        schema.check(data, "measured profile")
        write_profile(data, path, MEASURED_BY.format(base=base))
    return path


def _memory_calls(kind: str) -> list[KernelCall]:
    """Memory-bound operators that every kind shares, or those that `kind` has for itself."""
    from kernels.registry_triton import FUSED

    own = {*POINTWISE, *FUSED}
    calls = grid.gpu_memory_calls(frozenset(POINTWISE) if kind == "compiled" else frozenset())
    return [call for call in calls if (call.op not in own if kind == ANY else call.op in own)]


def _links(ranks: int, progress: Progress) -> tuple[list[CommPoint], dict[str, float]] | None:
    """What the GPUs of this machine take to talk to each other; None with one GPU."""
    if ranks < 2:
        return None
    progress(f"collectives on {ranks} GPUs", 0, 1)
    links = comm_nccl.measure(comm_nccl.Nccl(ranks))
    progress(f"collectives on {ranks} GPUs", 1, 1)
    return links


def _about_gpu() -> Section:
    device, gpu = require_gpu(), Cuda()
    return {
        "versions": {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)},
        "machine": {
            "gpu": torch.cuda.get_device_name(device),
            "units": torch.cuda.get_device_properties(device).multi_processor_count,
        },
        "probe": gpu.probe(),
        "sustained": measured.sustained(gpu.sustained_gemm(), SOURCE),
        "copies": [
            {"source": SOURCE, "kind": kind, "launch_s": launch, "bytes_per_s": rate}
            for kind, launch, rate in gpu.copies()
        ],
    }


def _gpu_file(name: str, found: _Gpu) -> Section:
    """The profile of what has been measured so far, without what it borrows."""
    kinds = [kind for kind in found.points if kind != ANY]
    card, gpu = found.about["machine"]["gpu"], Cuda()
    source = {
        "kind": "measured",
        "text": f"one {card}, torch {torch.__version__}, kernels: {', '.join(kinds)}; "
        "cold L2, medians between events; issue_s: best batch of each operator on its smallest shape",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    data = _file(
        name, gpu.name, found.about | {"sources": {SOURCE: source}}, found.points[ANY],
        memory=[entry for kind in kinds for entry in found.memory(kind)],
        host=[
            {
                "source": SOURCE, "kind": "*", "base_s": gpu.instruction_s(),
                "per_kernel_s": found.about["probe"]["launch_s"],
            },
            {"source": SOURCE, "kind": GRAPH, "base_s": 0.0, "per_kernel_s": gpu.graph_node_s()},
        ],
        allocator={"source": SOURCE, "context_bytes": gpu.context_bytes()},
    )  # fmt: skip
    for part in ("gemm", "attention"):
        data[part] = [_with_issue(entry, ANY, found.issue_s[ANY]) for entry in data[part]]
    return data if found.links is None else _with_links(data, found.ranks, *found.links)


def _with_links(data: Section, ranks: int, points: list[CommPoint], issue_s: dict[str, float]) -> Section:
    """With the links' tables, and the host's cost by kind of instruction."""
    text = f"{ranks} {data['machine']['gpu']} of one node, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, "  # type: ignore[no-untyped-call]
    text += f"torch {torch.__version__}; a row of {comm_nccl.IN_A_ROW}, medians of the slowest rank"
    issued = [{"source": LINKS, "kind": kind, "base_s": float(f"{base_s:.4g}")} for kind, base_s in issue_s.items()]
    return data | {
        "sources": data["sources"] | {LINKS: data["sources"][SOURCE] | {"text": text}},
        "collectives": measured.collective_sections(points, {}, ranks, LINKS),
        "host": data["host"] + issued,
    }


def _with_issue(entry: Section, kind: str, issue_s: dict[str, float]) -> Section:
    """The entry with the kind it holds under and its host seconds, where they were measured."""
    stated = issue_s.get(entry["op"])
    return entry | ({"kernels": kind} if kind != ANY else {}) | ({} if stated is None else {"issue_s": stated})
