"""A Hugging Face `config.json` as the model of a run: files written by transformers v4 and v5, language parts of
multimodal models.

    model_section(json.load(open("config.json")), ledger)  ->  {"layers": 32, "hidden": 4096, ...}

A config.json says nothing about training: sequence length, batch and plan are taken at their defaults, with a warning
about the length. Architectures that `plan.model.Model` cannot express exactly are collected as "not yet forecast"; keys
that nobody reads are named (`plan.importers.huggingface_keys`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plan import presets
from plan.files import text_of
from plan.importers import huggingface_keys as keys
from plan.importers.huggingface_rope import rope
from plan.importers.ledger import Ledger
from plan.importers.relaxed import read_json

LANGUAGE_PARTS = ("text_config", "llm_config", "language_config", "language_model")
GATED = frozenset(
    {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "phi3",
        "internlm2",
        "yi",
        "baichuan",
        "smollm3",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
    }
)
ALIASES = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_head_kv"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "model_max_length"),
    "eps": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    "activation": ("hidden_act", "activation_function", "hidden_activation"),
}
GELUS = frozenset({"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"})
EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")


def is_huggingface(config: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a transformers configuration."""
    return any(key in config for key in ("model_type", "architectures", *LANGUAGE_PARTS)) or {
        "hidden_size",
        "num_hidden_layers",
    } <= set(config)


def in_model(section: object, ledger: Ledger) -> object:
    """A `model:` section in which a config.json stands for the model (`model: config.json`, or as its `preset`), with
    the file's numbers in its place; any other section unchanged."""
    path = section.get("preset") if isinstance(section, Mapping) else section
    if not (isinstance(path, str) and path.endswith(".json")):
        return section
    over = {key: value for key, value in section.items() if key != "preset"} if isinstance(section, Mapping) else {}
    return presets.merge(model_of_file(path, ledger), over)


def model_of_file(path: str, ledger: Ledger) -> dict[str, Any]:
    """The `model:` section of a config.json."""
    return model_section(read_json(text_of(Path(path)), path), ledger)


