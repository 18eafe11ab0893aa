"""A step captured as a graph and replayed trains as one that is issued instruction by instruction, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from compiler import compile_run
from plan.run import Run
from program import expand
from tests.trainer.fake_cuda import Device, OnStreams, install
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, LLAMA, make_executor, make_run, text
from tests.trainer.test_cuda_issue import LAYOUTS, instructions
from trainer.executor import Executor, StepResult
from trainer.feed import Feed
from trainer.graphs_cuda import WARM_STEPS, StepGraphs, capturable
from trainer.streams import StreamError
from windtunnel.job import job_of

STEPS = WARM_STEPS + 4
RECORDED = (1, WARM_STEPS + 1, WARM_STEPS + 3)


def graphed(run: Run) -> Run:
    return replace(run, plan=replace(run.plan, cuda_graph=True))


def trained(executor: Executor) -> tuple[list[StepResult], dict[str, torch.Tensor]]:
    results = [executor.step(step, step in RECORDED) for step in range(STEPS)]
    weights = {name: weight.clone() for name, weight in executor.parameters().items()}
    executor.close()
    return results, weights


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (LLAMA, {}),
        (GPT, {"recompute": "full"}),
        (LLAMA, {"attention": "unfused", "recompute": "selective", "zero_stage": 1}),
        (GPT, {"loss_chunks": 2}),
        (LLAMA, {"zero_stage": 1, "offload": {"optimizer": "cpu"}}),
        ({**GPT, "dropout": 0.1, "attention_dropout": 0.1}, {"attention": "unfused"}),
    ],
    ids=["plain", "recompute", "selective", "chunks", "offload", "dropout"],
)
def test_replayed_steps_are_the_issued_ones(
    monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], plan: dict[str, Any]
) -> None:
    run = make_run(model, plan)
    expected, weights = trained(Executor(compile_run(run), job_of(run), 0, {}, text(run)))
    device = install(monkeypatch)
    executor = OnStreams(compile_run(graphed(run)), job_of(run), 0, {}, text(run))
    results, found = trained(executor)
    assert [(r.loss, r.grad_norm) for r in results] == [(r.loss, r.grad_norm) for r in expected]
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert device.asked["replay"] == 2 * (STEPS - WARM_STEPS)  # a short graph and a long one
    assert device.asked["reset"] == 4  # NCCL would wait for a graph that still holds a communicator
    assert executor.storage.allocated() == 0
    for step, result in enumerate(results):
        assert set(result.stamps) == ({op.id for op in executor.ops} if step in RECORDED else set())


def test_the_rest_of_a_step_runs_after_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    device = install(monkeypatch)
    run = make_run(LLAMA, {"zero_stage": 1, "offload": {"optimizer": "cpu"}})
    executor = OnStreams(compile_run(graphed(run)), job_of(run), 0, {}, text(run))
    graphs = executor.graphs
    assert graphs is not None
    late: list[str] = []

    def watched(op: Any) -> Any:
        def body() -> None:
            before = device.host if op.stream == "cpu" else device.run()  # whose work is the host's own
            if device.replayed and any(before.get(s, 0) < count for s, count in device.replayed.items()):
                late.append(op.label)
            op.run()

        return replace(op, run=body)

    graphs.ops = [watched(op) for op in executor.ops]
    for step in range(STEPS):
        device.replayed = {}
        executor.step(step)
    rest = {op.stream for op in graphs.ops[graphs.count :]}
    assert {"compute", "cpu", "h2d"} <= rest
    assert late == []


def test_what_the_host_decides_is_not_captured() -> None:
    """The optimizer's numbers change from step to step; the reading of the loss waits."""
    for plan in ({}, {"zero_stage": 1, "offload": {"optimizer": "cpu"}}, {"launch_blocking": True}):
        instructions = [p.instruction for p in expand(compile_run(make_run(LLAMA, plan)).classes[0])]
        count = capturable(instructions)
        assert all(i.kind not in ("STEP", "LOSS") and i.stream != "cpu" for i in instructions[:count])
        first = instructions[count]
        assert first.kind == "STEP" or first.stream == "cpu" or first.host_sync
        assert (count == 0) == ("launch_blocking" in plan)


def losses(rank: int, run: Run) -> list[float] | None:
    """Train on this rank of the pool, with graphs where the plan says so."""
    with pytest.MonkeyPatch.context() as patch:
        kind: type[Executor] = Executor
        if run.plan.cuda_graph:
            install(patch)
            kind = OnStreams
        executor = make_executor(rank, run, kind=kind)
        return None if executor is None else [result.loss for result in trained(executor)[0]]


@pytest.mark.parametrize(
    "plan",
    [
        {"tensor_parallel": 2, "sequence_parallel": True},
        {"pipeline_parallel": 2, "zero_stage": 1, "data_parallel": 2},
        {"data_parallel": 2, "zero_stage": 3},
    ],
    ids=["tp2", "pp2-dp2", "zero3"],
)
def test_collectives_are_replayed_too(pool: Pool, plan: dict[str, Any]) -> None:
    run = make_run(LLAMA | {"layers": 2}, plan | {"global_batch_size": 4 * plan.get("data_parallel", 1)})
    expected = [found for found in pool.run(losses, run) if found is not None]
    found = [found for found in pool.run(losses, graphed(run)) if found is not None]
    assert found == expected
    assert len(found) == run.plan.world


def test_a_capture_that_fails_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Device = install(monkeypatch)
    run = make_run(LLAMA, {})
    executor = OnStreams(compile_run(graphed(run)), job_of(run), 0, {}, text(run))
    graphs = executor.graphs
    assert graphs is not None

    def fail() -> None:
        if device.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    graphs.ops = [replace(graphs.ops[0], run=fail), *graphs.ops[1:]]
    for step in range(WARM_STEPS):
        executor.step(step)
    with pytest.raises(StreamError, match=r"rank 0: the step could not be captured .*not permitted.*cuda_graph: false"):
        executor.step(WARM_STEPS)
    assert device.capturing is not None
    device.capturing.tape.__exit__(None, None, None)


@pytest.mark.parametrize("layout", ["tp", "dp", "pp"])
def test_the_device_begins_while_the_host_launches(layout: str) -> None:
    """A short graph first, unless transfers are received ahead: streams join between two graphs."""
    ops = instructions(LAYOUTS[layout])
    nothing: Any = None
    parts = StepGraphs(nothing, ops, 100, nothing, nothing)._parts()
    assert [op for part in parts for op in part] == ops[:100]
    assert [len(part) for part in parts] == ([100] if layout == "pp" else [12, 88])


def test_ids_are_read_once_and_ahead() -> None:
    """Tokens and targets of a micro-batch from one reading; kept buffers stay where they are."""
    asked: list[tuple[int, tuple[int, ...]]] = []

    class Counted:
        def batch(self, step: int, samples: tuple[int, ...]) -> torch.Tensor:
            asked.append((step, samples))
            return torch.arange(len(samples) * 5).view(len(samples), 5) + 100 * step

    feed = Feed(Counted(), lambda micro: (2 * micro, 2 * micro + 1), 4, keeps=True, pinned=False)
    tokens, targets = feed.ids(0, 3, 0), feed.ids(0, 3, 1)
    assert tokens.tolist() == [0, 5, 1, 6, 2, 7, 3, 8]
    assert targets.tolist() == [1, 6, 2, 7, 3, 8, 4, 9]
    feed.read_ahead(1)
    assert tokens[0] == 0
    feed.refill(1)
    assert tokens[0] == 100
    assert targets[0] == 101
    assert asked == [(0, (6, 7)), (1, (6, 7))]
