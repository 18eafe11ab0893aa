"""`windtunnel calibrate --device cuda`: measure one GPU into a profile.

Kernels, copies, host cost and context are measured; what one GPU cannot show (links, network, contention) is taken from
a base profile of the same kind of GPU, source by source, so that every number still says where it comes from.

    python -m calibration.calibrate_cuda --base h200-published --kernels eager compiled triton --output h200.yaml

Collectives, transfers and their host cost are measured where the machine has more than one GPU, for that many ranks.
Products, attention and the operators that every kind of kernels shares are measured once (`kernels: "*"`); the others
once for each kind asked for. The file is written after each kind, so that what was measured survives a time limit.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from calibration import cuda_bench, cuda_comm, cuda_grid, fits, measured, schema, tables
from calibration.host import GRAPH
from calibration.microbench import KernelPoint
from calibration.profile import kernel_class
from calibration.profile_paths import profile_path
from calibration.write import write_profile
from kernels.registry import POINTWISE
from plan.files import parse_yaml, text_of
from plan.program import KernelCall

Progress = Callable[[str, int, int], None]
KEPT = ("network", "collectives", "contention", "cores", "host_optimizer", "framework_host", "workspace", "cards")
ATTENTION = ("flash", "cudnn")
KINDS = ("eager", "compiled", "triton")
ANY = "*"
LINKS = "links-here"
COMMENT = "Measured by `windtunnel calibrate --device cuda`; links and network from `{base}`."


@dataclass(slots=True)
class _Measured:
    """What has been measured so far: points and host seconds an execution, by kind of kernels (ANY: shared)."""

    device: dict[str, Any]
    links: cuda_comm.Links | None = None
    points: dict[str, list[KernelPoint]] = field(default_factory=dict)
    issue_s: dict[str, dict[str, float]] = field(default_factory=dict)


def calibrate_cuda(
    path: Path,
    base: str,
    kernels: Sequence[str] = ("compiled",),
    progress: Progress = lambda what, done, of: None,
    every: int = 1,
) -> Path:
    """Measure this GPU under each kind of `kernels` and write its profile to `path`. `base` names the profile links
    are taken from; `every` thins the grid (tests)."""
    cuda_bench.require_gpu()
    torch.manual_seed(0)
    path_of_base = profile_path(base)
    borrowed = parse_yaml(text_of(path_of_base), str(path_of_base))
    found = _Measured(_device(), _links(progress))
    shared = [*cuda_grid.gemm_calls(), *cuda_grid.attention_calls(ATTENTION), *_memory(ANY)]
    _measure(found, ANY, "products, attention, shared operators", shared[::every], progress)
    for kind in kernels:
        _measure(found, kind, f"{kind} operators", _memory(kind)[::every], progress)
        write_profile(_profile(path, found, borrowed), path, COMMENT.format(base=base))
    return path


def _measure(found: _Measured, kind: str, what: str, calls: list[KernelCall], progress: Progress) -> None:
    bound = "eager" if kind == ANY else kind
    points = found.points.setdefault(kind, [])
    for index, point in enumerate(cuda_bench.measure(calls, bound)):
        points.append(point)
        progress(what, index, len(calls))
    found.issue_s[kind] = cuda_bench.issue_costs([point.call for point in points], bound)
    progress(what, len(calls), len(calls))


def _memory(kind: str) -> list[KernelCall]:
    """Memory-bound operators that every kind shares, or those that `kind` has for itself."""
    from kernels.registry_triton import FUSED

    own = {*POINTWISE, *FUSED}
    calls = cuda_grid.memory_calls(frozenset(POINTWISE) if kind == "compiled" else frozenset())
    return [call for call in calls if (call.op not in own if kind == ANY else call.op in own)]


def _links(progress: Progress) -> cuda_comm.Links | None:
    """What the GPUs of this machine take to talk to each other; None with one GPU."""
    gpus = torch.cuda.device_count()
    if gpus < 2:
        return None
    progress(f"collectives on {gpus} GPUs", 0, 1)
    links = cuda_comm.measure(gpus)
    progress(f"collectives on {gpus} GPUs", 1, 1)
    return links


def _device() -> dict[str, Any]:
    device = cuda_bench.require_gpu()
    return {
        "versions": {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)},
        "machine": {
            "gpu": torch.cuda.get_device_name(device),
            "units": torch.cuda.get_device_properties(device).multi_processor_count,
        },
        "probe": cuda_bench.machine_probe(),
        "sustained": measured.sustained(cuda_bench.sustained_gemm(), measured.SOURCE),
        "copies": [
            {"source": measured.SOURCE, "kind": kind, "launch_s": launch, "bytes_per_s": rate}
            for kind, launch, rate in cuda_bench.copies()
        ],
    }


def _profile(path: Path, found: _Measured, borrowed: dict[str, Any]) -> dict[str, Any]:
    """The checked profile of what has been measured so far."""
    kinds = [kind for kind in found.points if kind != ANY]
    source = {
        "kind": "measured",
        "text": f"one {found.device['machine']['gpu']}, torch {torch.__version__}, kernels: {', '.join(kinds)}; "
        "cold L2, medians between events; issue_s: best batch of each operator on its smallest shape",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    shared = found.points[ANY]
    launch_s = found.device["probe"]["launch_s"]
    data: dict[str, Any] = {
        "name": path.stem,
        "device": "cuda",
        "date": source["date"],
        **found.device,
        "sources": borrowed["sources"] | {measured.SOURCE: source},
        "gemm": _with_forms(measured.gemm_sections(_of(shared, "gemm")), borrowed["gemm"]),
        "attention": measured.attention_sections(_of(shared, "attention")),
        "memory": [entry for kind in kinds for entry in _memory_sections(found, kind)],
        "host": [
            {"source": measured.SOURCE, "kind": "*", "base_s": cuda_bench.issue_s(), "per_kernel_s": launch_s},
            {"source": measured.SOURCE, "kind": GRAPH, "base_s": 0.0, "per_kernel_s": cuda_bench.graph_node_s()},
        ],
        "allocator": {"source": measured.SOURCE, "context_bytes": cuda_bench.context_bytes()},
    }
    data["gemm"] = [_with_issue(entry, ANY, found.issue_s[ANY]) for entry in data["gemm"]]
    data["attention"] = [_with_issue(entry, ANY, found.issue_s[ANY]) for entry in data["attention"]]
    data |= {key: borrowed[key] for key in KEPT if key in borrowed}
    if found.links is not None:
        _add_links(data, found.links)
    used = {entry["source"] for part in data.values() for entry in _entries(part)}
    data["sources"] = {key: value for key, value in data["sources"].items() if key in used}
    schema.check(data, "measured profile")
    return data


def _add_links(data: dict[str, Any], links: cuda_comm.Links) -> None:
    """Measured tables in place of the borrowed ones of the same operation and ranks; host cost by kind of
    instruction."""
    text = f"{links.ranks} {data['machine']['gpu']} of one node, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, "  # type: ignore[no-untyped-call]
    text += f"torch {torch.__version__}; a row of {cuda_comm.IN_A_ROW}, medians of the slowest rank"
    data["sources"][LINKS] = data["sources"][measured.SOURCE] | {"text": text}
    own = measured.collective_sections(links.points, {}, links.ranks, LINKS)
    replaced = {(entry["op"], entry["ranks"]) for entry in own}
    kept = [entry for entry in data.get("collectives", []) if (entry["op"], entry["ranks"]) not in replaced]
    data["collectives"] = own + kept
    data["host"] += [
        {"source": LINKS, "kind": kind, "base_s": float(f"{base_s:.4g}")} for kind, base_s in links.issue_s.items()
    ]


def _memory_sections(found: _Measured, kind: str) -> list[dict[str, Any]]:
    """A kind's operators with the shared ones, so that the class's fit is of what a run of that kind executes."""
    issue_s = found.issue_s[ANY] | found.issue_s[kind]
    points = [*_of(found.points[ANY], "memory"), *found.points[kind]]
    return [_with_issue(entry, kind, issue_s) for entry in measured.memory_sections(points)]


def _with_issue(entry: dict[str, Any], kind: str, issue_s: dict[str, float]) -> dict[str, Any]:
    """The entry with the kind it holds under and its host seconds, where they were measured."""
    stated = issue_s.get(entry["op"])
    return entry | ({"kernels": kind} if kind != ANY else {}) | ({} if stated is None else {"issue_s": stated})


def _of(points: Sequence[KernelPoint], kind: str) -> list[KernelPoint]:
    return [point for point in points if kernel_class(point.call) == kind]


def _entries(part: Any) -> list[dict[str, Any]]:
    found = part if isinstance(part, list) else [part]
    return [entry for entry in found if isinstance(entry, dict) and "source" in entry]


def _with_forms(sections: list[dict[str, Any]], borrowed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured points with the base profile's form for shapes outside them (tiles and waves fit a GPU better than
    the roofline a CPU's points are fitted with), where it has one for the dtype; sigma is that of the form used."""
    forms = {entry["dtype"]: entry["form"] for entry in reversed(borrowed)}
    return [s if s["dtype"] not in forms else s | _refitted(s, forms[s["dtype"]]) for s in sections]


def _refitted(section: dict[str, Any], form: dict[str, Any]) -> dict[str, Any]:
    at = measured.gemm_at(
        tables.gemm_form(schema.GemmFormFile(**form)), section["op"], section["dtype"], section["layout"]
    )
    sigma = fits.scatter_sigma([(point[:4], point[4]) for point in section["points"]], at)
    return {"form": form, "sigma": float(f"{sigma:.4g}")}


def main() -> None:
    """Measure with a line of progress for each class."""
    parser = argparse.ArgumentParser(description="Measure one GPU into a profile.")
    parser.add_argument("--base", required=True, help="profile that links and network are taken from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kernels", nargs="+", default=["compiled"], choices=KINDS)
    parser.add_argument("--every", type=int, default=1, help="measure every N-th point only")
    chosen = parser.parse_args()

    def show(what: str, done: int, of: int) -> None:
        if done in (0, of):
            print(f"{what}: {done} of {of}", flush=True)

    print(calibrate_cuda(chosen.output, chosen.base, chosen.kernels, show, chosen.every))


if __name__ == "__main__":
    main()
