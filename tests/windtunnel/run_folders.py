"""A profile with round numbers, and run folders whose "measurement" is a simulation with another profile: what a
comparison must then say is known exactly."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from calibration.profile import load_profile
from plan.run import load
from program.timeline import Timeline, save
from windtunnel import api

TEXT = "round numbers for tests"


def profile_file(path: Path, gemm_flops_per_s: float = 1e10, bus_bytes_per_s: float = 1e9, **more: Any) -> Path:
    """Write a CPU profile: GEMMs at a rate, memory at 10 GB/s, collectives at a bandwidth, a host that costs 1 µs."""
    source = {"source": "test", "sigma": 0.1}
    attention = {"launch_s": 1e-5, "flops_per_s": 5e9}
    data: dict[str, Any] = {
        "name": "test", "device": "cpu", "sources": {"test": {"kind": "measured", "text": TEXT}},
        "gemm": [source | {"form": {"launch_s": 1e-5, "flops_per_s": gemm_flops_per_s, "bytes_per_s": 1e10}}],
        "attention": [source | {"op": op, "form": attention} for op in ("attention_forward", "attention_backward")],
        "memory": [source | {"op": "*", "launch_s": 5e-6, "bytes_per_s": 1e10}],
        "collectives": [
            source | {"op": op, "ranks": 2, "step_latency_s": 1e-4, "bus_bytes_per_s": bus_bytes_per_s}
            for op in ("all_reduce", "all_gather", "reduce_scatter", "send")
        ],
        "host": [source | {"kind": "*", "base_s": 1e-6}],
        "cores": {"source": "test", "cores": 16, "communication_demand": 0.5},
        "allocator": {"round_bytes": 64, "segment_round_bytes": 4096, "context_bytes": 2**20},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(data | more))
    return path


def run_folder(folder: Path, run: dict[str, Any], profile: Path, real: Path | None = None, steps: int = 8) -> Path:
    """A run folder as training leaves it, "measured" by simulating `run` with the profile `real`; its header names
    `profile`."""
    (folder / "timeline").mkdir(parents=True)
    resolved = load(run, [f"cluster.profile={profile}"])
    (folder / "run.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(resolved.to_dict()))))
    simulated = api.simulate(resolved, profile=load_profile(str(real or profile)), unfold=True)
    timeline = simulated.timeline()
    header = replace(timeline.header, source="measured", device="a machine", stands_for={}, run=resolved.to_dict())
    save(Timeline(header, timeline.columns, timeline.words), folder / "timeline" / "step-000007.json.gz")
    step = {"loss": 5.0, "step_time_s": simulated.simulation.step_time_s}
    (folder / "steps.jsonl").write_text("".join(json.dumps({"step": n, **step}) + "\n" for n in range(steps)))
    return folder
