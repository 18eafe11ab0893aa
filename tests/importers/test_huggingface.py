"""Hugging Face configurations: v4 and v5 forms, families, multimodal parts, and what the model cannot express."""

import json
from pathlib import Path
from typing import Any

import pytest

from importers import import_file
from plan.huggingface import model_section
from plan.ledger import Ledger
from plan.run import load
from program.errors import InputError
from tests.importers.imported import imported, said

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "n_ctx": 1024,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
}
BLOOM = {
    "model_type": "bloom",
    "n_embed": 14336,
    "n_layer": 70,
    "num_attention_heads": 112,
    "vocab_size": 250880,
    "seq_length": 2048,
}


def count(folder: Path, config: dict[str, Any]) -> int:
    """Parameters of an imported configuration, through the loader."""
    result = imported(folder, json.dumps(config), "config.json", cluster="dgx-h100", nodes=1)
    assert not result.problems
    return load(result.run_dict, ["model.attention_dropout=0"]).model.parameters()


@pytest.mark.parametrize(
    ("config", "published"), [(LLAMA, 8_030_261_248), (GPT2, 124_439_808), (BLOOM, 176_247_271_424)]
)
def test_parameters_equal_the_published_count(tmp_path: Path, config: dict[str, Any], published: int) -> None:
    """The exact integer of the model card."""
    assert count(tmp_path, config) == published


def test_both_rope_forms_give_the_same_model() -> None:
    """v4: rope_theta and rope_scaling; v5: rope_parameters."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    old = LLAMA | {"rope_scaling": scaling | {"rope_type": "llama3"}}
    new = {key: value for key, value in LLAMA.items() if key not in ("rope_theta", "torch_dtype")}
    new |= {"dtype": "bfloat16", "rope_parameters": scaling | {"rope_type": "llama3", "rope_theta": 500000.0}}
    first, second = model_section(old, Ledger()), model_section(new, Ledger())
    assert first == second
    assert first["rope"] == {
        "theta": 500000.0,
        "scaling": {
            "kind": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_positions": 8192,
        },
    }


def test_the_language_part_of_a_multimodal_model(tmp_path: Path) -> None:
    """Vision heads do not count; the note says which part was used."""
    config = {
        "model_type": "internvl_chat",
        "text_config": LLAMA,
        "vision_config": {"num_attention_heads": 25, "hidden_size": 3200},
    }
    result = imported(tmp_path, json.dumps(config), "config.json", cluster="dgx-h100", nodes=1)
    assert result.run_dict["model"]["heads"] == 32
    assert said(result, "the language part text_config is used, not vision_config")


def test_what_gemma_3_leaves_out_is_what_its_class_takes(tmp_path: Path) -> None:
    """google/gemma-3-4b's language part says five numbers; heads, vocabulary, tied embeddings and angles are those of
    Gemma3TextConfig. The language model has 3,880,263,168 parameters."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}  # fmt: skip
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"num_attention_heads": 16}}
    assert count(tmp_path, config) == 3_880_263_168
    model = model_section(config, Ledger())
    assert (model["rope"]["theta"], model["rope"]["local_theta"]) == (1e6, 1e4)
    assert (model["window"], model["seq_length"]) == ({"size": 1024, "full_every": 6}, 131072)


def test_qwen2_biases_qkv_alone() -> None:
    """A bias on QKV and nowhere else."""
    model = model_section(
        LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, Ledger()
    )
    assert (model["bias"], model["qkv_bias"]) == (False, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "mixture of experts (8 experts)"),
        ({"model_type": "mixtral"}, "model_type 'mixtral', a mixture of experts"),
        ({"model_type": "qwen2_moe"}, "model_type 'qwen2_moe', a mixture of experts"),
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe', a mixture of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 0}, "mixture of experts (0 experts)"),
        ({"model_type": "qwen2_moe", "num_experts": 1}, "a shared expert"),
        ({"model_type": "mixtral", "num_local_experts": 1, "moe_intermediate_size": 8}, "moe_intermediate_size 8"),
        ({"model_type": "gemma4"}, "model_type 'gemma4'"),
        ({"model_type": "t5", "hidden_act": "relu"}, "model_type 't5'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "rope scaling of type dynamic"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 28},
            "layer 28",
        ),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "opt", "do_layer_norm_before": False, "hidden_act": "relu"}, "do_layer_norm_before false"),
        ({"model_type": "opt", "word_embed_proj_dim": 512, "hidden_act": "relu"}, "embeddings of another width"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "latent attention (kv_lora_rank 512)"),
        ({"quantization_config": {"bits": 4}}, "quantized weights"),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}, "in no repeated order"),
        ({"layer_types": ["chunked_attention"]}, "layers of chunked_attention (layer_types)"),
    ],
)
def test_what_the_model_cannot_express(change: dict[str, Any], words: str) -> None:
    """Named as not yet forecast, never approximated."""
    ledger = Ledger()
    model_section(LLAMA | change, ledger)
    assert any(words in sentence for sentence in ledger.not_forecast)


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, {"size": 4096, "full_every": 0}),
        ({"model_type": "mistral", "sliding_window": 8192}, None),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral"}, {"size": 4096, "full_every": 0}),  # the default of its class
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 32}, None),
        (
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0},
            {"size": 4096, "full_every": 0},
        ),
        ({"model_type": "gemma2", "hidden_act": None, "sliding_window": 4096}, {"size": 4096, "full_every": 2}),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 64},
            {"size": 64, "full_every": 2},
        ),
        ({"model_type": "gemma3_text", "hidden_act": None, "sliding_window": 512}, {"size": 512, "full_every": 6}),
    ],
)
def test_which_layers_have_a_window(change: dict[str, Any], window: dict[str, int] | None) -> None:
    """By the family's pattern, or by layer_types; a window as long as the sequence is none."""
    ledger = Ledger()
    assert model_section(LLAMA | change, ledger).get("window") == window
    assert (ledger.problems, ledger.not_forecast) == ([], [])


