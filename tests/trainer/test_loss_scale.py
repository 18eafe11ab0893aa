"""Loss scaling: the rule by which the scale goes, the same steps left out under every layout, and training in fp16."""

import math
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import pytest
import torch

from compiler import compile_run
from plan.parallel import LossScale
from plan.run import Run
from program.errors import InputError
from tests.soak import crossed
from tests.trainer.oracle import Oracle
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, LLAMA, assemble, initial_weights, make_executor, make_run, text, train
from trainer.loss_scale import LossScaling, Scaling
from windtunnel.job import job_of

MODELS = {"llama": LLAMA, "gpt": GPT}
STEPS = 10
SCALE = LossScale(2.0**516, window=2, hysteresis=1, floor=1.0, factor=2.0**8)
"""In fp64 the squares of gradients overflow under the scale, do not after one step down, and do again after one up; by
so much that it makes no difference whose squares are summed first."""
SP2 = {"tensor_parallel": 2, "sequence_parallel": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "single": {},
    "tp2-pp2": SP2 | {"pipeline_parallel": 2},
    "dp2-zero1-offload": {"data_parallel": 2, "zero_stage": 1, "offload": {"optimizer": "cpu"}},
    "dp2-tp2-zero3": SP2 | {"data_parallel": 2, "zero_stage": 3},
    "loss-chunks": {"loss_chunks": 4},
    "pp2-zb-h1": {"pipeline_parallel": 2, "schedule": "zb-h1"},
    "deepspeed": {"data_parallel": 2, "zero_stage": 2, "implementation": "deepspeed"},
    "torch-fsdp": {"data_parallel": 2, "zero_stage": 3, "implementation": "torch-fsdp"},
}


# ---------------------------------------------------------------- the rule


def scales(outcomes: str, **given: float) -> list[float]:
    """The scale after each step, `.` fine or `x` overflowed."""
    numbers: dict[str, Any] = {"initial": 64.0, "window": 3, "hysteresis": 1, "floor": 1.0} | given
    scaling, found = LossScaling(Scaling(**numbers)), []
    for outcome in outcomes:
        scaling.update(outcome == ".")
        found.append(scaling.scale)
    return found


def test_the_scale_falls_at_an_overflow_and_grows_after_a_while_without() -> None:
    assert scales("x..x...") == [32, 32, 32, 16, 16, 16, 32]
    assert scales("......") == [64, 64, 128, 128, 128, 256]
    assert scales("xxxxxxxx") == [32, 16, 8, 4, 2, 1, 1, 1]


def test_the_first_overflows_are_forgiven_again_after_a_growth() -> None:
    assert scales("xx", hysteresis=2) == [64, 32]
    assert scales("xxx", hysteresis=2) == [64, 32, 16]
    assert scales("x...x", hysteresis=2) == [64, 64, 64, 128, 128]


def test_a_constant_scale_and_one_at_its_floor_handle_no_overflow() -> None:
    constant = LossScaling(Scaling(128.0, window=0, hysteresis=1, floor=128.0))
    assert constant.update(True)
    assert not constant.update(False)
    assert constant.scale == 128.0
    low = LossScaling(Scaling(2.0, window=3, hysteresis=1, floor=1.0))
    assert [low.update(False) for _ in range(3)] == [True, False, False]


# ---------------------------------------------------------------- the same everywhere


def scaled(model: str, plan: dict[str, Any]) -> Run:
    run = make_run(MODELS[model], plan)
    return replace(run, plan=replace(run.plan, loss_scale=SCALE))


