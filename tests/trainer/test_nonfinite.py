"""A loss or gradient norm that is not finite ends the run, leaves the step's update out, or is nobody's business; and
token ids that are none are refused before they are read."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from compiler import compile_run
from kernels.reference_loss import adamw, not_finite
from kernels.registry_triton import adamw as adamw_triton
from plan.run import Run
from program import expand
from program.errors import InputError, WindtunnelError
from tests.trainer.fake_cuda import OnStreams, install
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, LLAMA, make_executor, make_run, text
from trainer.data import TokenFile
from trainer.executor import Executor
from trainer.graphs_cuda import WARM_STEPS
from trainer.nonfinite import Finding, NotFinite, explain, first_of_all
from trainer.run import _leave_out
from trainer.storage import share_of
from windtunnel.job import job_of
from windtunnel.training import launch

Tensor = torch.Tensor
TWO: dict[str, Any] = {"layers": 2}


def run_of(model: dict[str, Any], plan: dict[str, Any], nonfinite: str = "stop", clip: float = 0.0) -> Run:
    """A tiny run without clipping, unless asked."""
    run = make_run(model | TWO, {"precision": "fp32"} | plan, train={"nonfinite": nonfinite})
    return replace(run, optimizer=replace(run.optimizer, clip_norm=clip))


def held(executor: Executor) -> list[Tensor]:
    """A copy of everything the optimizer changes on this rank. (Under ZeRO the weights' other shares come with the next
    gather.)"""
    copies = []
    for bucket in executor.mine.buckets:
        share = share_of(bucket, executor.context.coords.dp)
        for number in (bucket.weight_buffer, bucket.master_buffer, bucket.exp_avg_buffer, bucket.exp_avg_sq_buffer):
            flat = executor.storage.tensor(number)
            copies.append(flat[share].clone() if flat.numel() == bucket.numel else flat.clone())
    return copies


def poison(executor: Executor, label: str) -> None:
    """From now on the instruction leaves an infinity in the first element of what it wrote."""
    (at,) = (i for i, op in enumerate(executor.ops) if op.label == label)
    placed = next(p for p in expand(executor.mine) if p.id == executor.ops[at].id)
    place = executor.storage.place(placed.call, placed.instruction.writes[0])
    run = executor.ops[at].run

    def spoiled() -> None:
        run()
        executor.storage.tensor(place).view(-1)[0] = math.inf

    executor.ops[at] = replace(executor.ops[at], run=spoiled)


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(before, after, strict=True))


def broken_step(rank: int, run: Run, where: int, label: str) -> tuple[bool, list[int], str] | None:
    """On this rank of the pool: a good step, one broken by an infinity on rank `where`; whether it changed nothing, how
    many steps were left out, and what was found."""
    executor = make_executor(rank, run)
    if executor is None:
        return None
    good = executor.step(0)
    before = held(executor)
    clean = executor.ops[:]
    if rank == where:
        poison(executor, label)
    bad = executor.step(1)
    kept = same(before, held(executor))
    text_ = _explained(executor, bad, run.plan.world)
    kept = kept and same(before, held(executor))
    executor.ops = clean
    again = executor.step(2)
    executor.close()
    return kept and again.finite, [good.skipped, bad.skipped, again.skipped], text_


def _explained(executor: Executor, result: Any, world: int) -> str:
    """`explain`, over the run's ranks where the pool has more."""
    with pytest.MonkeyPatch.context() as patch:
        if world < dist.get_world_size():
            gather, group = dist.all_gather_object, executor._communicators["dp", "dp"]
            patch.setattr(dist, "get_world_size", lambda: world)
            patch.setattr(dist, "all_gather_object", lambda found, mine: gather(found, mine, group=group))
        return explain(executor, 1, result)


