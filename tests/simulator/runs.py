"""Small runs to fly: a tiny Llama or GPT on a cluster of small nodes."""

from __future__ import annotations

from typing import Any

from plan.compile import compile_run
from plan.program import StepProgram
from plan.run import Run, load

MODEL = {
    "layers": 4, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn": 2048, "vocab": 1024, "seq_length": 256, "tied_embeddings": False,
}  # fmt: skip
CLUSTER = {"preset": "dgx-a100-80gb", "gpus_per_node": 4}


def small(plan: dict[str, Any], cluster: dict[str, Any] | str | None = None, **model: Any) -> tuple[StepProgram, Run]:
    """Program and run of a small model under a plan."""
    plan = {"micro_batch_size": 1, "zero_stage": 0, **plan}
    world = plan.get("tensor_parallel", 1) * plan.get("pipeline_parallel", 1) * plan.get("data_parallel", 1)
    where = cluster if isinstance(cluster, str) else {**CLUSTER, "gpus": world, **(cluster or {})}
    run = load({"model": MODEL | model, "cluster": where, "plan": plan})
    return compile_run(run), run
