"""The executor on two GPUs over NCCL: four layouts of a 1.2 B Llama against each other and, in small, against the CPU.

python -m pytest tests/gpu/test_two_gpus.py -m gpu
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from program.timeline import Timeline
from program.timeline import load as load_timeline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

SMALL: dict[str, Any] = {
    "layers": 4, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 704, "vocab": 256, "seq_length": 256,
    "vocab_multiple": 64, "activation": "swiglu", "norm": "rmsnorm", "positions": "rotary", "tied_embeddings": False,
    "bias": False,
}  # fmt: skip
LARGE = SMALL | {
    "layers": 16,
    "hidden": 2048,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 8192,
    "vocab": 32768,
    "seq_length": 4096,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2-sp": {"tensor_parallel": 2, "sequence_parallel": True, "kernels": "eager"},
    "pp2": {"pipeline_parallel": 2, "kernels": "eager"},
    "dp2": {"data_parallel": 2, "kernels": "eager"},
    "tp2-sp-compiled": {"tensor_parallel": 2, "sequence_parallel": True, "kernels": "compiled"},
}


def train(folder: Path, model: dict[str, Any], plan: dict[str, Any], cluster: Any, steps: int) -> list[dict[str, Any]]:
    """Run `windtunnel train` and return its steps."""
    run = {
        "model": model,
        "cluster": cluster,
        "plan": {"zero_stage": 0, "micro_batch_size": 1, "global_batch_size": 4, **plan},
        "optimizer": {
            "lr": 1e-3,
            "schedule": {"kind": "cosine", "warmup_steps": 5, "decay_steps": 100, "min_lr": 1e-4},
        },
        "train": {"steps": steps},
    }
    path = folder / "run.yaml"  # JSON is YAML
    path.write_text(json.dumps(run), encoding="utf-8")
    target = folder / "out"
    command = [sys.executable, "-m", "windtunnel", "train", str(path), "--output", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in (target / "steps.jsonl").read_text(encoding="utf-8").splitlines()]


GPUS = {"preset": "dgx-h200", "gpus": 2}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The small model on one CPU process, in fp32."""
    return train(tmp_path_factory.mktemp("cpu"), SMALL, {"precision": "fp32"}, "cpu", 12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_losses_are_those_of_the_cpu(tmp_path: Path, layout: str, reference: list[dict[str, Any]]) -> None:
    found = train(tmp_path, SMALL, LAYOUTS[layout] | {"precision": "bf16"}, GPUS, 12)
    assert all(abs(a["loss"] - b["loss"]) < 3e-2 for a, b in zip(found, reference, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_model_trains(tmp_path: Path, layout: str) -> None:
    steps = train(tmp_path, LARGE, LAYOUTS[layout] | {"precision": "bf16"}, GPUS, 12)
    assert steps[-1]["loss"] < steps[0]["loss"]
    if layout.startswith("tp2"):
        recorded = sorted((tmp_path / "out" / "timeline").glob("*.rank-0000.json.gz"))[-1]
        assert _beside(load_timeline(recorded)) > 0


def _beside(timeline: Timeline) -> int:
    """How many reduce-scatters or gathers of the tp stream overlap a weight gradient in time."""
    rows = list(timeline.rows())
    moves = [r for r in rows if r.stream == "tp" and r.kind in ("RS", "AG")]
    weights = [r for r in rows if r.kind == "W"]
    return sum(any(m.start_s < w.end_s and w.start_s < m.end_s for w in weights) for m in moves)