DP2 = {"data_parallel": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero0": DP2,
    "zero1-bf16": DP2 | {"zero_stage": 1, "precision": "bf16"},
    "zero2": DP2 | {"zero_stage": 2},
    "zero3-offload": DP2 | {"zero_stage": 3, "offload": {"optimizer": "cpu", "parameters": "cpu"}},
    "deepspeed": DP2 | {"zero_stage": 2, "implementation": "deepspeed", "attention": "flash"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_is_not_finite_changes_nothing_on_any_rank(pool: Pool, layout: str) -> None:
    run = run_of(LLAMA, LAYOUTS[layout], "skip", clip=1.0)
    for kept, skipped, found in pool.run(broken_step, run, 1, "F F0.1 mlp.core")[:2]:
        assert kept
        assert skipped == [0, 1, 1]
        assert "is on rank 1: u" in found
        assert found.endswith("written by F F0.1 mlp.core")


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_steps_left_out_leave_no_trace(clip: float) -> None:
    """A run whose second step is left out ends where one ends that never had it: bias corrections too."""
    run = run_of(GPT, {}, "skip", clip)
    constant = replace(run.optimizer.schedule, kind="constant", warmup_steps=0)
    run = replace(run, optimizer=replace(run.optimizer, schedule=constant))

    class Without(TokenFile):
        def batch(self, step: int, samples: tuple[int, ...]) -> Tensor:
            return super().batch(step if step == 0 else step + 1, samples)

    whole = text(run)
    executor = Executor(compile_run(run), job_of(run), 0, {}, whole)
    clean = executor.ops[:]
    for step in range(4):
        executor.ops = clean[:]
        if step == 1:
            poison(executor, "F F0.1 attn.core")
        executor.step(step)
    without = Without(whole.tokens, whole.seq, whole.global_batch, whole.seed, whole.vocab)
    other = Executor(compile_run(run), job_of(run), 0, {}, without)
    for step in range(3):
        other.step(step)
    assert same(held(executor), held(other))


def test_continue_is_as_it_was() -> None:
    executor = Executor(compile_run(run := run_of(LLAMA, {}, "continue")), job_of(run), 0, {}, text(run))
    poison(executor, "F F0.1 attn.core")
    result = executor.step(0)
    assert not result.finite
    assert result.skipped == 0
    assert any(bool(torch.isnan(weight).any()) for weight in executor.parameters().values())


def test_a_weight_that_is_not_finite_is_named() -> None:
    executor = Executor(compile_run(run := run_of(LLAMA, {})), job_of(run), 0, {}, text(run))
    executor.step(0)
    executor.parameters()["layers.1.mlp.up.weight"][3, 5] = math.nan
    result = executor.step(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: False)
        with pytest.raises(NotFinite, match=r"step 1: the loss is nan .* rank 0: layers\.1\.mlp\.up\.weight, a weight"):
            _leave_out(job_of(run), executor, 1, result, None)


def test_a_replayed_step_is_left_out_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under plan.cuda_graph the optimizer is no part of the graph, and the step runs again without one."""
    install(monkeypatch)
    run = run_of(LLAMA, {})
    run = replace(run, plan=replace(run.plan, cuda_graph=True))
    executor = OnStreams(compile_run(run), job_of(run), 0, {}, text(run))
    for step in range(WARM_STEPS + 1):
        assert executor.step(step).finite
    executor.parameters()["layers.0.attn.qkv.weight"].view(-1)[0] = math.inf
    before = held(executor)
    result = executor.step(WARM_STEPS + 1)
    assert not result.finite
    assert same(before, held(executor))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    assert "layers.0.attn.qkv.weight, a weight, before the step" in explain(executor, WARM_STEPS + 1, result)


def test_the_origin_comes_before_what_was_received() -> None:
    received, made, later = Finding(0, 5, True, ""), Finding(3, 9, False, ""), Finding(1, 12, False, "")
    assert first_of_all([received, later, made]) is made
    assert first_of_all([received]) is received
    assert first_of_all([later, made, weight := Finding(2, -1, False, "")]) is weight
    assert first_of_all([]) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_both_optimizers_leave_out_what_is_not_finite(value: float) -> None:
    assert float(not_finite(torch.tensor([1e38, 3e38]))) == 0.0
    for step in (adamw, adamw_triton):
        for dtype in (torch.float32, torch.float64):
            state = [torch.rand(9, dtype=dtype) for _ in range(4)]
            before = [t.clone() for t in state]
            stats = torch.tensor([1.0, value], dtype=dtype)
            step(state[0], state[1], state[2], state[3], stats[0], None, not_finite(stats), ((2, 5),))
            assert all(torch.equal(a, b) for i, (a, b) in enumerate(zip(before, state, strict=True)) if i != 1)
            step(state[0], state[1], state[2], state[3], stats[0], None, not_finite(stats[:1]), ((2, 5),))
            assert not torch.equal(before[0], state[0])


# ---------------------------------------------------------------- token ids

IDS = {"negative": -1, "too large": 100, "far too large": 2**40}


@pytest.mark.parametrize("wrong", IDS)
def test_an_id_outside_the_vocabulary_is_refused_by_position(wrong: str) -> None:
    tokens = np.arange(1000, dtype=np.int64) % 100
    tokens[537] = IDS[wrong]
    said = rf"tokens holds token {IDS[wrong]} at position 537; the model's vocabulary is 100, so ids are 0 to 99"
    with pytest.raises(InputError, match=said):
        TokenFile(tokens, 10, 8, seed=1, vocab=100)
    tokens[537] = 99
    TokenFile(tokens, 10, 8, seed=1, vocab=100)


def test_of_a_large_file_every_rank_refuses_the_step_that_would_read_it() -> None:
    """The whole global batch is looked at, whichever rank's it is; earlier steps pass."""
    tokens = np.arange(1001, dtype=np.int32) % 100
    tokens[537] = -3
    file = TokenFile(tokens, 10, 8, seed=1, vocab=100, whole_bytes=1000)
    (step,) = (s for s in range(12) if any(file._first(s * 8 + i) in (527, 530) for i in range(8)))
    with file.checks_ahead(20) as checked:
        for at in range(step):
            checked(at)
        with pytest.raises(InputError, match="token -3 at position 537"):
            checked(step)
    with pytest.raises(InputError, match="token -3 at position 537"):
        file.batch(step, tuple(range(8)))


def test_the_largest_unsigned_ids_do_not_wrap() -> None:
    tokens = np.zeros(30, np.uint64)
    tokens[4] = 2**64 - 1
    with pytest.raises(InputError, match="token 18446744073709551615 at position 4"):
        TokenFile(tokens, 10, 1, seed=1, vocab=100)


def test_the_run_ends_with_the_step_named_and_its_folder_kept(tmp_path: Path) -> None:
    run = run_of(LLAMA, {"tensor_parallel": 2, "precision": "fp32"})
    run = replace(run, optimizer=replace(run.optimizer, lr=1e6), train=replace(run.train, steps=9))
    with pytest.raises(WindtunnelError, match=r"step \d: the loss is .* is on rank \d: .*written by") as error:
        launch(run, tmp_path)
    assert error.value.exit_code == 1
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert lines[-1]["skipped"] == 1
    assert [line["skipped"] for line in lines[:-1]] == [0] * (len(lines) - 1)
    assert str(error.value).startswith(f"step {lines[-1]['step']}:")
    assert "stopped: step" in (tmp_path / "log.txt").read_text()
    assert "from the command to step 0: launcher" in (tmp_path / "log.txt").read_text()