def model_section(config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The `model:` section of a configuration. Missing shape keys are problems."""
    config = language_part(config, ledger)
    kind = str(config.get("model_type", "llama"))
    shape = {ours: _whole(config, ours, ledger) for ours in ("layers", "hidden", "heads", "vocab")}
    for ours in shape:
        if _first(config, ours) is None:
            ledger.problem(f"config.json has no {' or '.join(ALIASES[ours])}; it is needed for {ours}")
    if any(value is None for value in shape.values()):
        return {}
    length = _whole(config, "positions", ledger) or 2048
    ledger.warn(
        f"a config.json does not say the training length: seq_length {length} (the model's maximum) is taken; set"
        " model.seq_length"
    )
    model: dict[str, Any] = {"name": str(config.get("_name_or_path") or kind), **shape, "seq_length": length}
    model |= _family(kind, config, model, ledger)
    groups = _whole(config, "kv_heads", ledger)
    model["kv_heads"] = (
        (1 if _flag(config, "multi_query", False, ledger) else shape["heads"]) if groups is None else groups
    )
    if (width := _whole(config, "head_dim", ledger)) is not None:
        model["head_dim"] = width
    elif kind == "qwen3":
        model["head_dim"] = 128
    epsilon = _first(config, "eps")
    if epsilon is not None:
        model["norm_eps"] = ledger.number(epsilon, "norm eps")
    if "initializer_range" in config:
        model["init_std"] = ledger.number(config["initializer_range"], "initializer_range")
    _unsupported(kind, config, length, ledger)
    return model


def language_part(config: Mapping[str, Any], ledger: Ledger) -> Mapping[str, Any]:
    """The language part of a multimodal configuration (vision heads must not count), or the configuration itself."""
    for part in LANGUAGE_PARTS:
        if isinstance(config.get(part), Mapping):
            others = [key for key in config if key.endswith("_config") and key != part]
            ledger.note(
                f"multimodal config.json: the language part {part} is"
                f" used{', not ' + ', '.join(others) if others else ''}"
            )
            return language_part(
                {"tie_word_embeddings": config.get("tie_word_embeddings", False), **config[part]}, ledger
            )
    return config


def _family(kind: str, config: Mapping[str, Any], model: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    own = {"gpt2": _gpt2, "bloom": _bloom, "gpt_neox": _neox}
    if kind not in GATED and kind not in own:  # it may cap logits or add norms: never read as its nearest relative
        ledger.not_yet(f"model_type {kind!r}", f"{', '.join(sorted(GATED))}, gpt2, gpt_neox or bloom")
        return _llama(kind, config, ledger)
    keys.check(config, ledger)
    return own[kind](config, model, ledger) if kind in own else _llama(kind, config, ledger)


def _llama(kind: str, config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    activation = str(_first(config, "activation") or "silu")
    if activation not in ("silu", "swish"):
        ledger.not_yet(f"hidden_act {activation} in a gated MLP", "silu")
    everywhere = _flag(config, "bias", False, ledger)  # internlm2
    attention_bias = _flag(config, "attention_bias", everywhere, ledger)
    mlp_bias = _flag(config, "mlp_bias", everywhere, ledger)
    if kind == "baichuan" and _first(config, "positions") == config.get("model_max_length"):
        ledger.not_yet("baichuan with model_max_length instead of max_position_embeddings (ALiBi)", "the 7B's rotary")
    if attention_bias != mlp_bias:
        ledger.not_yet(f"attention_bias {attention_bias} with mlp_bias {mlp_bias}".lower(), "the same for both")
    found: dict[str, Any] = {
        "ffn": _whole(config, "ffn", ledger),
        "activation": "swiglu",
        "norm": "rmsnorm",
        "positions": "rotary",
        "rope": rope(config, ledger),
        "tied_embeddings": _flag(config, "tie_word_embeddings", False, ledger),
        "bias": attention_bias and mlp_bias,
        "qkv_bias": _flag(config, "qkv_bias", attention_bias or kind in ("qwen2", "qwen2_moe"), ledger),
        "dropout": _dropout(config, 0.0, ledger),
        "attention_dropout": ledger.number(config.get("attention_dropout", 0.0), "attention_dropout"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _gpt2(config: Mapping[str, Any], model: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    activation = str(_first(config, "activation") or "gelu_new")
    if activation not in GELUS:
        ledger.not_yet(f"activation_function {activation}", "gelu_new")
    return {
        "ffn": _whole(config, "ffn", ledger) or 4 * model["hidden"],
        "activation": "gelu",
        "norm": "layernorm",
        "positions": "learned",
        "max_positions": model["seq_length"],
        "tied_embeddings": _flag(config, "tie_word_embeddings", True, ledger),
        "bias": True,
        "dropout": _dropout(config, 0.1, ledger),
        "attention_dropout": ledger.number(config.get("attn_pdrop", 0.1), "attn_pdrop"),
    }


def _dropout(config: Mapping[str, Any], usual: float, ledger: Ledger) -> float | None:
    """One rate for embeddings and residuals; two are not forecast."""
    residual, embedding = config.get("resid_pdrop", usual), config.get("embd_pdrop", usual)
    if residual != embedding:
        ledger.not_yet(f"embd_pdrop {embedding} with resid_pdrop {residual}", "the same for both")
    return ledger.number(residual, "resid_pdrop")


def _bloom(config: Mapping[str, Any], model: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    if _flag(config, "apply_residual_connection_post_layernorm", False, ledger):
        ledger.not_yet("apply_residual_connection_post_layernorm", "pre-norm layers")
    return {
        "ffn": 4 * model["hidden"],
        "activation": "gelu",
        "norm": "layernorm",
        "positions": "alibi",
        "embedding_norm": True,
        "tied_embeddings": _flag(config, "tie_word_embeddings", True, ledger),
        "bias": True,
        "dropout": ledger.number(config.get("hidden_dropout", 0.0), "hidden_dropout"),
        "attention_dropout": ledger.number(config.get("attention_dropout", 0.0), "attention_dropout"),
    }


def _neox(config: Mapping[str, Any], model: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    if _flag(config, "use_parallel_residual", True, ledger):
        ledger.not_yet("attention and MLP in parallel (use_parallel_residual)", "use_parallel_residual false")
    if not _flag(config, "attention_bias", True, ledger):
        ledger.not_yet("gpt_neox with attention_bias false", "attention_bias true")
    if str(_first(config, "activation") or "gelu") not in GELUS:
        ledger.not_yet(f"hidden_act {_first(config, 'activation')}", "gelu")
    return {
        "ffn": _whole(config, "ffn", ledger) or 4 * model["hidden"],
        "activation": "gelu",
        "norm": "layernorm",
        "positions": "rotary",
        "rope": rope(config, ledger),
        "tied_embeddings": _flag(config, "tie_word_embeddings", False, ledger),
        "bias": True,
        "dropout": ledger.number(config.get("hidden_dropout", 0.0), "hidden_dropout"),
        "attention_dropout": ledger.number(config.get("attention_dropout", 0.0), "attention_dropout"),
    }


def _unsupported(kind: str, config: Mapping[str, Any], length: int, ledger: Ledger) -> None:
    experts = next((config[key] for key in EXPERTS if config.get(key)), None)
    if experts is not None and experts != 1:
        ledger.not_yet(f"mixture of experts ({experts} experts)", "the dense model of the same shape")
    if not all(_list(config, "no_rope_layers", [0] if kind == "smollm3" else [], ledger)):
        ledger.not_yet("layers without rotary embeddings (no_rope_layers)", "rotary embeddings in every layer")
    if kind == "qwen3":
        ledger.not_yet("qwen3's norms on queries and keys", "a llama or qwen2 configuration")
    if config.get("kv_lora_rank"):
        ledger.not_yet(
            f"latent attention (kv_lora_rank {config['kv_lora_rank']})", "grouped-query attention of the same heads"
        )
    if config.get("quantization_config") is not None:
        ledger.not_yet("quantized weights (quantization_config)", "the bf16 model, without quantization_config")
    kinds = _list(config, "layer_types", [], ledger)
    others = sorted({str(k) for k in kinds} - {"full_attention"})
    window = _window(config, ledger)
    if others and not (others == ["sliding_attention"] and window is not None and window >= length):
        ledger.not_yet(f"layers of {', '.join(others)} (layer_types)", "full_attention in every layer")
        return
    used = _flag(config, "use_sliding_window", kind not in ("qwen2", "qwen3"), ledger)
    if window and used and window < length:
        ledger.not_yet(
            f"sliding-window attention ({window} of {length} positions)", "full attention (sliding_window null)"
        )


def _flag(config: Mapping[str, Any], key: str, usual: bool, ledger: Ledger) -> bool:
    value = config.get(key)
    return usual if value is None else ledger.boolean(value, key) or False


def _list(config: Mapping[str, Any], key: str, usual: list[Any], ledger: Ledger) -> list[Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, list):
        ledger.problem(f"{key} is {value!r}, but must be a list, one value a layer")
    return value if isinstance(value, list) else usual


def _window(config: Mapping[str, Any], ledger: Ledger) -> int | None:
    value = config.get("sliding_window")
    return None if value is None or value is False else ledger.integer(value, "sliding_window")


def _first(config: Mapping[str, Any], ours: str) -> Any:
    return next((config[key] for key in ALIASES[ours] if config.get(key) is not None), None)


def _whole(config: Mapping[str, Any], ours: str, ledger: Ledger) -> int | None:
    value = _first(config, ours)
    return None if value is None else ledger.integer(value, ours)
