"""Any legal combination of model and plan trains as the single-process reference does: drawn at random, three steps
each in fp64."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from plan.errors import InputError
from plan.run import Run
from tests.trainer.oracle import Oracle
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, initial_weights, make_run, text, train

STEPS = 3


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    dropout = draw(st.sampled_from([0.0, 0.0, 0.2]))
    return GPT | {
        "kv_heads": draw(st.sampled_from([2, 4])),
        "head_dim": draw(st.sampled_from([6, 8])),
        "ffn": draw(st.sampled_from([48, 64])),
        "activation": draw(st.sampled_from(["gelu", "swiglu"])),
        "norm": draw(st.sampled_from(["layernorm", "rmsnorm"])),
        "positions": draw(st.sampled_from(["learned", "rotary"])),
        "tied_embeddings": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "qkv_bias": draw(st.booleans()),
        "embedding_norm": draw(st.booleans()),
        "dropout": dropout,
        "attention_dropout": dropout,
    }


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    t, p, d = draw(
        st.sampled_from(
            [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 4, 1), (4, 1, 1)]
        )
    )
    virtual = draw(st.sampled_from([1, 2])) if p == 2 else 1
    schedule = "interleaved-1f1b" if virtual > 1 else draw(st.sampled_from(["gpipe", "1f1b"]))
    return {
        "tensor_parallel": t,
        "pipeline_parallel": p,
        "data_parallel": d,
        "virtual_pipeline": virtual,
        "schedule": schedule,
        "sequence_parallel": t > 1 and draw(st.booleans()),
        "zero_stage": draw(st.sampled_from([0, 1] if p > 1 else [0, 1, 2, 3])),
        "offload": {"optimizer": draw(st.sampled_from(["none", "none", "cpu"]))},
        "micro_batch_size": draw(st.sampled_from([1, 2])),
        "recompute": draw(st.sampled_from(["none", "selective", "full", {"layers": 1}])),
        "communication": {"bucket_mb": draw(st.sampled_from([0.01, 1.0])), "overlap": draw(st.booleans())},
    }


def _reference(run: Run) -> tuple[list[float], list[float]]:
    oracle, data = Oracle(run, initial_weights(run)), text(run)
    results = [oracle.step(s, data.batch(s, tuple(range(run.plan.global_batch_size)))) for s in range(STEPS)]
    return [r[0] for r in results], [r[1] for r in results]


@pytest.mark.slow
@hypothesis_settings(max_examples=400 if os.environ.get("WINDTUNNEL_SOAK") else 12)
@given(models(), plans())
@example(
    GPT
    | {
        "embedding_norm": True,
        "norm": "rmsnorm",
        "qkv_bias": True,
        "bias": False,
        "head_dim": 6,
        "positions": "learned",
    },
    {"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 2, "recompute": "selective"},
)
def test_a_random_run_trains_as_the_reference_does(
    pool: Pool, soak_count: Callable[..., None], model: dict[str, Any], plan: dict[str, Any]
) -> None:
    if model.get("attention_dropout"):
        plan = plan | {"attention": "unfused"}
    try:
        run = make_run(model, plan)
    except InputError:
        reject()  # a combination the rules refuse
    soak_count("random plans trained")
    losses, norms = _reference(run)
    for share in pool.run(train, run, STEPS):
        if share is not None:
            assert share.losses == pytest.approx(losses, rel=1e-9)
            assert share.norms == pytest.approx(norms, rel=1e-9)
            assert share.leaked_bytes == 0
