"""Any run of at most four ranks that the rules accept trains as the single-process reference does: drawn over every key
of the language (tests/draws.py), three steps each in fp64; here a few, under `make soak` some hundreds.
"""

from collections.abc import Callable
from typing import Any

import pytest

from plan.presets import merge
from plan.run import Run, load
from plan.trainable import check_trainable
from program.errors import InputError
from tests.draws import draw
from tests.soak import soaking
from tests.trainer.oracle import Oracle
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, initial_weights, make_run, text, train

STEPS = 3
SLICES = 12 if soaking() else 2
EACH = 20 if soaking() else 3
ONLY = {
    "plan": {"precision": "fp64", "gradient_dtype": "auto", "kernels": "eager", "launch_blocking": False},
    "train": {"steps": 100, "eval_every": 0},
    "checkpoint": {"every": 0},
}  # what fp64 on a CPU trains with
LEARNS = {"model": {"init_std": 0.1}, "optimizer": {"lr": 3e-3, "schedule": {"warmup_steps": 2}}}  # where none is drawn


def trainable(number: int) -> dict[str, Any] | None:
    """The drawn run file of a number, as far as it can be trained here; None where a section is junk."""
    raw = draw(number, device="cpu", ranks=4)
    if not all(isinstance(section, dict) for section in raw.values()):
        return None
    raw = merge(merge(LEARNS, raw), ONLY)
    if raw["plan"].get("implementation") == "megatron":
        raw["plan"]["implementation"] = "windtunnel"
    if raw["model"].get("positions") == "alibi":
        raw["plan"]["attention"] = "unfused"
    return raw


def accepted(number: int) -> Run | None:
    """The run of a number; None where the rules or the trainer refuse it."""
    raw = trainable(number)
    try:
        run = load(raw or {})
        check_trainable(run)
    except InputError:
        return None
    return run


def reference(run: Run) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of one process."""
    oracle, data = Oracle(run, initial_weights(run)), text(run)
    results = [oracle.step(s, data.batch(s, tuple(range(run.plan.global_batch_size)))) for s in range(STEPS)]
    return [r[0] for r in results], [r[1] for r in results]


def hold(pool: Pool, run: Run) -> None:
    """The run trains as the reference does and leaves nothing behind."""
    losses, norms = reference(run)
    for share in pool.run(train, run, STEPS):
        if share is not None:
            assert share.losses == pytest.approx(losses, rel=1e-9)
            assert share.norms == pytest.approx(norms, rel=1e-9)
            assert (share.leaked_bytes, share.leaked_places) == (0, 0)


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(SLICES))
def test_random_runs_train_as_the_reference_does(pool: Pool, part: int, soak_count: Callable[[str, int], None]) -> None:
    numbers = (n for n in range(10_000 * part, 10_000 * (part + 1)) if accepted(n) is not None)
    for number in (next(numbers) for _ in range(EACH)):
        run = accepted(number)
        assert run is not None
        try:
            hold(pool, run)
        except BaseException as error:
            error.add_note(f"draw {number}: {trainable(number)}")
            raise
    soak_count("drawn runs trained as the reference", EACH)


def test_a_run_that_once_trained_otherwise(pool: Pool) -> None:
    """A norm of the embedding, heads narrower than hidden / heads, and a bias of QKV alone."""
    odd = {"embedding_norm": True, "norm": "rmsnorm", "qkv_bias": True, "bias": False, "head_dim": 6}
    plan = {"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 2, "recompute": "selective"}
    hold(pool, make_run(GPT | odd, plan))
