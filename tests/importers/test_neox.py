"""GPT-NeoX YAML: both spellings, DeepSpeed's keys, the derived batch."""

import json
from pathlib import Path

import pytest

from plan.run import load
from tests.importers.imported import imported, said

TEXT = """{
  "pipe-parallel-size": 4, "model_parallel_size": 2, "num_layers": 8, "hidden-size": 64, "num-attention-heads": 4,
  "seq-length": 32, "pos-emb": "rotary", "no-weight-tying": true, "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8, "checkpoint-activations": true, "bf16": {"enabled": true, }, "zero_optimization":
  {"stage": 1, "reduce_bucket_size": 5e8, }, "train-iters": 100, "warmup": 0.1, "vocab-size": 1000, "data-path": "x",
  "hiden_dropout": 0, # a comment
}"""


def test_a_configuration(tmp_path: Path) -> None:
    """Keys in either spelling, comments and trailing commas; the global batch follows from the ranks."""
    result = imported(tmp_path, TEXT, "x.yml", cluster="dgx-a100-80gb", nodes=2)
    plan = result.run_dict["plan"]
    assert (plan["pipeline_parallel"], plan["tensor_parallel"], plan["recompute"]) == (4, 2, "full")
    assert plan["global_batch_size"] == 4 * 8 * 2
    assert result.run_dict["model"]["vocab"] == 1000
    assert said(result, "unknown GPT-NeoX key hiden_dropout", "hidden_dropout")
    assert said(result, "no effect on the forecast", "data_path")


def test_a_key_in_both_spellings(tmp_path: Path) -> None:
    """Two values of one key are a problem with both."""
    assert said(imported(tmp_path, TEXT[:-1] + '"hidden_size": 128}', "x.yml"), "hidden_size stands twice", "64", "128")


def test_every_wrong_number_is_said_at_once(tmp_path: Path) -> None:
    """Under its own key, and neither as missing nor as a batch that does not close."""
    text = TEXT.replace('"num_layers": 8', '"num_layers": 0').replace(
        '"model_parallel_size": 2', '"model_parallel_size": 0'
    )
    text = text.replace('"train-iters": 100', '"train-iters": -1').replace('"vocab-size": 1000', '"vocab-size": "many"')
    assert sorted(imported(tmp_path, text, "x.yml", cluster="dgx-a100-80gb", nodes=2).problems) == [
        "model_parallel_size is 0; it must be at least 1",
        "num_layers is 0; it must be at least 1",
        "train_iters is -1; it must be at least 1",
        "vocab_size is 'many', but must be a number",
    ]


LLAMA = {
    "pipe_parallel_size": 1, "model_parallel_size": 1, "make_vocab_size_divisible_by": 1, "num_layers": 32,
    "hidden_size": 4096, "intermediate_size": 32768, "num_attention_heads": 32, "seq_length": 2048, "vocab_size": 32000,
    "pos_emb": "rotary", "no_weight_tying": True, "norm": "rmsnorm", "use_bias_in_mlp": False,
    "use_bias_in_attn_linear": False, "activation": "swiglu", "mlp_multiple_of": 256, "precision": "bfloat16",
}  # fmt: skip


def test_llama_7b(tmp_path: Path) -> None:
    """`configs/llama/7B.yml`: a gated MLP takes a third of `intermediate_size`; the sizes are those of LLaMA 7B."""
    result = imported(tmp_path, json.dumps(LLAMA), "7B.yml", cluster="dgx-a100-80gb", nodes=1)
    run = load(result.run_dict)
    assert (run.model.ffn, run.model.parameters()) == (11008, 6_738_415_616)
    assert (run.plan.precision, run.plan.attention, run.model.norm_eps) == ("bf16", "unfused", 1e-8)


def test_the_form_of_a_layer(tmp_path: Path) -> None:
    """GPT-NeoX-20B's parallel residual on a quarter of each head, biases of the MLP alone, a window."""
    keys = {"gpt_j_residual": True, "rotary_pct": 0.25, "use_bias_in_mlp": True, "sliding_window_width": 255}
    model = imported(tmp_path, json.dumps(LLAMA | keys), "x.yml", cluster="dgx-a100-80gb", nodes=1).run_dict["model"]
    assert (model["parallel_residual"], model["shared_norm"], model["rope"]["fraction"]) == (True, False, 0.25)
    assert (model["bias"], model["window"]) == ({"qkv": False, "out": False, "mlp": True}, 256)
    tied = imported(
        tmp_path, json.dumps(LLAMA | keys | {"gpt_j_tied": True}), "y.yml", cluster="dgx-a100-80gb", nodes=1
    )
    assert tied.run_dict["model"]["shared_norm"] is True