def test_biases_of_attention_and_mlp_are_read_apart() -> None:
    """Of a llama's four products with attention_bias: three and one."""
    model = model_section(LLAMA | {"attention_bias": True}, Ledger())
    assert model["bias"] == {"qkv": True, "out": True, "mlp": False}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "yarn", "factor": 4.0}, {"factor": 4.0, "original_max_positions": 8192}),
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "mscale": 1, "mscale_all_dim": 1},
            {"factor": 4.0, "original_max_positions": 2048, "attention_factor": 1.0},
        ),
        (
            {"type": "su", "short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 4096},
            {"factor": 2.0, "original_max_positions": 4096, "short_factor": [1.0], "long_factor": [2.0]},
        ),
    ],
)
def test_long_rotary_scalings_are_filled_in_as_transformers_does(scaling: dict[str, Any], expected: Any) -> None:
    """The factor of LongRoPE is the longest length over the original one."""
    kind = {"yarn": "yarn", "su": "longrope"}[scaling["type"]]
    assert model_section(LLAMA | {"rope_scaling": scaling}, Ledger())["rope"]["scaling"] == {"kind": kind} | expected


def test_a_cap_on_scores_says_which_kernel_runs() -> None:
    """transformers trains Gemma 2 with eager attention."""
    ledger = Ledger()
    model_section(LLAMA | {"model_type": "gemma2", "hidden_act": None}, ledger)
    assert any("scores are capped at 50, so attention is unfused" in warning for warning in ledger.warnings)


def test_one_expert_is_a_dense_model() -> None:
    """A mixture that says so is read; the types themselves are not offered as the nearest."""
    ledger = Ledger()
    assert model_section(LLAMA | {"model_type": "mixtral", "num_local_experts": 1}, ledger)["ffn"] == 14336
    assert not ledger.not_forecast
    model_section(LLAMA | {"model_type": "gemma4"}, ledger)
    assert not any("mixtral" in sentence or "moe" in sentence for sentence in ledger.not_forecast)


def test_every_wrong_value_is_said_by_its_own_name(tmp_path: Path) -> None:
    """One answer for all of them; nothing of a wrong size follows."""
    wrong = {"hidden_size": "wide", "num_hidden_layers": 4.5, "vocab_size": -1, "max_position_embeddings": 0}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | wrong | {"hidden_act": "foo", "attention_dropout": 1}))
    with pytest.raises(InputError) as caught:
        import_file(tmp_path / "config.json", cluster="dgx-h100", nodes=1)
    assert caught.value.problems == (
        "num_hidden_layers is 4.5, but must be a whole number (nearest: 4)",
        "hidden_size is 'wide', but must be a number",
        "vocab_size is -1; it must be at least 1",
        "max_position_embeddings is 0; it must be at least 1",
        "attention_dropout is 1; it must be below 1",
        "not yet forecast: hidden_act foo in a gated MLP; nearest supported: silu",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "rope_scaling.factor is -2; it must be above 0"),
        ({"rope_theta": 0}, "rope_theta is 0; it must be above 0"),
        ({"rms_norm_eps": True}, "rms_norm_eps is true, but must be a number"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0; it must be at least 1"),
        ({"model_type": "gpt2", "n_inner": 0, "intermediate_size": None}, "n_inner is 0; it must be at least 1"),
    ],
)
def test_a_number_out_of_range_is_one_problem(change: dict[str, Any], words: str) -> None:
    """Zero is not "not given", and the sign is checked under the file's key."""
    ledger = Ledger()
    model_section(LLAMA | change, ledger)
    assert [words in problem for problem in ledger.problems] == [True]


def test_no_kv_heads_is_not_all_heads() -> None:
    """Zero is a wrong number, and null means one a head."""
    ledger = Ledger()
    model_section(LLAMA | {"num_key_value_heads": 0}, ledger)
    assert ledger.problems == ["num_key_value_heads is 0; it must be at least 1"]
    assert model_section(LLAMA | {"num_key_value_heads": None}, Ledger())["kv_heads"] == LLAMA["num_attention_heads"]


def test_missing_shape_keys_are_problems() -> None:
    """Every name a key may have is listed."""
    ledger = Ledger()
    assert model_section({"model_type": "llama", "hidden_size": 64}, ledger) == {}
    assert any("num_hidden_layers or n_layer" in problem for problem in ledger.problems)


def test_a_config_serves_as_the_model_of_another_file(tmp_path: Path) -> None:
    """`--model config.json` beside a DeepSpeed JSON."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    result = imported(
        tmp_path, '{"train_batch_size": 8}', "ds.json", cluster="dgx-h100", nodes=1, model=str(tmp_path / "config.json")
    )
    assert result.run_dict["model"]["layers"] == 32
