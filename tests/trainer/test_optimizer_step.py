"""The optimizer, on the device and on the host, against a step in fp64 from the very numbers it was given: for many
seeds, for the first step and one after it. On a GPU too: python -m pytest tests/trainer/test_optimizer_step.py -m ''
"""

import math
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

from compiler import compile_run
from plan.parallel import Offload
from plan.run import Optimizer, Run
from program import Instruction, expand
from tests.trainer.ranks import LLAMA, make_run, text
from trainer.executor import Executor
from trainer.streams import Op
from windtunnel.job import job_of

Tensor = torch.Tensor
SEEDS = 20
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])
ULP, SHARE = 2.0**-24, 8 * 2.0**-24
"""The greatest relative error of one rounding to fp32, and of the roundings in an update together."""


@dataclass
class Seen:
    """One STEP: what it read, in fp64 on the host, and the parameters it left."""

    number: int
    stats: Tensor
    gradient: Tensor
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    after: Tensor
    weight: Tensor | None = None


def watch(executor: Executor, seen: list[Seen]) -> None:
    """Keep every STEP of the executor."""
    placed = {p.id: p for p in expand(executor.mine)}

    def watched(op: Op) -> Op:
        at = placed[op.id]
        instruction: Instruction = at.instruction
        places = [executor.storage.place(at.call, ref) for ref in instruction.reads]

        def run() -> None:
            tensors = [executor.storage.tensor(place) for place in places]
            stats, *state = (t.detach().to("cpu", torch.float64, copy=True) for t in tensors)
            op.run()
            weight = tensors[5].to("cpu", copy=True) if len(tensors) > 5 else None
            seen.append(Seen(executor.context.state.step, stats, *state[:4], tensors[2].cpu().clone(), weight))

        return replace(op, run=run) if instruction.kind == "STEP" else op

    executor.ops = [watched(op) for op in executor.ops]


def in_fp64(at: Seen, optimizer: Optimizer, lr: float, decays: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """(parameters after AdamW as Loshchilov and Hutter (2019) write it, what a rounding to fp32 may do to each: to the
    parameter, to its decay, and to the two terms of the update, which may cancel)."""
    norm = math.sqrt(float(at.stats[0]))
    g = at.gradient * min(1.0, optimizer.clip_norm / (norm + 1e-6))
    (b1, b2), t = optimizer.betas, at.number + 1
    m, v = b1 * at.exp_avg + (1 - b1) * g, b2 * at.exp_avg_sq + (1 - b2) * g * g
    per_gradient = lr / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + optimizer.eps)
    update, terms = per_gradient * m, per_gradient * ((b1 * at.exp_avg).abs() + ((1 - b1) * g).abs())
    decay = torch.zeros_like(update)
    for first, last in decays:
        decay[first:last] = optimizer.weight_decay
    want = at.master * (1 - lr * decay) - update
    return want, ULP * (2 * at.master.abs() + want.abs()) + SHARE * terms


def worst(run: Run, device: str) -> float:
    """The greatest error of a parameter after one step, in the error that fp32 allows; two steps are looked at."""
    executor = Executor(compile_run(run), job_of(run), 0, {}, text(run), device)
    seen: list[Seen] = []
    watch(executor, seen)
    found = 0.0
    assert len(executor.mine.buckets) == 1
    for step in range(2):
        executor.step(step)
        context = executor.context
        stretches = [(p.offset, p.offset + p.local_numel) for p in executor.mine.params if p.decay]
        want, allowed = in_fp64(seen[-1], run.optimizer, context.state.lr, stretches)
        found = max(found, float(((seen[-1].after.double() - want).abs() / allowed.clamp_min(1e-30)).max()))
        if (weight := seen[-1].weight) is not None:
            assert torch.equal(weight, seen[-1].after.to(weight.dtype))
    assert [at.number for at in seen] == [0, 1]
    executor.close()
    return found


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("where", ["device", "host"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_is_the_fp64_step_to_fp32_rounding(precision: str, where: str, device: str) -> None:
    found = []
    for seed, kernels in product(range(SEEDS), ("eager", "triton") if device == "cuda" else ("eager",)):
        # torch's fused attention takes no fp32 on a GPU
        plan = {"precision": precision, "zero_stage": 1, "attention": "unfused", "global_batch_size": 2}
        run = make_run(LLAMA | {"layers": 1}, plan)
        run = replace(run, train=replace(run.train, seed=seed), plan=replace(run.plan, kernels=kernels))
        if where == "host":
            run = replace(run, plan=replace(run.plan, offload=Offload(optimizer="cpu")))
        found.append(worst(run, device))
    print(f"{precision} on the {where} ({device}): worst error of {SEEDS} seeds {max(found):.2f} of what is allowed")
    assert max(found) < 1.0
