"""The parity ladder: every layout trains exactly as one process with plain autograd does, in fp64 to 1e-9 and in fp32
to 1e-5.

The key part of a QKV bias is left out of the parameter comparison: its true gradient is 0 (a constant added to every
key moves no softmax), so AdamW turns its rounding noise into steps of full size, in any implementation.
"""

from functools import cache
from typing import Any

import pytest
import torch

from plan.run import Run
from tests.soak import crossed
from tests.trainer.oracle import Oracle
from tests.trainer.pool import Pool
from tests.trainer.ranks import GPT, LLAMA, assemble, initial_weights, make_run, text, train

STEPS = 10
BLOOM = GPT | {"positions": "alibi", "embedding_norm": True, "heads": 6, "head_dim": 8}
MODELS = {"llama": LLAMA, "gpt": GPT}
GEMMA = LLAMA | {
    "qk_norm": "head",
    "norm_place": "both",
    "activation": "geglu",
    "embedding_scale": 3.0,
    "attention_scale": 0.25,
    "attention_softcap": 4.0,
    "logit_softcap": 3.0,
    "tied_embeddings": True,
    "window": {"size": 5, "full_every": 2},
}
OLMO = LLAMA | {"norm_place": "output", "qk_norm": "projection", "window": 7}
NEOX = GPT | {"positions": "rotary", "rope": {"fraction": 0.5}, "parallel_residual": True, "tied_embeddings": False}
FALCON = GPT | {
    "positions": "rotary",
    "parallel_residual": True,
    "shared_norm": True,
    "bias": {"qkv": False, "out": False, "mlp": True},
    "kv_heads": 2,
    "activation": "relu2",
    "head_bias": True,
}
FAMILIES = {"gemma": GEMMA, "neox": NEOX, "falcon": FALCON}
EVERY = MODELS | {"bloom": BLOOM, "olmo": OLMO} | FAMILIES
TP2, PP2, DP2 = {"tensor_parallel": 2, "micro_batch_size": 4}, {"pipeline_parallel": 2}, {"data_parallel": 2}
SP = {"sequence_parallel": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "single": {},
    "dp2": DP2,
    "tp2": TP2 | {"sequence_parallel": False},
    "tp2-sp": TP2 | SP,
    "pp2-gpipe": PP2 | {"schedule": "gpipe"},
    "pp2-1f1b": PP2 | {"schedule": "1f1b"},
    "dp2-tp2": DP2 | TP2 | SP,
    "tp2-pp2": TP2 | PP2 | SP | {"micro_batch_size": 2},
    "dp2-pp2": DP2 | PP2,
    "loss-chunks": {"loss_chunks": 4},
    "dp2-loss-chunks": DP2 | {"loss_chunks": 2, "communication": {"bucket_mb": 0.02}},
    "pp2-gpipe-loss-chunks": PP2 | {"schedule": "gpipe", "loss_chunks": 8},
}


@cache
def _reference(model: str, precision: str, extra: str) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    run = make_run(EVERY[model] | _extra(extra), {"precision": precision} | _extra_plan(extra))
    oracle = Oracle(run, initial_weights(run))
    data, batch = text(run), tuple(range(run.plan.global_batch_size))
    results = [oracle.step(step, data.batch(step, batch)) for step in range(STEPS)]
    return [r[0] for r in results], [r[1] for r in results], {name: w.detach() for name, w in oracle.weights.items()}


def _extra(name: str) -> dict[str, Any]:
    return {"": {}, "dropout": {"dropout": 0.1, "attention_dropout": 0.1}}[name]


def _extra_plan(name: str) -> dict[str, Any]:
    return {"attention": "unfused"} if name == "dropout" else {}


def _hold(pool: Pool, model: str, plan: dict[str, Any], extra: str = "") -> None:
    run = make_run(EVERY[model] | _extra(extra), plan | _extra_plan(extra))
    losses, norms, weights = _reference(model, run.plan.precision, extra)
    shares = [share for share in pool.run(train, run, STEPS) if share is not None]
    exact = run.plan.precision == "fp64"
    tolerance = 1e-9 if exact else 1e-5
    for share in shares:
        assert share.losses == pytest.approx(losses, rel=tolerance)
        assert share.norms == pytest.approx(norms, rel=tolerance)
        assert (share.leaked_bytes, share.leaked_places) == (0, 0)
    if exact:
        _hold_parameters(run, assemble(shares, run), weights, tolerance)


