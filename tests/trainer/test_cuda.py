"""On a GPU: every choice of kernels trains as the CPU reference, to bf16 tolerance; each instruction is stamped."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from compiler import compile_run
from plan.parallel import Offload
from plan.run import Run
from tests.trainer.ranks import GPT, LLAMA, make_run, text
from trainer.executor import Executor, StepResult
from windtunnel.job import job_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
STEPS = 8
WIDE = {"hidden": 256, "heads": 4, "head_dim": 64, "seq_length": 128}


def _train(run: Run, device: str) -> tuple[Executor, list[StepResult]]:
    program = compile_run(run)
    executor = Executor(program, job_of(run), 0, {}, text(run), device)
    return executor, [executor.step(step, record=step == STEPS - 1) for step in range(STEPS)]


@pytest.mark.parametrize("kernels", ["eager", "compiled", "triton"])
@pytest.mark.parametrize("model", [LLAMA, GPT, GPT | {"dropout": 0.1}], ids=["llama", "gpt", "dropout"])
def test_losses_equal_the_cpu_reference_to_bf16_tolerance(model: dict[str, Any], kernels: str) -> None:
    run = make_run(model | WIDE, {"precision": "bf16", "recompute": "full"})
    run = replace(run, plan=replace(run.plan, kernels=kernels))
    _, expected = _train(replace(run, plan=replace(run.plan, kernels="eager")), "cpu")
    executor, results = _train(run, "cuda")
    assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=5e-3)
    assert set(results[-1].stamps) == {op.id for op in executor.ops}
    assert all(s.issued_s <= s.start_s <= s.end_s for s in results[-1].stamps.values())
    assert executor.storage.allocated() == 0


WINDOWED = LLAMA | {"window": {"size": 48, "full_every": 2}, "qk_norm": "head", "norm_place": "both"}
PARALLEL = GPT | {"positions": "rotary", "tied_embeddings": False, "parallel_residual": True, "activation": "relu2"}
CAPPED = LLAMA | {"attention_softcap": 20.0, "logit_softcap": 10.0, "activation": "geglu", "embedding_scale": 4.0}


@pytest.mark.parametrize("kernels", ["eager", "compiled", "triton"])
@pytest.mark.parametrize("model", [WINDOWED, PARALLEL, CAPPED], ids=["windowed", "parallel", "capped"])
def test_other_families_equal_the_cpu_reference(model: dict[str, Any], kernels: str) -> None:
    run = make_run(model | WIDE, {"precision": "bf16"})
    run = replace(run, plan=replace(run.plan, kernels=kernels))
    _, expected = _train(replace(run, plan=replace(run.plan, kernels="eager")), "cpu")
    executor, results = _train(run, "cuda")
    assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=1e-2)
    assert executor.storage.allocated() == 0


@pytest.mark.parametrize("kernels", ["eager", "compiled", "triton"])
@pytest.mark.parametrize("chunks", [1, 4])
def test_fp16_under_a_loss_scale_equals_the_cpu_reference(chunks: int, kernels: str) -> None:
    """From a scale that overflows at first: the same steps are left out, and fp32's losses follow with as many."""
    scale = {"initial": 2**34, "hysteresis": 1, "factor": 2**10}
    run = make_run(LLAMA | WIDE, {"precision": "fp16", "loss_scale": scale, "loss_chunks": chunks})
    run = replace(run, plan=replace(run.plan, kernels=kernels))
    _, expected = _train(replace(run, plan=replace(run.plan, kernels="eager")), "cpu")
    _, results = _train(run, "cuda")
    assert [r.overflow for r in results] == [r.overflow for r in expected]
    assert results[0].overflow
    assert not results[-1].overflow
    assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=1e-2)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 5e-3)])
def test_the_host_steps_as_the_device_does(precision: str, tolerance: float) -> None:
    """Optimizer state in pinned host memory: the same losses, copies on their streams, the host's step in between. The
    steps themselves are held to fp64 in test_optimizer_step.py; here a last digit of a weight may round to another
    bf16, so losses differ as those of any two bf16 runs. Unfused: torch's fused attention takes no fp32 on CUDA."""
    run = make_run(LLAMA | WIDE, {"precision": precision, "zero_stage": 1, "attention": "unfused"})
    offloaded = replace(run, plan=replace(run.plan, offload=Offload(optimizer="cpu")))
    _, expected = _train(run, "cuda")
    executor, results = _train(offloaded, "cuda")
    assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=tolerance)
    streams = {op.id: op.stream for op in executor.ops}
    assert {streams[i] for i in results[-1].stamps} == {"compute", "d2h", "cpu", "h2d"}
    last_step = max(s.end_s for i, s in results[-1].stamps.items() if streams[i] == "cpu")
    assert last_step <= max(s.end_s for i, s in results[-1].stamps.items() if streams[i] == "h2d")


@pytest.mark.parametrize("kernels", ["eager", "compiled", "triton"])
def test_a_replayed_step_trains_as_an_issued_one(kernels: str) -> None:
    """A graph of the step, plain and recorded: the same losses, every instruction stamped, in stream order."""
    run = make_run(LLAMA | WIDE, {"precision": "bf16", "recompute": "full"})
    run = replace(run, plan=replace(run.plan, kernels=kernels))
    _, expected = _train(run, "cuda")
    executor, results = _train(replace(run, plan=replace(run.plan, cuda_graph=True)), "cuda")
    assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=1e-3)
    assert set(results[-1].stamps) == {op.id for op in executor.ops}
    ordered = [results[-1].stamps[op.id] for op in executor.ops]
    assert all(a.end_s <= b.start_s + 1e-6 for a, b in pairwise(ordered))
    assert all(s.issued_s <= s.start_s <= s.end_s for s in ordered)
    assert executor.storage.allocated() == 0
