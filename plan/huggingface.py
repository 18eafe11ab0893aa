"""A Hugging Face `config.json` as the model of a run: files written by transformers v4 and v5, language parts of
multimodal models.

    model_section(json.load(open("config.json")), ledger)  ->  {"layers": 32, "hidden": 4096, ...}

A config.json says nothing about training: sequence length, batch and plan are taken at their defaults, with a warning
about the length. Architectures that `plan.model.Model` cannot express exactly are collected as "not yet forecast"; keys
that nobody reads are named (`plan.huggingface_keys`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plan import huggingface_keys as keys
from plan import presets
from plan.huggingface_rope import rope
from plan.huggingface_values import ALIASES, first, flag, list_of, name_of, rate, whole
from plan.ledger import Ledger
from plan.lenient_json import read_json
from program.files import text_of
from program.nearest import nearest_name, shown

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
    }
)
MIXTURES = frozenset({"mixtral", "qwen2_moe", "qwen3_moe"})
"""Mixtures of experts around a gated layer: a dense model only where their configuration says one expert, for what
transformers fills in is 8, 60 and 128."""
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
    found = {ours: whole(config, ours, ledger) for ours in ("layers", "hidden", "heads", "vocab")}
    for ours in found:
        if first(config, ours) is None:
            ledger.problem(f"config.json has no {' or '.join(ALIASES[ours])}; it is needed for {ours}")
    shape = {ours: value or 1 for ours, value in found.items()}  # a wrong size counts as 1 in what is still checked
    length = whole(config, "positions", ledger)
    length = 2048 if length is None else length
    ledger.warn(
        f"a config.json does not say the training length: seq_length {length} (the model's maximum) is taken; set"
        " model.seq_length"
    )
    model: dict[str, Any] = {"name": str(config.get("_name_or_path") or kind), **shape, "seq_length": length}
    model |= _family(kind, config, model, ledger)
    groups = whole(config, "kv_heads", ledger)
    model["kv_heads"] = (
        (1 if flag(config, "multi_query", False, ledger) else shape["heads"]) if groups is None else groups
    )
    if (width := whole(config, "head_dim", ledger)) is not None:
        model["head_dim"] = width
    elif kind == "qwen3":
        model["head_dim"] = 128
    epsilon = first(config, "eps")
    if epsilon is not None:
        model["norm_eps"] = ledger.number(epsilon, name_of(config, "eps"), above=0)
    if "initializer_range" in config:
        model["init_std"] = ledger.number(config["initializer_range"], "initializer_range", above=0)
    _unsupported(kind, config, length, ledger)
    return {} if None in found.values() else model


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
    if kind not in GATED | MIXTURES | own.keys():  # it may cap logits or add norms: never read as its nearest relative
        near = nearest_name(kind, [*GATED, *own], cutoff=0.7)
        known = f"{', '.join(sorted(GATED))}, gpt2, gpt_neox or bloom"
        ledger.not_yet(f"model_type {kind!r}", f"{near} (of {known})" if near else known)
        return _llama(kind, config, ledger)
    keys.check(config, ledger)
    return own[kind](config, model, ledger) if kind in own else _llama(kind, config, ledger)


def _llama(kind: str, config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    activation = first(config, "activation")
    if activation is not None and str(activation) not in ("silu", "swish"):
        ledger.not_yet(f"{name_of(config, 'activation')} {activation} in a gated MLP", "silu")
    everywhere = flag(config, "bias", False, ledger)  # internlm2
    attention_bias = flag(config, "attention_bias", everywhere, ledger)
    mlp_bias = flag(config, "mlp_bias", everywhere, ledger)
    if kind == "baichuan" and first(config, "positions") == config.get("model_max_length"):
        ledger.not_yet("baichuan with model_max_length instead of max_position_embeddings (ALiBi)", "the 7B's rotary")
    if attention_bias != mlp_bias:
        ledger.not_yet(f"attention_bias {attention_bias} with mlp_bias {mlp_bias}".lower(), "the same for both")
    found: dict[str, Any] = {
        "ffn": whole(config, "ffn", ledger),
        "activation": "swiglu",
        "norm": "rmsnorm",
        "positions": "rotary",
        "rope": rope(config, ledger),
        "tied_embeddings": flag(config, "tie_word_embeddings", False, ledger),
        "bias": attention_bias and mlp_bias,
        "qkv_bias": flag(config, "qkv_bias", attention_bias or kind in ("qwen2", "qwen2_moe"), ledger),
        "dropout": _dropout(config, 0.0, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }
    return {key: value for key, value in found.items() if value is not None}


def _gpt2(config: Mapping[str, Any], model: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    _gelu(config, "gelu_new", ledger)
    return {
        "ffn": whole(config, "ffn", ledger) or 4 * model["hidden"],
        "activation": "gelu",
        "norm": "layernorm",
        "positions": "learned",
        "max_positions": model["seq_length"],
        "tied_embeddings": flag(config, "tie_word_embeddings", True, ledger),
        "bias": True,
        "dropout": _dropout(config, 0.1, ledger),
        "attention_dropout": rate(config, "attn_pdrop", 0.1, ledger),
    }


def _dropout(config: Mapping[str, Any], usual: float, ledger: Ledger) -> float | None:
    """One rate for embeddings and residuals; two are not forecast."""
    residual, embedding = config.get("resid_pdrop", usual), config.get("embd_pdrop", usual)
    if residual != embedding:
        ledger.not_yet(f"embd_pdrop {embedding} with resid_pdrop {residual}", "the same for both")
    rate(config, "embd_pdrop", usual, ledger)
    return rate(config, "resid_pdrop", usual, ledger)


def _gelu(config: Mapping[str, Any], nearest: str, ledger: Ledger) -> None:
    activation = first(config, "activation")
    if activation is not None and str(activation) not in GELUS:
        ledger.not_yet(f"{name_of(config, 'activation')} {activation}", nearest)


def _bloom(config: Mapping[str, Any], model: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    if flag(config, "apply_residual_connection_post_layernorm", False, ledger):
        ledger.not_yet("apply_residual_connection_post_layernorm", "pre-norm layers")
    return {
        "ffn": 4 * model["hidden"],
        "activation": "gelu",
        "norm": "layernorm",
        "positions": "alibi",
        "embedding_norm": True,
        "tied_embeddings": flag(config, "tie_word_embeddings", True, ledger),
        "bias": True,
        "dropout": rate(config, "hidden_dropout", 0.0, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


def _neox(config: Mapping[str, Any], model: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    if flag(config, "use_parallel_residual", True, ledger):
        ledger.not_yet("attention and MLP in parallel (use_parallel_residual)", "use_parallel_residual false")
    if not flag(config, "attention_bias", True, ledger):
        ledger.not_yet("gpt_neox with attention_bias false", "attention_bias true")
    _gelu(config, "gelu", ledger)
    return {
        "ffn": whole(config, "ffn", ledger) or 4 * model["hidden"],
        "activation": "gelu",
        "norm": "layernorm",
        "positions": "rotary",
        "rope": rope(config, ledger),
        "tied_embeddings": flag(config, "tie_word_embeddings", False, ledger),
        "bias": True,
        "dropout": rate(config, "hidden_dropout", 0.0, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


def _unsupported(kind: str, config: Mapping[str, Any], length: int, ledger: Ledger) -> None:
    _experts(kind, config, ledger)
    if not all(list_of(config, "no_rope_layers", [0] if kind == "smollm3" else [], ledger)):
        ledger.not_yet("layers without rotary embeddings (no_rope_layers)", "rotary embeddings in every layer")
    if kind in ("qwen3", "qwen3_moe"):
        ledger.not_yet(f"{kind}'s norms on queries and keys", "a llama or qwen2 configuration")
    if config.get("kv_lora_rank"):
        ledger.not_yet(
            f"latent attention (kv_lora_rank {config['kv_lora_rank']})", "grouped-query attention of the same heads"
        )
    if config.get("quantization_config") is not None:
        ledger.not_yet("quantized weights (quantization_config)", "the bf16 model, without quantization_config")
    kinds = list_of(config, "layer_types", [], ledger)
    others = sorted({str(k) for k in kinds} - {"full_attention"})
    window = _window(config, ledger)
    if others and not (others == ["sliding_attention"] and window is not None and window >= length):
        ledger.not_yet(f"layers of {', '.join(others)} (layer_types)", "full_attention in every layer")
        return
    used = flag(config, "use_sliding_window", kind not in ("qwen2", "qwen3"), ledger)
    if window is not None and used and window < 1:
        ledger.problem(f"sliding_window is {window}; it must be at least 1, or null for full attention")
    elif window is not None and used and window < length:
        ledger.not_yet(
            f"sliding-window attention ({window} of {length} positions)", "full attention (sliding_window null)"
        )


def _experts(kind: str, config: Mapping[str, Any], ledger: Ledger) -> None:
    """One expert is a dense layer, of the width that `intermediate_size` says; more are not forecast."""
    counts = [ledger.integer(config[key], key, least=0) for key in EXPERTS if config.get(key) is not None]
    experts = max((count for count in counts if count is not None), default=None)
    if not counts and kind in MIXTURES:
        ledger.not_yet(
            f"model_type {kind!r}, a mixture of experts (none of {', '.join(EXPERTS)} is given)",
            "the dense model of the same shape, or one expert",
        )
    if experts is not None and experts != 1 and (experts or kind in MIXTURES):
        ledger.not_yet(f"mixture of experts ({experts} experts)", "the dense model of the same shape")
    width = config.get("moe_intermediate_size")
    if kind in MIXTURES and experts == 1 and width is not None and width != first(config, "ffn"):
        ledger.not_yet(f"an expert of moe_intermediate_size {shown(width)}", "the same as intermediate_size")
    if kind == "qwen2_moe" and experts == 1 and config.get("shared_expert_intermediate_size") != 0:
        ledger.not_yet("a shared expert beside the routed one", "shared_expert_intermediate_size 0")


def _window(config: Mapping[str, Any], ledger: Ledger) -> int | None:
    value = config.get("sliding_window")
    return None if value is None or value is False else ledger.integer(value, "sliding_window")