def _hold_parameters(
    run: Run, trained: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], tolerance: float
) -> None:
    copies = {"head.weight"} if run.model.tied_embeddings else set()
    assert set(trained) - copies == set(weights)
    for name in copies & set(trained):
        assert torch.equal(trained.pop(name), trained["embed.tokens.weight"])
    q, kv = run.model.attention_width, run.model.kv_width
    for name, tensor in trained.items():
        difference = (tensor - weights[name]).abs()
        if name.endswith("qkv.bias"):
            difference[q : q + kv] = 0
        assert float(difference.max()) < tolerance, name


@crossed(layout=LAYOUTS, model=MODELS)
def test_losses_norms_and_parameters_in_fp64(pool: Pool, model: str, layout: str) -> None:
    _hold(pool, model, LAYOUTS[layout])


@pytest.mark.parametrize("layout", ["single", "dp2", "tp2", "tp2-sp", "pp2-1f1b", "tp2-pp2"])
def test_losses_and_norms_in_fp32(pool: Pool, layout: str) -> None:
    _hold(pool, "llama", LAYOUTS[layout] | {"precision": "fp32"})


@pytest.mark.parametrize("micro", [1, 4])
def test_accumulation_changes_nothing(pool: Pool, micro: int) -> None:
    _hold(pool, "llama", DP2 | {"micro_batch_size": micro})


@pytest.mark.parametrize("layout", ["single", "dp2", "tp2", "tp2-sp", "pp2-1f1b"])
def test_dropout_drops_the_same_elements_under_every_layout(pool: Pool, layout: str) -> None:
    _hold(pool, "gpt", LAYOUTS[layout], "dropout")


@pytest.mark.parametrize("model", MODELS)
def test_small_buckets_reduce_while_backward_runs(pool: Pool, model: str) -> None:
    _hold(pool, model, DP2 | {"communication": {"bucket_mb": 0.02}})


@pytest.mark.parametrize("layout", ["single", "dp2", "tp2-sp", "pp2-1f1b", "zero1", "zero3", "offload", "fsdp"])
def test_bf16_follows_the_fp32_reference(pool: Pool, layout: str) -> None:
    """Weights, activations and products in bf16; main gradients, optimizer state and losses in fp32."""
    sharded = {"zero1": DP2 | {"zero_stage": 1}, "zero3": ZERO3, "offload": ZERO3 | BOTH, "fsdp": FSDP}
    plan = (LAYOUTS | sharded)[layout] | {"precision": "bf16"}
    run = make_run(MODELS["llama"], plan)
    losses, norms, _ = _reference("llama", "fp32", "")
    for share in pool.run(train, run, STEPS):
        if share is not None:
            assert share.losses == pytest.approx(losses, rel=5e-3)
            assert share.norms == pytest.approx(norms, rel=3e-2)