def test_kernels_that_are_not_fused_are_said(tmp_path: Path) -> None:
    """Fusions are off by default in GPT-NeoX and on in the forecast; those that the model cannot use are no loss."""
    request = {"cluster": "dgx-a100-80gb", "nodes": 1}
    result = imported(
        tmp_path, json.dumps(LLAMA | {"rope_fusion": True, "bias_gelu_fusion": False}), "7B.yml", **request
    )
    (sentence,) = (warning for warning in result.warnings if "keeps the fused kernel" in warning)
    assert sentence.startswith("scaled_upper_triang_masked_softmax_fusion, rmsnorm_fusion false")
    assert said(result, "bias_gelu_fusion: this model has nothing to fuse by it")


def test_transformer_engine_and_norms_of_queries_are_not_forecast(tmp_path: Path) -> None:
    """Known keys that change every layer end in exit 2, and not as misspelt ones."""
    keys = {"te_mha": True, "te_layernorm_mlp": True, "te_fp8_format": "hybrid", "use_qk_layernorm": True}
    found = imported(tmp_path, json.dumps(LLAMA | keys), "7B.yml", cluster="dgx-a100-80gb", nodes=1).problems
    assert [problem.partition(";")[0] for problem in found] == [
        "not yet forecast: Transformer Engine's layers (te_layernorm_mlp, te_mha)",
        "not yet forecast: norms of queries and keys (use_qk_layernorm)",
    ]
    result = imported(
        tmp_path, json.dumps(LLAMA | {"te_fp8_format": "hybrid"}), "7B.yml", cluster="dgx-a100-80gb", nodes=1
    )
    assert said(result, "te_fp8_format have no effect without Transformer Engine's layers")


def test_positions_not_named_are_learned(tmp_path: Path) -> None:
    """`pos_emb` is learned by default, whatever rotary keys stand beside it (`neox_args.py`)."""
    plain = {key: value for key, value in LLAMA.items() if key != "pos_emb"} | {"rotary_pct": 1.0}
    result = imported(tmp_path, json.dumps(plain), "7B.yml", cluster="dgx-a100-80gb", nodes=1)
    assert result.run_dict["model"]["positions"] == "learned"
    assert said(result, "rotary_pct has no effect with pos_emb learned")


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({}, 4 * 4096),
        ({"activation": "swiglu"}, 4 * 4096 // 3),
        ({"activation": "swiglu", "intermediate_size": 30000}, 10000),
        ({"expansion_factor": 2}, 8192),
        ({"mlp_type": "llama"}, 11008),
        ({"mlp_type": "llama", "intermediate_size": 9000}, 9000),
        ({"intermediate_size": 9000, "mlp_multiple_of": 128}, 9088),
    ],
)
def test_widths(keys: dict[str, object], width: int, tmp_path: Path) -> None:
    """Of plain, gated and older Llama MLPs."""
    plain = {key: value for key, value in LLAMA.items() if key not in ("intermediate_size", "activation")}
    plain.pop("mlp_multiple_of")
    result = imported(tmp_path, json.dumps(plain | keys), "x.yml", nodes=1)
    assert result.run_dict["model"]["ffn"] == width


@pytest.mark.parametrize(
    ("config", "said_of_it"),
    [
        ([[["flash"], 32]], None),
        (["flash"] * 32, None),
        ([[["flash"], "all"]], None),
        ([[["flash"], 24]], "names the attention of 24 layers, but num_layers is 32"),
        ([[["flsh"], 32]], "the nearest is 'flash'"),
        ([[["local", "global"], "all"]], "attention of the kind local"),
        ([[["flash", "global"], 16]], "global beside flash"),
        (7, 'attention_config is 7; it must be such as [[["flash"], 32]]'),
        ([[["flash"], 1e30]], "must be such as"),
        ([[[3], 32]], "must be such as"),
        ([[["flash"], "most"]], 'must be such as [[["flash"], 32]]'),
    ],
)
def test_attention(config: object, said_of_it: str | None, tmp_path: Path) -> None:
    """One kind in every layer."""
    result = imported(tmp_path, json.dumps(LLAMA | {"attention_config": config}), "x.yml", nodes=1)
    if said_of_it is None:
        assert (result.problems, result.run_dict["plan"]["attention"]) == ((), "flash")
    else:
        assert any(said_of_it in each for each in result.problems), result.problems


def test_precision_agrees_with_deepspeeds_sections(tmp_path: Path) -> None:
    """Or both are named."""
    wrong = imported(tmp_path, json.dumps(LLAMA | {"fp16": {"enabled": True}}), "x.yml", nodes=1)
    assert said(wrong, "precision is 'bfloat16', but fp16.enabled is true")
    right = imported(tmp_path, json.dumps(LLAMA | {"precision": "fp16", "fp16": {"loss_scale": 0}}), "x.yml", nodes=1)
    assert right.run_dict["plan"]["precision"] == "fp16"
