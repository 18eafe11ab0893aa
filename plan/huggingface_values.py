"""Reading single values of a Hugging Face `config.json`: by any of the names a value has, with its problems said under
the name that the file uses.

    whole(config, "layers", ledger)      # 32 from num_hidden_layers or n_layer; 0 and 4.5 are problems, and None
"""

from collections.abc import Mapping
from typing import Any

from plan.ledger import Ledger
from program.nearest import shown

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_head_kv", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "model_max_length"),
    "eps": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"),
    "activation": ("hidden_act", "activation_function", "hidden_activation", "activation"),
    "rotary": ("rotary_dim",),
    "norms": ("num_ln_in_parallel_attn",),
}


def first(config: Mapping[str, Any], ours: str) -> Any:
    """A value under any of its names; None where it is not given."""
    return next((config[key] for key in ALIASES[ours] if config.get(key) is not None), None)


def name_of(config: Mapping[str, Any], ours: str) -> str:
    """The name under which the file gives a value; the usual one where it does not."""
    return next((key for key in ALIASES[ours] if config.get(key) is not None), ALIASES[ours][0])


def whole(config: Mapping[str, Any], ours: str, ledger: Ledger) -> int | None:
    """A size, at least 1; None where it is not given or wrong."""
    value = first(config, ours)
    return None if value is None else ledger.integer(value, name_of(config, ours), least=1)


def rate(config: Mapping[str, Any], key: str, usual: float, ledger: Ledger) -> float | None:
    """A dropout rate: at least 0, below 1."""
    return ledger.number(config.get(key, usual), key, least=0, below=1)


def flag(config: Mapping[str, Any], key: str, usual: bool, ledger: Ledger) -> bool:
    """A yes or no; `usual` where it is not given, false where it is neither."""
    value = config.get(key)
    return usual if value is None else ledger.boolean(value, key) or False


def list_of(config: Mapping[str, Any], key: str, usual: list[Any], ledger: Ledger) -> list[Any]:
    """A list with one value a layer; `usual` where it is not given or no list."""
    value = config.get(key)
    if value is not None and not isinstance(value, list):
        ledger.problem(f"{key} is {shown(value)}, but must be a list, one value a layer")
    return value if isinstance(value, list) else usual
