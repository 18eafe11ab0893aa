"""The model of a GPT-NeoX configuration.

Widths of the feed-forward part are those of `megatron/model/transformer.py`: `intermediate_size` (else 4h) is that of
an MLP without a gate; a gated one takes a third of it, so that both have as many parameters. `mlp_type: llama`, which
came before, takes it as it stands, or 8h/3 in multiples of 256.
"""

from typing import Any

from importers import neox_table as known
from importers.table import Values

DEFAULT_VOCABULARY = 50257
LLAMA_MULTIPLE = 256


def model_section(values: Values) -> dict[str, Any]:
    """The keys of a run's model; what no model of ours is, is not yet forecast."""
    for key in ("num_layers", "hidden_size", "num_attention_heads", "seq_length"):
        if not values.has(key):
            values.ledger.problem(f"the GPT-NeoX configuration has no {key}")
    _not_forecast(values)
    usual = {"vocab_multiple": 128, "dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.02}
    names = ("layers", "hidden", "heads", "seq_length")
    model: dict[str, Any] = dict.fromkeys(names) | {"vocab": DEFAULT_VOCABULARY} | usual | values.run("model")
    if not values.has("vocab_size"):
        values.ledger.assume(
            "vocabulary", f"{DEFAULT_VOCABULARY} (GPT-2's)", "vocab_size", "memory and step time of embedding and head"
        )
    model["tied_embeddings"] = not values.on("no_weight_tying")
    model.pop("ffn", None)
    model.pop("max_positions", None)
    model |= _parallel(values) | _window(values)
    return model | _positions(values) | _norm(values) | _feed_forward(values, model["hidden"]) | _biases(values)


def _positions(values: Values) -> dict[str, Any]:
    ledger, length = values.ledger, values.whole("max_position_embeddings")
    kind = values.text("pos_emb", "learned") or "learned"
    part, theta = values.number("rotary_pct", 1.0), values.number("rotary_emb_base", 10000)
    if kind != "rotary":
        _idle(values, kind, "rotary_pct", "rotary_emb_base")
    if kind == "learned":
        return {"positions": kind} | ({} if length is None else {"max_positions": length})
    _idle(values, kind, "max_position_embeddings")
    if kind == "rotary":
        return {"positions": kind, "rope": {"theta": theta} | ({} if part in (None, 1.0) else {"fraction": part})}
    if kind != "alibi":
        ledger.not_yet(f"pos_emb {kind}", "rotary, learned or alibi")
    return {"positions": "alibi"}


def _idle(values: Values, kind: str, *keys: str) -> None:
    for key in keys:
        values.idle(key, f"with pos_emb {kind}")


def _norm(values: Values) -> dict[str, Any]:
    kind = values.text("norm", "layernorm") or "layernorm"
    if kind not in known.NORMS:
        values.ledger.not_yet(f"norm {kind}", "layernorm or rmsnorm")
    norm = known.NORMS.get(kind, "layernorm")
    names = {"layernorm": ("layernorm_epsilon", 1e-5), "rmsnorm": ("rms_norm_epsilon", 1e-8)}
    key, usual = names.pop(norm)
    (other, _), *_ = names.values()
    values.idle(other, f"with norm {kind}")
    return {"norm": norm, "norm_eps": values.number(key, usual)}


def _feed_forward(values: Values, hidden: int | None) -> dict[str, Any]:
    """The activation and the width of the feed-forward part."""
    ledger = values.ledger
    llama = values.text("mlp_type", "regular") == "llama"
    activation = "swiglu" if llama else values.text("activation", "gelu")
    if activation not in ("gelu", "swiglu", "geglu", "relu"):
        ledger.not_yet(f"activation {activation}", "gelu, relu, geglu or swiglu")
    multiple = values.whole("mlp_multiple_of", LLAMA_MULTIPLE if llama else 1)
    given, factor = values.whole("intermediate_size"), values.number("expansion_factor")
    if factor is not None:
        if given is not None:
            ledger.problem(f"intermediate_size {given} and expansion_factor {factor:g} exclude each other; keep one")
        given = None if hidden is None else int(factor * hidden)
    found: dict[str, Any] = {
        "activation": activation
        if activation in ("relu", "geglu")
        else ("swiglu" if activation in known.GATED else "gelu")
    }
    if hidden is None or multiple is None or "intermediate_size" in values.wrong:
        return found  # the width does not follow from a wrong number
    return found | {"ffn": _width(given, hidden, llama, activation in known.GATED, multiple)}


def _width(given: int | None, hidden: int, llama: bool, gated: bool, multiple: int) -> int:
    if llama:
        return given or _up(8 * hidden // 3, multiple)
    whole = given or 4 * hidden
    return _up(int(whole * 2 / 3) // 2, multiple) if gated else _up(whole, multiple)


def _up(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def _biases(values: Values) -> dict[str, Any]:
    attention, mlp = values.on("use_bias_in_attn_linear", True), values.on("use_bias_in_mlp", True)
    if values.text("mlp_type") == "llama":
        mlp = attention  # that MLP has none, and is not asked
    if attention != mlp:
        return {"bias": {"qkv": attention, "out": attention, "mlp": mlp}}
    return {"bias": attention, "qkv_bias": attention}


def _parallel(values: Values) -> dict[str, Any]:
    """Attention and MLP beside each other, behind a norm each or one for both."""
    parallel, tied = values.on("gpt_j_residual"), values.on("gpt_j_tied")
    if tied and not parallel:
        values.ledger.note("gpt_j_tied has no effect without gpt_j_residual")
    return {"parallel_residual": True, "shared_norm": tied} if parallel else {}


def _window(values: Values) -> dict[str, Any]:
    """`sliding_window_width` is the positions before a token that it sees beside itself."""
    width = values.whole("sliding_window_width")
    return {} if width is None else {"window": width + 1}


def _not_forecast(values: Values) -> None:
    """What else GPT-NeoX can do to a layer and the forecast cannot yet."""
    ledger = values.ledger
    for key in ("num_experts", "moe_num_experts"):
        if (values.whole(key, 1) or 1) > 1:
            ledger.not_yet(f"mixture of experts ({key} {values.given[key]})", f"{key} 1")
    engine = [key for key in known.TRANSFORMER_ENGINE if values.on(key)]
    if engine:
        ledger.not_yet(f"Transformer Engine's layers ({', '.join(engine)})", "all te_ keys false")
    elif idle := sorted(key for key in known.TE_FP8 if values.has(key)):
        ledger.note(f"{', '.join(idle)} have no effect without Transformer Engine's layers")
    if values.on("use_qk_layernorm"):
        ledger.not_yet("norms of queries and keys (use_qk_layernorm)", "use_qk_layernorm false")