INTERLEAVED = PP2 | {"schedule": "interleaved-1f1b", "virtual_pipeline": 2}
STRATEGIES: dict[str, dict[str, Any]] = {
    "zero1-dp2": DP2 | {"zero_stage": 1},
    "zero1-dp4-small-buckets": {"data_parallel": 4, "zero_stage": 1, "communication": {"bucket_mb": 0.02}},
    "zero1-dp2-pp2": DP2 | PP2 | {"zero_stage": 1},
    "zero1-dp2-tp2-sp": DP2 | TP2 | SP | {"zero_stage": 1},
    "interleaved": INTERLEAVED,
    "interleaved-tp2-sp": INTERLEAVED | TP2 | SP,
    "interleaved-zero1-dp2": INTERLEAVED | DP2 | {"zero_stage": 1},
    "recompute-full": {"recompute": "full"},
    "recompute-full-tp2-sp": TP2 | SP | {"recompute": "full"},
    "recompute-selective-tp2-sp": TP2 | SP | {"recompute": "selective"},
    "recompute-layers-pp2": PP2 | {"recompute": {"layers": 1}},
    "partition-activations-tp2": TP2 | {"sequence_parallel": False, "recompute": "full", "partition_activations": True},
    "partition-activations-tp2-pp2": TP2
    | PP2
    | {"sequence_parallel": False, "recompute": {"layers": 1}, "partition_activations": True, "micro_batch_size": 2},
    "no-overlap-dp2": DP2 | {"communication": {"overlap": False}},
    "pp4": {"pipeline_parallel": 4},
}
ONE_EACH = {"schedule": "interleaved-1f1b", "virtual_pipeline": 3}  # four layers and two ends on six stages
ALONE: dict[str, dict[str, Any]] = {
    "embedding-tp2-sp": TP2 | PP2 | SP | {"pipeline_layout": [1, 5], "micro_batch_size": 1},
    "embedding-tp2": TP2 | PP2 | {"pipeline_layout": [1, 5], "sequence_parallel": False, "micro_batch_size": 1},
    "head-tp2-sp": TP2 | PP2 | SP | {"pipeline_layout": [5, 1], "micro_batch_size": 1},
    "both-ends-pp4": {"pipeline_parallel": 4, "pipeline_layout": [1, 2, 2, 1], "micro_batch_size": 1},
    "every-unit-tp2-sp": TP2 | PP2 | SP | ONE_EACH | {"micro_batch_size": 1},
    "every-unit-zero1-dp2": DP2 | PP2 | ONE_EACH | {"zero_stage": 1, "micro_batch_size": 1, "recompute": "full"},
    "every-unit-loss-chunks": PP2 | ONE_EACH | {"loss_chunks": 4},
    "embedding-deepspeed-tp2": TP2
    | PP2
    | {"pipeline_layout": [1, 5], "micro_batch_size": 1, "implementation": "deepspeed", "attention": "unfused"},
}
CHUNKED = {"zero_stage": 1, "loss_chunks": 4, "communication": {"bucket_mb": 0.02}}
LATE_HEAD: dict[str, dict[str, Any]] = {
    "zero1-loss-chunks": DP2 | CHUNKED,
    "zero1-loss-chunks-one-micro-batch": DP2 | CHUNKED | {"micro_batch_size": 4},
    "zero1-loss-chunks-pp2": DP2 | PP2 | CHUNKED,
    "zero2-loss-chunks": DP2 | CHUNKED | {"zero_stage": 2},
}
ZERO2, ZERO3 = DP2 | {"zero_stage": 2}, DP2 | {"zero_stage": 3}
PARTITIONED: dict[str, dict[str, Any]] = {
    "zero2": ZERO2,
    "zero2-one-micro-batch": ZERO2 | {"micro_batch_size": 4},
    "zero2-no-overlap": ZERO2 | {"communication": {"overlap": False}},
    "zero3": ZERO3,
    "zero3-tp2-sp": ZERO3 | TP2 | SP | {"micro_batch_size": 2},
    "zero3-dp4": ZERO3 | {"data_parallel": 4, "micro_batch_size": 1},
    "zero3-one-micro-batch": ZERO3 | {"micro_batch_size": 4},
    "zero3-four-micro-batches-gpipe": ZERO3 | {"micro_batch_size": 1, "schedule": "gpipe"},
    "zero3-recompute-full": ZERO3 | {"recompute": "full"},
    "zero3-small-ones-persist": ZERO3 | {"zero": {"persist_below": 100}, "recompute": "selective"},
    "zero3-no-overlap": ZERO3 | {"communication": {"overlap": False}},
    "zero3-loss-chunks": ZERO3 | {"loss_chunks": 4},
}
PARTITIONED["deepspeed-zero2"] = ZERO2 | {"implementation": "deepspeed", "attention": "flash"}
FSDP = DP2 | {"zero_stage": 3, "implementation": "torch-fsdp"}
PARTITIONED |= {
    "fsdp": FSDP,
    "fsdp-kept": FSDP | {"zero_stage": 2},
    "fsdp-dp4-one-micro-batch": FSDP | {"data_parallel": 4, "micro_batch_size": 2},
    "fsdp-tp2-sp": FSDP | TP2 | SP | {"micro_batch_size": 2},
    "fsdp-recompute-loss-chunks": FSDP | {"recompute": "full", "loss_chunks": 4},
}
OPTIMIZER, BOTH = {"offload": {"optimizer": "cpu"}}, {"offload": {"optimizer": "cpu", "parameters": "cpu"}}
OFFLOADED: dict[str, dict[str, Any]] = {
    "single": {"zero_stage": 1} | OPTIMIZER,
    "zero1": DP2 | {"zero_stage": 1, "communication": {"bucket_mb": 0.02}} | OPTIMIZER,
    "zero1-pp2": DP2 | PP2 | {"zero_stage": 1} | OPTIMIZER,
    "zero2-no-overlap": ZERO2 | {"communication": {"overlap": False}} | OPTIMIZER,
    "deepspeed-zero2": ZERO2 | {"implementation": "deepspeed", "communication": {"overlap": False}} | OPTIMIZER,
    "zero3": ZERO3 | OPTIMIZER,
    "zero3-half": ZERO3 | {"offload": {"optimizer": "cpu", "fraction": 0.5}},
    "zero3-parameters": ZERO3 | BOTH | {"micro_batch_size": 1},
    "zero3-parameters-tp2-sp": ZERO3 | TP2 | SP | BOTH | {"recompute": "full", "micro_batch_size": 2},
}


