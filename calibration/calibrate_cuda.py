"""`windtunnel calibrate --device cuda`: measure one GPU into a profile.

Kernels, copies, host cost and context are measured; what one GPU cannot show (links, network, contention) is taken from
a base profile of the same kind of GPU, source by source, so that every number still says where it comes from.

    python -m calibration.calibrate_cuda --base h200-published --output h200.yaml
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from calibration import cuda_bench, cuda_grid, measured, schema
from calibration.microbench import KernelPoint
from calibration.profile import profile_path
from calibration.write import write_profile
from kernels.registry import POINTWISE
from plan.program import KernelCall

Progress = Callable[[str, int, int], None]
KEPT = ("network", "collectives", "contention", "cores")
ATTENTION = ("flash", "cudnn")


def calibrate_cuda(
    path: Path, base: str, kernels: str = "compiled", progress: Progress = lambda what, done, of: None, every: int = 1
) -> Path:
    """Measure this GPU under `kernels` and write its profile to `path`. `base` names the profile links are taken from;
    `every` thins the grid (tests)."""
    device = cuda_bench.require_gpu()
    torch.manual_seed(0)
    borrowed = yaml.safe_load(Path(profile_path(base)).read_text(encoding="utf-8"))
    name = torch.cuda.get_device_name(device)
    host_base_s, host_kernel_s = cuda_bench.host_costs(kernels)
    points = {what: _points(what, calls[::every], kernels, progress) for what, calls in _grid(kernels).items()}
    source = {
        "kind": "measured",
        "text": f"one {name}, torch {torch.__version__}, kernels: {kernels}; cold L2, medians between events",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    data: dict[str, Any] = {
        "name": path.stem,
        "device": "cuda",
        "date": source["date"],
        "versions": {"torch": str(torch.__version__), "cuda": str(torch.version.cuda), "kernels": kernels},
        "machine": {"gpu": name, "units": torch.cuda.get_device_properties(device).multi_processor_count},
        "probe": cuda_bench.machine_probe(),
        "sources": borrowed["sources"] | {measured.SOURCE: source},
        "gemm": _with_forms(measured.gemm_sections(points["GEMM"]), borrowed["gemm"]),
        "attention": measured.attention_sections(points["attention"]),
        "memory": measured.memory_sections(points["memory-bound operators"]),
        "copies": [
            {"source": measured.SOURCE, "kind": kind, "launch_s": launch, "bytes_per_s": rate}
            for kind, launch, rate in cuda_bench.copies()
        ],
        "host": [{"source": measured.SOURCE, "kind": "*", "base_s": host_base_s, "per_kernel_s": host_kernel_s}],
        "allocator": {"source": measured.SOURCE, "context_bytes": cuda_bench.context_bytes()},
    }
    data |= {key: borrowed[key] for key in KEPT if key in borrowed}
    used = {entry["source"] for part in data.values() for entry in _entries(part)}
    data["sources"] = {key: value for key, value in data["sources"].items() if key in used}
    schema.check(data, "measured profile")
    write_profile(data, path, f"Measured by `windtunnel calibrate --device cuda`; links and network from `{base}`.")
    return path


def _entries(part: Any) -> list[dict[str, Any]]:
    found = part if isinstance(part, list) else [part]
    return [entry for entry in found if isinstance(entry, dict) and "source" in entry]


def _grid(kernels: str) -> dict[str, list[KernelCall]]:
    compiled = frozenset(POINTWISE) if kernels == "compiled" else frozenset[str]()
    return {
        "GEMM": cuda_grid.gemm_calls(),
        "attention": cuda_grid.attention_calls(ATTENTION),
        "memory-bound operators": cuda_grid.memory_calls(compiled),
    }


def _points(what: str, calls: list[KernelCall], kernels: str, progress: Progress) -> list[KernelPoint]:
    points = []
    for index, point in enumerate(cuda_bench.measure(calls, kernels)):
        points.append(point)
        progress(what, index, len(calls))
    progress(what, len(calls), len(calls))
    return points


def _with_forms(sections: list[dict[str, Any]], borrowed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured points with the base profile's form for shapes outside them (tiles and waves fit a GPU better than
    the roofline a CPU's points are fitted with), where it has one for the dtype."""
    forms = {entry["dtype"]: entry["form"] for entry in reversed(borrowed)}
    return [s | {"form": forms.get(s["dtype"], s["form"])} for s in sections]


def main() -> None:
    """Measure with a line of progress for each class."""
    parser = argparse.ArgumentParser(description="Measure one GPU into a profile.")
    parser.add_argument("--base", required=True, help="profile that links and network are taken from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kernels", default="compiled", choices=("eager", "compiled", "triton"))
    parser.add_argument("--every", type=int, default=1, help="measure every N-th point only")
    chosen = parser.parse_args()

    def show(what: str, done: int, of: int) -> None:
        if done in (0, of):
            print(f"{what}: {done} of {of}", flush=True)

    print(calibrate_cuda(chosen.output, chosen.base, chosen.kernels, show, chosen.every))


if __name__ == "__main__":
    main()
