"""Measures every kernel beside eager PyTorch, torch.compile and Liger, as a share of the copy bandwidth of the same
run.

    python -m tools.bench [GROUP ...] [--json FILE] [--no-peers]

Prints one line a contestant: time (median), share of the copy bandwidth (or TFLOP/s), the target and whether it is
met; then host and device time of small calls. The JSON holds the same with 20th and 80th percentiles, bytes, versions
and the git revision; the one of record is calibration/measured/h200-kernels.json. Method: calibration/timing.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config as functorch_config

from calibration.timing import Time, copy_tb_s, host_us, kernel_ms
from kernels.launch import HAS_TRITON, triton
from tools.bench_case import PEERS, Case, peak_gib
from tools.bench_cases import GROUPS
from tools.bench_host import small_calls, warm_ms

HOST_TARGET_US = 40.0


def timed(case: Case) -> dict[str, Time]:
    """Each contestant's time: quantiles, or their medians over the rounds; without those that found no memory."""
    found: dict[str, list[Time]] = {who: [] for who in case.calls}
    for _ in range(case.rounds):
        for who in list(found):
            torch.cuda.synchronize()
            try:
                found[who].append(kernel_ms(case.calls[who], budget_ms=case.budget_ms / case.rounds))
            except torch.OutOfMemoryError:
                print(f"  {case.name} {case.shape} {who}: out of memory")
                del found[who]
    middle = statistics.median
    return {
        who: Time(middle(t.p20_ms for t in times), middle(t.p50_ms for t in times), middle(t.p80_ms for t in times))
        for who, times in found.items()
    }


def measure(case: Case, copy: float) -> list[dict[str, Any]]:
    """One row a contestant of `case`."""
    return [_row(case, copy, who, time) for who, time in timed(case).items()]


def _row(case: Case, copy: float, who: str, time: Time) -> dict[str, Any]:
    row: dict[str, Any] = {
        "operator": case.name, "shape": case.shape, "who": who,
        "p20_ms": time.p20_ms, "p50_ms": time.p50_ms, "p80_ms": time.p80_ms, **case.notes,
    }  # fmt: skip
    if case.bytes:
        bandwidth = case.bytes / time.p50_ms / 1e9
        row |= {"bytes": case.bytes, "tb_s": bandwidth, "of_copy": bandwidth / copy}
    if case.flops:
        row |= {"flops": case.flops, "tflops": case.flops / time.p50_ms / 1e9}
    if case.memory:
        row["peak_gib"] = peak_gib(case.calls[who])
    if case.target is not None and who.startswith("ours"):
        met = time.p50_ms <= case.target if case.target_ms else row["of_copy"] >= case.target
        row |= {"target": case.target, "target_unit": "ms" if case.target_ms else "of copy", "met": bool(met)}
    return row


def show(row: dict[str, Any]) -> str:
    """One line of the table."""
    speed = f"{row['of_copy']:6.1%} of copy" if "of_copy" in row else f"{row.get('tflops', 0.0):6.0f} TFLOP/s"
    memory = f"  {row['peak_gib']:6.2f} GiB" if "peak_gib" in row else ""
    verdict = ""
    if "target" in row:
        target = f"{row['target']:.0f} ms" if row["target_unit"] == "ms" else f"{row['target']:.0%}"
        verdict = f"  target {target}: {'met' if row['met'] else 'MISSED'}"
    return (
        f"{row['operator']:34s} {row['shape']:34s} {row['who']:22s} {row['p50_ms']:9.4f} ms  {speed}{memory}{verdict}"
    )


def environment() -> dict[str, Any]:
    """Device and versions; the git revision when there is one."""
    try:
        revision = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        revision = "unknown"
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "device": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(), "revision": revision,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}, host (default: all)")
    parser.add_argument("--json", type=Path, help="write the measurements here")
    parser.add_argument("--no-peers", action="store_true", help="measure only our kernels")
    parser.add_argument("--revision", default="", help="git revision to record where the checkout has none")
    options = parser.parse_args(arguments)
    unknown = set(options.groups) - {*GROUPS, "host"}
    if unknown:
        parser.error(f"unknown group {', '.join(sorted(unknown))}; accepted: {', '.join(GROUPS)}, host")
    if not (torch.cuda.is_available() and HAS_TRITON):
        print(
            "tools.bench needs a CUDA device and triton; `windtunnel calibrate` measures the references on a CPU",
            file=sys.stderr,
        )
        return 2
    functorch_config.donated_buffer = False  # the peers' backwards are timed on a retained graph
    PEERS[0] = not options.no_peers
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "environment": environment(), "copy_tb_s": copy_tb_s(), "rows": [], "small_calls": [],
    }  # fmt: skip
    if options.revision:
        result["environment"]["revision"] = options.revision
    print(f"{result['environment']['device']}, copy {result['copy_tb_s']:.3f} TB/s (read + written)")

    for group in [g for g in GROUPS if not options.groups or g in options.groups]:
        run_group(group, result)
        save(result, options.json)
    if not options.groups or "host" in options.groups:
        run_small_calls(result)
        save(result, options.json)
    return 0


def run_group(group: str, result: dict[str, Any]) -> None:
    """Measure the cases of one group, print them and add them to `result`."""
    for case in GROUPS[group]():
        for row in measure(case, result["copy_tb_s"]):
            result["rows"].append(row)
            print(show(row), flush=True)
        case.calls.clear()
        gc.collect()
        torch.cuda.empty_cache()


def run_small_calls(result: dict[str, Any]) -> None:
    """The same for host and device time of small calls. Names in brackets are there to compare with."""
    for name, call in small_calls().items():
        device_us, issue_us = warm_ms(call) * 1e3, host_us(call)
        row = {"operator": name, "host_us": issue_us, "device_us": device_us, "target_host_us": HOST_TARGET_US}
        result["small_calls"].append(row)
        met = "met" if issue_us <= HOST_TARGET_US else "MISSED"
        verdict = "" if name.startswith("(") else f"  target {HOST_TARGET_US:.0f} us: {met}"
        print(f"small call: {name:30s} host {issue_us:6.1f} us  device {device_us:6.2f} us{verdict}", flush=True)


def save(result: dict[str, Any], path: Path | None) -> None:
    """Write what there is so far, where a file is asked for."""
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