@crossed(strategy=STRATEGIES, model=MODELS)
def test_strategies_train_as_the_reference_does(pool: Pool, model: str, strategy: str) -> None:
    _hold(pool, model, STRATEGIES[strategy])


WHOLE_NORMS = {name: model for name, model in EVERY.items() if "qk_norm" not in model}
"""Norms of queries and keys are refused under some kinds of tensor parallelism; `OF_FAMILIES` has the others."""


@crossed(alone=ALONE, model=WHOLE_NORMS)
def test_units_alone_on_their_chunks_train_as_the_reference_does(pool: Pool, model: str, alone: str) -> None:
    """A chunk of one unit reads what arrives in few places: of the embedding's gradient perhaps a gather alone."""
    unfused = {"attention": "unfused"} if model == "bloom" else {}
    _hold(pool, model, ALONE[alone] | unfused)


@crossed(strategy=LATE_HEAD, model=MODELS)
def test_weights_first_read_in_a_backward_are_waited_for(pool: Pool, model: str, strategy: str) -> None:
    """The GPT's table is tied: without a pipeline the embedding's forward has waited for it."""
    _hold(pool, model, LATE_HEAD[strategy])


@crossed(strategy=PARTITIONED, model=MODELS)
def test_partitioned_parameters_train_as_the_reference_does(pool: Pool, model: str, strategy: str) -> None:
    """The GPT's embeddings are tied: two units gather and reduce the table."""
    _hold(pool, model, PARTITIONED[strategy])


@crossed(strategy=OFFLOADED, model=MODELS)
def test_offloaded_state_trains_as_the_reference_does(pool: Pool, model: str, strategy: str) -> None:
    _hold(pool, model, OFFLOADED[strategy])


@pytest.mark.parametrize("stage", [2, 3])
def test_partitioned_parameters_in_fp32(pool: Pool, stage: int) -> None:
    _hold(pool, "llama", ZERO3 | {"zero_stage": stage, "precision": "fp32"})


@pytest.mark.parametrize("strategy", ["recompute-full-tp2-sp", "recompute-selective-tp2-sp", "interleaved"])
def test_strategies_repeat_dropout(pool: Pool, strategy: str) -> None:
    _hold(pool, "gpt", STRATEGIES[strategy], "dropout")


@pytest.mark.parametrize("layout", ["single", "tp2", "tp2-sp", "pp2-1f1b", "tp2-pp2"])
def test_alibi_and_embedding_norm_under_every_layout(pool: Pool, layout: str) -> None:
    """BLOOM's choices, with a head count that is no power of two: slopes follow the rank's heads."""
    _hold(pool, "bloom", LAYOUTS[layout] | {"attention": "unfused"})


