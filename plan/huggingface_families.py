"""The families of a Hugging Face `config.json`: what of `plan.model.Model` each `model_type` is, with the defaults of
its configuration class in transformers, and the keys that it alone reads.

    FAMILIES["gemma2"].read("gemma2", config, model, ledger)      # {"activation": "geglu", "norm_place": "both", …}

A family is one function; `model` holds the sizes that every configuration has. Rotary pairs that lie side by side
(GPT-J's) and norms of weight 1 + w (Gemma's) are ours by another order of columns and another origin of w.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plan.huggingface_rope import rope
from plan.huggingface_values import first, flag, name_of, rate, whole
from plan.ledger import Ledger

Config = Mapping[str, Any]
Found = dict[str, Any]
Read = Callable[[str, Config, Found, Ledger], Found]
GELUS = frozenset({"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"})
SILUS = frozenset({"silu", "swish"})
MIXTURES = frozenset({"mixtral", "qwen2_moe", "qwen3_moe"})
"""Mixtures of experts around a gated layer: a dense model only where their configuration says one expert, for what
transformers fills in is 8, 60 and 128."""


@dataclass(frozen=True, slots=True)
class Family:
    """How a model_type is read, the keys that it reads beside those of all, and what its class takes for keys that
    published files leave out and that change the model."""

    read: Read
    keys: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- gated layers behind an rmsnorm


def _llama(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    _activation(config, SILUS, "silu", ledger, " in a gated MLP")
    everywhere = flag(config, "bias", False, ledger)  # internlm2
    attention = flag(config, "attention_bias", everywhere, ledger)
    mlp = flag(config, "mlp_bias", everywhere, ledger)
    qkv = flag(config, "qkv_bias", attention or kind in ("qwen2", "qwen2_moe"), ledger)
    if kind == "baichuan" and first(config, "positions") == config.get("model_max_length"):
        ledger.not_yet("baichuan with model_max_length instead of max_position_embeddings (ALiBi)", "the 7B's rotary")
    return _given(
        ffn=whole(config, "ffn", ledger),
        activation="swiglu",
        norm="rmsnorm",
        positions="rotary",
        rope=rope(config, ledger),
        tied_embeddings=flag(config, "tie_word_embeddings", False, ledger),
        **_biases(qkv, attention, mlp),
        dropout=_dropout(config, 0.0, ledger),
        attention_dropout=rate(config, "attention_dropout", 0.0, ledger),
    )


def _qwen3(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    return {"head_dim": 128} | _llama(kind, config, model, ledger) | {"qk_norm": "head"}


def _olmo2(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    """Norms stand on what attention and MLP leave, and on the whole projections of queries and keys."""
    return _llama(kind, config, model, ledger) | {"qk_norm": "projection", "norm_place": "output"}


def _gemma(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    """GeGLU, scaled embeddings; from the second on norms on both sides, caps on scores and logits; from the third on
    norms of queries and keys, and other angles in layers with a window."""
    _activation(config, frozenset({"gelu_pytorch_tanh", "gelu"}), "gelu_pytorch_tanh", ledger, " in a gated MLP")
    bias = flag(config, "attention_bias", False, ledger)
    found = _given(
        ffn=whole(config, "ffn", ledger),
        activation="geglu",
        norm="rmsnorm",
        norm_eps=1e-6,
        positions="rotary",
        rope=rope(config, ledger),
        tied_embeddings=flag(config, "tie_word_embeddings", True, ledger),
        head_dim=256,
        embedding_scale=model["hidden"] ** 0.5,
        **_biases(bias, bias, False),
        attention_dropout=rate(config, "attention_dropout", 0.0, ledger),
    )
    if kind == "gemma":
        return found
    scalar = ledger.number(config.get("query_pre_attn_scalar", 256), "query_pre_attn_scalar", above=0) or 256
    usual = (50.0, 30.0) if kind == "gemma2" else (None, None)
    caps = (
        _cap(config, "attn_logit_softcapping", usual[0], ledger),
        _cap(config, "final_logit_softcapping", usual[1], ledger),
    )
    if caps[0] is not None:
        ledger.warn(
            f"scores are capped at {caps[0]:g}, so attention is unfused (scores in memory), which transformers advises"
            " for training; under flash_attention_2 it would run FlashAttention's own cap, which is not forecast"
        )
    found |= {"norm_place": "both", "attention_scale": scalar**-0.5} | _given(
        attention_softcap=caps[0], logit_softcap=caps[1]
    )
    if kind == "gemma2":
        return found
    local = ledger.number(config.get("rope_local_base_freq", 10000.0), "rope_local_base_freq", above=0)
    return found | {"qk_norm": "head", "rope": {"local_theta": local} | found["rope"]}


# ---------------------------------------------------------------- layers behind a layernorm


def _gpt2(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    _activation(config, GELUS, "gelu_new", ledger)
    return _plain(config, model, ledger) | {
        "positions": "learned",
        "max_positions": model["seq_length"],
        "tied_embeddings": flag(config, "tie_word_embeddings", True, ledger),
        "bias": True,
        "dropout": _dropout(config, 0.1, ledger),
        "attention_dropout": rate(config, "attn_pdrop", 0.1, ledger),
    }


def _bigcode(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    """GPT-2 with one key and value head for all queries."""
    many = flag(config, "multi_query", True, ledger)
    return _gpt2(kind, config, model, ledger) | {"kv_heads": 1 if many else model["heads"]}


def _bloom(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    if flag(config, "apply_residual_connection_post_layernorm", False, ledger):
        ledger.not_yet("apply_residual_connection_post_layernorm", "pre-norm layers")
    return _plain(config, model, ledger) | {
        "ffn": 4 * model["hidden"],
        "positions": "alibi",
        "embedding_norm": True,
        "tied_embeddings": flag(config, "tie_word_embeddings", True, ledger),
        "bias": True,
        "dropout": rate(config, "hidden_dropout", 0.0, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


def _neox(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    _activation(config, GELUS, "gelu", ledger)
    attention = flag(config, "attention_bias", True, ledger)
    return _plain(config, model, ledger) | {
        "positions": "rotary",
        "rope": rope(config, ledger, fraction=0.25),
        "parallel_residual": flag(config, "use_parallel_residual", True, ledger),
        "tied_embeddings": flag(config, "tie_word_embeddings", False, ledger),
        **_biases(attention, attention, True),
        "dropout": rate(config, "hidden_dropout", 0.0, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


def _phi(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    """Attention and MLP beside each other behind one norm; half of each head is turned; the head has a bias."""
    _activation(config, GELUS, "gelu_new", ledger)
    return _plain(config, model, ledger) | {
        "positions": "rotary",
        "rope": rope(config, ledger, fraction=0.5),
        "parallel_residual": True,
        "shared_norm": True,
        "tied_embeddings": flag(config, "tie_word_embeddings", False, ledger),
        "bias": True,
        "head_bias": True,
        "dropout": _dropout(config, 0.0, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


def _gptj(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    """As Phi, with biases on the MLP alone; `rotary_dim` columns of each head are turned (null: all)."""
    width = whole(config, "rotary", ledger)
    head_dim = max(1, model["hidden"] // model["heads"])
    return _phi(kind, config, model, ledger) | {
        "rope": {"theta": 10000.0} | ({} if width in (None, head_dim) else {"fraction": width / head_dim}),
        **_biases(False, False, True),
        "dropout": _dropout(config, 0.0, ledger),
        "attention_dropout": rate(config, "attn_pdrop", 0.0, ledger),
    }


def _falcon(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    """The older form shares one norm, and mostly one key and value head; the newer has groups and two norms."""
    _activation(config, GELUS, "gelu", ledger)
    newer = flag(config, "new_decoder_architecture", False, ledger)
    alibi = flag(config, "alibi", False, ledger)
    norms = whole(config, "norms", ledger) or (2 if newer else 1)
    single = not newer and flag(config, "multi_query", True, ledger)
    bias = flag(config, "bias", False, ledger)
    parallel = newer or flag(config, "parallel_attn", True, ledger)
    groups = whole(config, "kv_heads", ledger) or model["heads"]
    return _plain(config, model, ledger) | {
        "kv_heads": 1 if single else groups if newer else model["heads"],
        "positions": "alibi" if alibi else "rotary",
        **({} if alibi else {"rope": rope(config, ledger)}),
        "parallel_residual": parallel,
        "shared_norm": parallel and not (newer and norms == 2),
        "tied_embeddings": flag(config, "tie_word_embeddings", True, ledger),
        **_biases(bias, bias, bias),
        "dropout": rate(config, "hidden_dropout", 0.0, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


def _opt(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    """Its position table has two rows that no token uses."""
    _activation(config, frozenset({"relu"}), "relu", ledger)
    wanted = {"do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True}
    for key, usual in (wanted | {"_remove_final_layer_norm": False}).items():
        if flag(config, key, usual, ledger) != usual:
            ledger.not_yet(f"{key} {str(not usual).lower()}", f"{key} {str(usual).lower()}")
    width = config.get("word_embed_proj_dim")
    if width is not None and width != model["hidden"]:
        ledger.not_yet(f"embeddings of another width (word_embed_proj_dim {width})", f"{model['hidden']}")
    return _plain(config, model, ledger) | {
        "activation": "relu",
        "positions": "learned",
        "max_positions": model["seq_length"] + 2,
        "tied_embeddings": flag(config, "tie_word_embeddings", True, ledger),
        "bias": True,
        "dropout": rate(config, "dropout", 0.1, ledger),
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


def _starcoder2(kind: str, config: Config, model: Found, ledger: Ledger) -> Found:
    _activation(config, GELUS, "gelu_pytorch_tanh", ledger)
    bias = flag(config, "use_bias", True, ledger)
    residual, embedding = (rate(config, f"{name}_dropout", 0.0, ledger) for name in ("residual", "embedding"))
    if residual != embedding:
        ledger.not_yet(f"embedding_dropout {embedding} with residual_dropout {residual}", "the same for both")
    return _plain(config, model, ledger) | {
        "positions": "rotary",
        "rope": rope(config, ledger),
        "tied_embeddings": flag(config, "tie_word_embeddings", True, ledger),
        **_biases(bias, bias, bias),
        "dropout": residual,
        "attention_dropout": rate(config, "attention_dropout", 0.0, ledger),
    }


# ---------------------------------------------------------------- what they share


def _plain(config: Config, model: Found, ledger: Ledger) -> Found:
    """An MLP of 4h with GELU, and layernorms."""
    return {"ffn": whole(config, "ffn", ledger) or 4 * model["hidden"], "activation": "gelu", "norm": "layernorm"}


def _given(**values: Any) -> Found:
    return {key: value for key, value in values.items() if value is not None}


def _biases(qkv: bool, out: bool, mlp: bool) -> Found:
    return {"bias": out, "qkv_bias": qkv} if out == mlp else {"bias": {"qkv": qkv, "out": out, "mlp": mlp}}


def _activation(config: Config, known: frozenset[str], nearest: str, ledger: Ledger, where: str = "") -> None:
    activation = first(config, "activation")
    if activation is not None and str(activation) not in known:
        ledger.not_yet(f"{name_of(config, 'activation')} {activation}{where}", nearest)


def _cap(config: Config, key: str, usual: float | None, ledger: Ledger) -> float | None:
    """A cap; null and 0 are none."""
    value = config.get(key, usual)
    return None if value is None else ledger.number(value, key, least=0) or None


def _dropout(config: Config, usual: float, ledger: Ledger) -> float | None:
    """One rate for embeddings and residuals; two are not forecast."""
    residual, embedding = config.get("resid_pdrop", usual), config.get("embd_pdrop", usual)
    if residual != embedding:
        ledger.not_yet(f"embd_pdrop {embedding} with resid_pdrop {residual}", "the same for both")
    rate(config, "embd_pdrop", usual, ledger)
    return rate(config, "resid_pdrop", usual, ledger)


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "sliding_window": 4096,
}
_CAPS = _keys("query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping use_bidirectional_attention")
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        ("llama", "qwen2", "phi3", "internlm2", "yi", "baichuan", "smollm3", "mixtral", "qwen2_moe"),
        Family(_llama),
    ),
    **dict.fromkeys(("qwen3", "qwen3_moe"), Family(_qwen3)),
    "mistral": Family(_llama, defaults={"sliding_window": 4096}),
    "olmo2": Family(_olmo2),
    "gemma": Family(_gemma, _CAPS),
    "gemma2": Family(_gemma, _CAPS, {"sliding_window": 4096}),
    "gemma3_text": Family(
        _gemma, _CAPS | _keys("rope_local_base_freq sliding_window_pattern _sliding_window_pattern"), _GEMMA3
    ),
    "gpt2": Family(_gpt2),
    "gpt_bigcode": Family(
        _bigcode,
        _keys("scale_attention_softmax_in_fp32 inference_runner pad_key_length max_sequence_length max_batch_size"),
    ),
    "bloom": Family(_bloom),
    "gpt_neox": Family(_neox),
    "phi": Family(_phi),
    "gptj": Family(_gptj, _keys("rotary_dim")),
    "falcon": Family(
        _falcon, _keys("alibi new_decoder_architecture parallel_attn num_ln_in_parallel_attn num_kv_heads")
    ),
    "opt": Family(
        _opt,
        _keys(
            "do_layer_norm_before enable_bias layer_norm_elementwise_affine _remove_final_layer_norm layerdrop dropout"
            " word_embed_proj_dim init_std activation_dropout"
        ),
    ),
    "starcoder2": Family(
        _starcoder2, _keys("use_bias residual_dropout embedding_dropout norm_epsilon mlp_type norm_type")
    ),
}
