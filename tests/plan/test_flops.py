"""FLOPs under three conventions, against published arithmetic."""

import pytest

from plan.flops import hardware_flops_per_step, model_flops_per_step, model_flops_per_token, recomputed_layers
from plan.run import Run, load

GPT3 = {
    "model": "gpt3-175b",
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 128},
    "plan": {"tensor_parallel": 8, "pipeline_parallel": 16, "global_batch_size": 1536, "recompute": "full"},
}


def gpt3(*overrides: str) -> Run:
    return load(GPT3, overrides)


def test_gpt3_with_full_recompute_is_4_5e18_as_in_the_megatron_paper() -> None:
    run = gpt3()
    b, s, layers, h, v = 1536, 2048, 96, 12288, 51200
    paper = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert hardware_flops_per_step(run, "megatron") == pytest.approx(paper, rel=1e-12)
    assert paper == pytest.approx(4.51e18, rel=2e-3)


def test_bloom_reports_149_tflops_from_its_step_time() -> None:
    """Case 030: 105.22 s on 384 GPUs was logged as 149.02 TFLOP/s with recompute counted."""
    plan = {
        "tensor_parallel": 4,
        "pipeline_parallel": 12,
        "micro_batch_size": 2,
        "global_batch_size": 2048,
        "recompute": "full",
    }
    run = load({"model": "bloom-176b", "cluster": {"preset": "dgx-a100-80gb", "nodes": 48}, "plan": plan})
    tflops = 1e-12 / (105.22 * 384)
    assert hardware_flops_per_step(run, "megatron") * tflops == pytest.approx(149.02, abs=0.01)
    # A little above 3/4 of it (111.8), because the output projection is not recomputed.
    assert model_flops_per_step(run, "megatron") * tflops == pytest.approx(112.33, abs=0.01)


def test_palm_is_6n_plus_attention() -> None:
    m = gpt3().model
    assert model_flops_per_token(m, "palm") == pytest.approx(6 * m.parameters() + 12 * 96 * 96 * 128 * 2048, rel=1e-12)


def test_exact_counts_half_of_the_attention_square() -> None:
    m = gpt3().model
    square = 12 * m.layers * m.attention_width * m.seq_length
    assert model_flops_per_token(m, "megatron") - model_flops_per_token(m) == pytest.approx(square / 2, rel=1e-9)


def test_grouped_queries_and_a_gate_are_counted_by_their_matrices() -> None:
    m = load({"model": "llama-3-8b", "cluster": "dgx-h100", "plan": {}}).model
    weights = m.layers * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336) + 4096 * 128256
    assert model_flops_per_token(m) == 6 * weights + 6 * m.layers * 4096 * 8192


def test_attention_is_counted_within_the_window_of_layers_that_have_one() -> None:
    """Of 32 layers with a window of half the sequence each computes 3/8 of the square; of every second 7/16 on average.
    Exact alone: Megatron's and PaLM's counts know no windows."""
    llama = {"model": "llama-3-8b", "cluster": "dgx-h100", "plan": {}}
    whole = load(llama).model
    square = 12 * 32 * 4096 * 8192
    for window, share in ((8192, 1 / 2), (4096, 3 / 8), ("{size: 4096, full_every: 2}", 7 / 16)):
        model = load(llama, [f"model.window={window}"]).model
        saved = model_flops_per_token(whole) - model_flops_per_token(model)
        assert saved == pytest.approx((1 / 2 - share) * square, rel=1e-12, abs=1)
        assert model_flops_per_token(model, "megatron") == model_flops_per_token(whole, "megatron")


def test_hardware_equals_model_without_recompute() -> None:
    run = gpt3("plan.recompute=none")
    assert hardware_flops_per_step(run) == model_flops_per_step(run)


def test_selective_recompute_repeats_the_scores_only() -> None:
    run = gpt3("plan.recompute=selective")
    extra = hardware_flops_per_step(run, "megatron") - model_flops_per_step(run, "megatron")
    assert extra == pytest.approx(run.tokens_per_step * 96 * 4 * 2048 * 12288, rel=1e-9)


def test_n_layers_are_recomputed_in_every_chunk() -> None:
    assert recomputed_layers(gpt3("plan.recompute={layers: 2}")) == 32
    assert recomputed_layers(gpt3("plan.recompute={layers: 90}")) == 96
    assert recomputed_layers(gpt3("plan.recompute=full")) == 96


def test_flops_scale_with_the_batch_and_not_with_the_gpus() -> None:
    """Case 107: halving the GPUs doubles each one's work; the step's own FLOPs stay."""
    half = load({**GPT3, "cluster": {"preset": "dgx-a100-80gb", "nodes": 64}})
    assert half.plan.data_parallel == 4
    assert model_flops_per_step(half) == model_flops_per_step(gpt3())
    assert half.plan.microbatches == 2 * gpt3().plan.microbatches