ZB_H1 = PP2 | {"schedule": "zb-h1", "micro_batch_size": 1}
APART: dict[str, dict[str, Any]] = {
    "pp2": ZB_H1,
    "tp2-pp2-sp": ZB_H1 | TP2 | SP | {"micro_batch_size": 2},
    "tp2-pp2": ZB_H1 | TP2 | {"micro_batch_size": 2},
    "dp2-pp2-zero1": ZB_H1 | DP2 | {"zero_stage": 1, "communication": {"bucket_mb": 0.02}},
    "pp2-selective": ZB_H1 | {"recompute": "selective"},
    "pp2-loss-chunks": ZB_H1 | {"loss_chunks": 4},
}


@crossed(layout=APART, model=MODELS)
def test_weight_gradients_apart_from_input_gradients_change_nothing(pool: Pool, model: str, layout: str) -> None:
    """zb-h1: tied (gpt) and untied (llama) embeddings, gathered again under sequence parallelism."""
    _hold(pool, model, APART[layout])


OF_FAMILIES: dict[str, dict[str, Any]] = {
    "tp2-sp": TP2 | SP,
    "tp2-pp2-zb-h1": APART["tp2-pp2-sp"],
    "zero3-tp2-sp-full": ZERO3 | TP2 | SP | {"micro_batch_size": 2, "recompute": "full"},
    "single": {},
    "selective-zero1": DP2 | {"zero_stage": 1, "recompute": "selective"},
    "fsdp": FSDP,
    "zero3-loss-chunks": ZERO3 | {"loss_chunks": 4},
    "pp2-tp2": PP2 | TP2 | SP | {"micro_batch_size": 2},
    "deepspeed-zero2": ZERO2 | {"implementation": "deepspeed"},
    "interleaved": INTERLEAVED,
}


@crossed(layout=OF_FAMILIES, model=FAMILIES)
def test_other_families_train_as_the_reference_does(pool: Pool, model: str, layout: str) -> None:
    """Norms of heads and behind branches, windows in every second layer, caps; parallel residuals of two norms and of
    one. Under tensor parallelism alone the norms of heads would owe a sum, and are refused."""
    unfused = {"attention": "unfused"} if model == "gemma" else {}
    _hold(pool, model, OF_FAMILIES[layout] | unfused)


@pytest.mark.parametrize("model", ["neox", "falcon"])
def test_a_parallel_residual_without_sequence_parallelism(pool: Pool, model: str) -> None:
    _hold(pool, model, TP2 | {"sequence_parallel": False})


@pytest.mark.parametrize("layout", ["dp2-pp2", "single"])
def test_norms_of_whole_projections_behind_windows(pool: Pool, layout: str) -> None:
    _hold(pool, "olmo", LAYOUTS[layout])


def test_weight_gradients_apart_drop_the_same_elements(pool: Pool) -> None:
    _hold(pool, "gpt", APART["tp2-pp2-sp"], "dropout")


ROWS = {
    "halves in any order": (
        {},
        "0F0,0F1,0I0,0F2,0F3,0B1,0I2,0W2,0I3,0W0,0W3",
        "1F0,1F1,1I0,1I1,1F2,1W1,1B2,1W0,1F3,1B3",
    ),
    "two chunks": (
        {"virtual_pipeline": 2},
        "0F0,0F3,2F3,0F2,2F0,2F2,0F1,2I3,2F1,2B0,2W3,2B1,0I3,2I2,2W2,0B2,0W3,0B1,0B0",
        "1F3,1F0,3F3,1F2,3B3,3F0,1F1,3I0,3F2,3I2,3W0,3F1,3I1,3W2,3W1,1I1,1B3,1W1,1I2,1W2,1B0",
    ),
}


@crossed(name=ROWS, model=MODELS)
def test_a_schedule_that_is_written_out_changes_nothing(pool: Pool, model: str, name: str) -> None:
    """The last weight gradients are made after a joint backward, and before one."""
    plan, *rows = ROWS[name]
    small = {"micro_batch_size": 1, "communication": {"bucket_mb": 0.02}}
    _hold(pool, model, DP2 | PP2 | small | plan | {"schedule": rows})
