"""The model of a GPT-NeoX configuration.

Widths of the feed-forward part are those of `megatron/model/transformer.py`: `intermediate_size` (else 4h) is that of
an MLP without a gate; a gated one takes a third of it, so that both have as many parameters. `mlp_type: llama`, which
came before, takes it as it stands, or 8h/3 in multiples of 256.
"""

from collections.abc import Mapping
from typing import Any

from importers import neox_keys as known
from plan.ledger import Ledger

DEFAULT_VOCABULARY = 50257
LLAMA_MULTIPLE = 256


class Values:
    """Single values of the configuration, each checked under its own key."""

    def __init__(self, keys: Mapping[str, Any], ledger: Ledger) -> None:
        self.keys, self.ledger = keys, ledger

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number; `default` where it is not given or null."""
        return default if self.keys.get(key) is None else self.ledger.integer(self.keys[key], key, least)

    def switch(self, key: str, default: bool = False) -> bool:
        """true or false."""
        return default if self.keys.get(key) is None else bool(self.ledger.boolean(self.keys[key], key))

    def word(self, key: str, default: str, words: tuple[str, ...]) -> str:
        """One of `words`; the default where it is another."""
        given = self.keys.get(key)
        return default if given is None else self.ledger.choice(given, key, words) or default


def model_section(keys: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The keys of a run's model; what no model of ours is, is not yet forecast."""
    values = Values(keys, ledger)
    needed = {key: values.whole(key) for key in ("num_layers", "hidden_size", "num_attention_heads", "seq_length")}
    for key in needed:
        if key not in keys:
            ledger.problem(f"the GPT-NeoX configuration has no {key}")
    _not_forecast(values)
    model: dict[str, Any] = {
        "layers": needed["num_layers"],
        "hidden": needed["hidden_size"],
        "heads": needed["num_attention_heads"],
        "seq_length": needed["seq_length"],
        "vocab": _vocabulary(values),
        "vocab_multiple": values.whole("make_vocab_size_divisible_by", 128),
        "tied_embeddings": not values.switch("no_weight_tying"),
        "dropout": ledger.number(keys.get("hidden_dropout", 0.0), "hidden_dropout", least=0, below=1),
        "attention_dropout": ledger.number(keys.get("attention_dropout", 0.0), "attention_dropout", least=0, below=1),
        "init_std": ledger.number(keys.get("init_method_std", 0.02), "init_method_std", above=0),
    }
    if (groups := values.whole("num_kv_heads")) is not None:
        model["kv_heads"] = groups
    model |= _parallel(values) | _window(values)
    return model | _positions(values) | _norm(values) | _feed_forward(values, needed["hidden_size"]) | _biases(values)


def _vocabulary(values: Values) -> int | None:
    if "vocab_size" not in values.keys:
        values.ledger.warn(f"vocab_size is not given: {DEFAULT_VOCABULARY} (GPT-2's) is assumed; set model.vocab")
    return values.whole("vocab_size", DEFAULT_VOCABULARY)


def _positions(values: Values) -> dict[str, Any]:
    ledger, length = values.ledger, values.whole("max_position_embeddings")
    kind = values.word("pos_emb", "learned", known.POSITIONS)
    part = ledger.number(values.keys.get("rotary_pct", 1.0), "rotary_pct", least=0, most=1)
    theta = ledger.number(values.keys.get("rotary_emb_base", 10000), "rotary_emb_base", above=0)
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
    for key in (key for key in keys if key in values.keys):
        values.ledger.note(f"{key} has no effect with pos_emb {kind}")


def _norm(values: Values) -> dict[str, Any]:
    kind = values.word("norm", "layernorm", (*known.NORMS, *known.OTHER_NORMS))
    if kind in known.OTHER_NORMS:
        values.ledger.not_yet(f"norm {kind}", "layernorm or rmsnorm")
    norm = known.NORMS.get(kind, "layernorm")
    names = {"layernorm": ("layernorm_epsilon", 1e-5), "rmsnorm": ("rms_norm_epsilon", 1e-8)}
    key, usual = names.pop(norm)
    (other, _), *_ = names.values()
    if other in values.keys:
        values.ledger.note(f"{other} has no effect with norm {kind}")
    return {"norm": norm, "norm_eps": values.ledger.number(values.keys.get(key, usual), key, above=0)}


def _feed_forward(values: Values, hidden: int | None) -> dict[str, Any]:
    """The activation and the width of the feed-forward part."""
    ledger = values.ledger
    llama = values.word("mlp_type", "regular", known.MLPS) == "llama"
    activation = "swiglu" if llama else values.word("activation", "gelu", known.ACTIVATIONS)
    if activation not in ("gelu", "swiglu", "geglu", "relu"):
        ledger.not_yet(f"activation {activation}", "gelu, relu, geglu or swiglu")
    multiple = values.whole("mlp_multiple_of", LLAMA_MULTIPLE if llama else 1)
    given, factor = values.whole("intermediate_size"), values.keys.get("expansion_factor")
    if factor is not None and ledger.number(factor, "expansion_factor", above=0) is not None:
        if given is not None:
            ledger.problem(f"intermediate_size {given} and expansion_factor {factor} exclude each other; keep one")
        given = None if hidden is None else int(float(factor) * hidden)
    found: dict[str, Any] = {
        "activation": activation
        if activation in ("relu", "geglu")
        else ("swiglu" if activation in known.GATED else "gelu")
    }
    if hidden is None or multiple is None or (given is None and values.keys.get("intermediate_size") is not None):
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
    attention, mlp = values.switch("use_bias_in_attn_linear", True), values.switch("use_bias_in_mlp", True)
    if values.keys.get("mlp_type") == "llama":
        mlp = attention  # that MLP has none, and is not asked
    if attention != mlp:
        return {"bias": {"qkv": attention, "out": attention, "mlp": mlp}}
    return {"bias": attention, "qkv_bias": attention}


def _parallel(values: Values) -> dict[str, Any]:
    """Attention and MLP beside each other, behind a norm each or one for both."""
    parallel, tied = values.switch("gpt_j_residual"), values.switch("gpt_j_tied")
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
        if (values.whole(key, 1, least=0) or 1) > 1:
            ledger.not_yet(f"mixture of experts ({key} {values.keys[key]})", f"{key} 1")
    engine = [key for key in known.TRANSFORMER_ENGINE if values.switch(key)]
    if engine:
        ledger.not_yet(f"Transformer Engine's layers ({', '.join(engine)})", "all te_ keys false")
    elif idle := sorted(known.TE_FP8 & values.keys.keys()):
        ledger.note(f"{', '.join(idle)} have no effect without Transformer Engine's layers")
    if values.switch("use_qk_layernorm"):
        ledger.not_yet("norms of queries and keys (use_qk_layernorm)", "use_qk_layernorm false")