@cache
def reference(model: str) -> tuple[list[bool], list[float], list[float], dict[str, torch.Tensor]]:
    """(steps left out, losses, norms, parameters) of plain autograd with the same rule."""
    run = scaled(model, {})
    oracle, data, scaling = Oracle(run, initial_weights(run)), text(run), LossScaling(Scaling(**asdict(SCALE)))
    left, losses, norms = [], [], []
    for step in range(STEPS):
        grid = data.batch(step, tuple(range(run.plan.global_batch_size)))
        _, norm = oracle.step(step, grid, leave_out=True)
        left.append(not math.isfinite(norm * scaling.scale * norm * scaling.scale))
        loss, norm = oracle.step(step, grid, leave_out=left[-1])
        scaling.update(not left[-1])
        losses.append(loss)
        norms.append(norm)
    return left, losses, norms, {name: w.detach() for name, w in oracle.weights.items()}


@crossed(layout=LAYOUTS, model=MODELS)
def test_overflows_are_left_out_alike_under_every_layout(pool: Pool, model: str, layout: str) -> None:
    left, losses, norms, parameters = reference(model)
    assert left == [True, False, False] * 3 + [True]  # it grows every second step
    run = scaled(model, LAYOUTS[layout])
    shares = [share for share in pool.run(train, run, STEPS) if share is not None]
    for share in shares:
        assert share.losses == pytest.approx(losses, rel=1e-9)
        assert [not math.isfinite(norm) for norm in share.norms] == left
        assert [n for n in share.norms if math.isfinite(n)] == pytest.approx(
            [n for n, out in zip(norms, left, strict=True) if not out], rel=1e-9
        )
    for name, weights in parameters.items():
        if "qkv.bias" not in name:  # the key's part has no gradient but rounding (test_parity.py)
            torch.testing.assert_close(assemble(shares, run)[name], weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", ["single", "tp2-pp2", "dp2-tp2-zero3"])
def test_fp16_follows_fp32(pool: Pool, layout: str) -> None:
    wide = next(filter(None, pool.run(train, make_run(LLAMA, {"precision": "fp32"}), STEPS)))
    run = make_run(LLAMA, LAYOUTS[layout] | {"precision": "fp16"})
    for share in filter(None, pool.run(train, run, STEPS)):
        assert share.losses == pytest.approx(wide.losses, rel=5e-3)


def test_an_overflow_at_the_floor_is_not_finite_as_any_other() -> None:
    """The scale has spiralled down: what `train.nonfinite` says holds."""
    run = scaled("llama", {})
    run = replace(run, plan=replace(run.plan, loss_scale=replace(SCALE, floor=SCALE.initial)))
    executor = make_executor(0, run)
    assert executor is not None
    result = executor.step(0)
    executor.close()
    assert (result.finite, result.overflow, result.skipped, result.loss_scale) == (False, False, 1, 2.0**516)


# ---------------------------------------------------------------- the language


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"precision": "fp16"}, LossScale()),
        ({"precision": "bf16"}, None),
        ({"precision": "bf16", "loss_scale": {"initial": 4096}}, LossScale(4096.0)),
        ({"precision": "fp16", "loss_scale": 128}, LossScale(128.0, window=0, floor=128.0)),
        ({"precision": "fp16", "loss_scale": "none"}, None),
    ],
)
def test_a_plan_says_how_the_scale_goes(given: dict[str, Any], found: LossScale | None) -> None:
    run = make_run(LLAMA, given)
    assert run.plan.loss_scale == found
    assert (job_of(run).scaling is None) == (found is None)
    again = make_run(LLAMA, {k: v for k, v in run.to_dict()["plan"].items() if k in ("precision", "loss_scale")})
    assert again.plan.loss_scale == found


def test_a_program_without_a_scale_is_what_it_was() -> None:
    with_, without = (compile_run(make_run(LLAMA, {"precision": "fp16", "loss_scale": s})) for s in ("auto", "none"))
    assert with_.hash != without.hash
    assert "loss_scale" not in str(compile_run(make_run(LLAMA, {"precision": "bf16"})).classes)


def test_a_graph_holds_no_scale() -> None:
    with pytest.raises(InputError, match="a replayed graph holds one scale; set cuda_graph to false"):
        make_run(LLAMA, {"precision": "fp16", "cuda_graph": True})
