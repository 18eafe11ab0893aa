"""The mutation campaign: plans, edits of their programs that the proofs accept, and what training under one gives."""

from dataclasses import dataclass
from typing import Any

import torch

from compiler import compile_run
from plan.run import Run
from program import StepProgram
from program.proofs import ProofError, prove
from tests.program.kinds_of_edit import edited
from tests.trainer.ranks import GPT, LLAMA, make_executor, make_run

PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one rank": (LLAMA, {}),
    "tensor": (LLAMA, {"tensor_parallel": 2}),
    "sequence": (LLAMA, {"tensor_parallel": 2, "sequence_parallel": True}),
    "sequence, data": (GPT, {"tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 2}),
    "pipeline, tied, tensor": (GPT, {"tensor_parallel": 2, "pipeline_parallel": 2}),
    "interleaved": (GPT, {"pipeline_parallel": 2, "virtual_pipeline": 2, "schedule": "interleaved-1f1b"}),
    "zero 1": (LLAMA, {"data_parallel": 2, "zero_stage": 1}),
    "zero 2": (GPT, {"data_parallel": 2, "zero_stage": 2}),
    "zero 3": (GPT, {"data_parallel": 2, "zero_stage": 3}),
    "zero 3, tensor": (LLAMA, {"data_parallel": 2, "tensor_parallel": 2, "zero_stage": 3}),
    "selective": (LLAMA, {"tensor_parallel": 2, "sequence_parallel": True, "recompute": "selective"}),
    "full, pipeline": (
        GPT,
        {"tensor_parallel": 2, "recompute": "full", "sequence_parallel": True, "pipeline_parallel": 2},
    ),
    "loss chunks": (LLAMA, {"loss_chunks": 2}),
    "partitioned": (GPT, {"tensor_parallel": 2, "recompute": "full", "partition_activations": True}),
    "megatron": (
        GPT,
        {"tensor_parallel": 2, "data_parallel": 2, "sequence_parallel": True, "implementation": "megatron"},
    ),
    "deepspeed": (
        GPT,
        {"tensor_parallel": 2, "data_parallel": 2, "implementation": "deepspeed", "zero_stage": 1},
    ),
    "deepspeed, pipeline": (GPT, {"pipeline_parallel": 2, "tensor_parallel": 2, "implementation": "deepspeed"}),
    "fsdp": (GPT, {"data_parallel": 2, "zero_stage": 3, "implementation": "torch-fsdp"}),
    "fsdp, kept, tensor": (
        LLAMA,
        {"data_parallel": 2, "tensor_parallel": 2, "zero_stage": 2, "implementation": "torch-fsdp"},
    ),
    "offloaded": (GPT, {"data_parallel": 2, "zero_stage": 1, "offload": {"optimizer": "cpu"}}),
}
STEPS = 2


@dataclass(frozen=True)
class Numbers:
    """What a rank has after training."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, torch.Tensor]


def run_of(plan: str) -> Run:
    """The run of a plan: two micro-batches a step at least, four in a pipeline."""
    model, given = PLANS[plan]
    batch = 2 * given.get("data_parallel", 1) * (4 if "pipeline_parallel" in given else 2)
    return make_run(model, {"micro_batch_size": 2, "global_batch_size": batch, **given})


def verdict(plan: str, kind: str, number: int, program: StepProgram | None = None) -> str:
    """`none` where the program has no place for the edit, `accepted`, or the proof that refuses it."""
    changed = edited(kind, number, program or compile_run(run_of(plan)))
    if changed is None:
        return "none"
    try:
        prove(changed)
    except ProofError as error:
        return error.proof
    return "accepted"


def numbers(rank: int, plan: str, kind: str, number: int) -> Numbers | None:
    """Train under an edited program on this rank (`kind` empty: under the program itself)."""
    run = run_of(plan)
    program = compile_run(run)
    executor = make_executor(rank, run, (edited(kind, number, program) or program) if kind else program)
    if executor is None:
        return None
    results = [executor.step(step) for step in range(STEPS)]
    parameters = {name: weights.clone() for name, weights in executor.parameters().items()}
    executor.close()
    return Numbers([r.loss for r in results], [r.grad_norm for r in results], parameters)


def apart(one: Numbers, two: Numbers) -> float:
    """The largest relative difference of losses, norms and parameters; infinite where something is missing."""
    pairs = [*zip(one.losses + one.norms, two.losses + two.norms, strict=True)]
    worst = max(abs(a - b) / max(1.0, abs(a)) if a == a and b == b else float("inf") for a, b in pairs)
    if one.parameters.keys() != two.parameters.keys():
        return float("inf")
    for name, weights in one.parameters.items():
        worst = max(worst, float((weights - two.parameters[name]).abs().max()))
    return worst
