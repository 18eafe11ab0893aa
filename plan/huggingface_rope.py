"""Rotary embeddings of a Hugging Face `config.json`: `rope_theta` and `rope_scaling` (transformers 4),
`rope_parameters` (transformers 5). Half a scaling is a problem that names what is missing; kinds that are not forecast
are refused.
"""

from collections.abc import Mapping
from math import log
from typing import Any

from plan.huggingface_values import first, list_of
from plan.ledger import Ledger
from program.nearest import shown

ROPE = frozenset(
    """rope_theta rope_type type factor low_freq_factor high_freq_factor original_max_position_embeddings
    partial_rotary_factor attention_factor beta_fast beta_slow mscale mscale_all_dim truncate short_factor
    long_factor""".split()
)
ROPE_NO_EFFECT = frozenset("mrope_section mrope_interleaved finetuned".split())
"""Keys of other kinds of rope scaling; `mrope_section` sorts image positions."""

SCALING_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}
"""What transformers asks of each kind of scaling; it fills nothing in."""
LAYER_KINDS = ("full_attention", "sliding_attention")


def rope(config: Mapping[str, Any], ledger: Ledger, fraction: float = 1.0) -> dict[str, Any]:
    """Rotary settings from `rope_parameters` (v5) or `rope_theta` and `rope_scaling` (v4). `fraction`: the part of a
    head that a family turns where its file does not say."""
    new, old = _object(config, "rope_parameters", ledger), _object(config, "rope_scaling", ledger)
    local: dict[str, Any] = {}
    if new.keys() == set(LAYER_KINDS) and all(isinstance(value, Mapping) for value in new.values()):
        new, sliding = (new[kind] for kind in LAYER_KINDS)
        local = _local(sliding, ledger)
    values = {**old, **new}
    theta = new.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    part = values.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct", fraction)))
    part = ledger.number(part, "partial_rotary_factor", above=0, most=1)
    stated = "rope_theta" in {**new, **config} or "rotary_emb_base" not in config
    named = "rope_theta" if stated else "rotary_emb_base"
    found: dict[str, Any] = {"theta": ledger.number(theta, named, above=0), **local}
    found |= {} if part == 1.0 else {"fraction": part}
    scaling = _scaling(config, values, "rope_parameters" if new else "rope_scaling", ledger)
    return found | ({"scaling": scaling} if scaling else {})


def _local(values: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The angles of layers with a window, which are not stretched."""
    kind = str(values.get("rope_type", "default"))
    if kind != "default":
        ledger.not_yet(f"rope scaling of type {kind} in layers of sliding_attention", "rope_type default")
    return {"local_theta": ledger.number(values.get("rope_theta", 10000.0), "rope_theta", above=0)}


def _scaling(config: Mapping[str, Any], values: Mapping[str, Any], where: str, ledger: Ledger) -> dict[str, Any]:
    """How rotary angles are stretched; empty when they are not."""
    if any(isinstance(value, Mapping) for value in values.values()):
        ledger.not_yet(f"{where} that differ between layers", "the same for every layer")
        return {}
    kind = _kind(values)
    if not _whole(values, where, ledger) or kind in ("default", "none", "mrope"):
        return {}
    if kind not in SCALING_NEEDS:
        ledger.not_yet(f"rope scaling of type {kind}", " or ".join(SCALING_NEEDS))
        return {}
    if kind in ("yarn", "longrope"):
        return {"kind": kind} | _stretched(kind, config, values, where, ledger)
    scaling: dict[str, Any] = {"kind": kind}
    for name in SCALING_NEEDS[kind]:
        ours = "original_max_positions" if name == "original_max_position_embeddings" else name
        scaling[ours] = ledger.number(values[name], f"{where}.{name}", above=0)
    return scaling


def _stretched(
    kind: str, config: Mapping[str, Any], values: Mapping[str, Any], where: str, ledger: Ledger
) -> dict[str, Any]:
    """YaRN's and LongRoPE's numbers, with what transformers fills in: the original length from the configuration, else
    its maximum; LongRoPE's factor is the maximum over it."""
    longest = first(config, "positions") or 2048
    given = values.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    original = ledger.integer(longest if given is None else given, "original_max_position_embeddings", least=1) or 1
    factor = values.get("factor")
    if kind == "longrope" and given is not None:
        factor = float(ledger.integer(longest, "max_position_embeddings", least=1) or 1) / original
    found: dict[str, Any] = {"original_max_positions": original}
    found["factor"] = ledger.number(1.0 if factor is None else factor, f"{where}.factor", above=0)
    if values.get("attention_factor") is not None:
        found["attention_factor"] = ledger.number(values["attention_factor"], f"{where}.attention_factor", above=0)
    if kind == "longrope":
        return found | {name: list_of(values, name, [], ledger) for name in SCALING_NEEDS[kind]}
    if values.get("truncate") is False:
        ledger.not_yet(f"{where}.truncate false", "truncate true")
    if values.get("mscale") and values.get("mscale_all_dim") and "attention_factor" not in found:
        found["attention_factor"] = _magnitude(found["factor"], values["mscale"], values["mscale_all_dim"])
    names = [name for name in ("beta_fast", "beta_slow") if values.get(name) is not None]
    return found | {name: ledger.number(values[name], f"{where}.{name}", above=0) for name in names}


def _magnitude(factor: float, over: float, under: float) -> float:
    """The attention factor of YaRN's `mscale` over its `mscale_all_dim`."""
    top, bottom = (0.1 * float(scale) * log(factor) + 1.0 if factor > 1 else 1.0 for scale in (over, under))
    return top / bottom


def _kind(values: Mapping[str, Any]) -> str:
    kind = str(values.get("rope_type", values.get("type", "default")))
    return "longrope" if kind == "su" else kind  # Phi-3's first name for it


def _object(config: Mapping[str, Any], key: str, ledger: Ledger) -> Mapping[str, Any]:
    value = {} if config.get(key) is None else config[key]
    if isinstance(value, Mapping):
        return value
    ledger.problem(f"{key} is {shown(value)}, but must be an object")
    return {}


def _whole(values: Mapping[str, Any], where: str, ledger: Ledger) -> bool:
    """Whether a rope object (its name `where`) is whole; what it lacks or has too much of goes to the ledger."""
    for key in values:
        if key not in ROPE and key not in ROPE_NO_EFFECT:
            ledger.unknown(key, ROPE | ROPE_NO_EFFECT, "config.json key", inside=where)
    kind = _kind(values) if "rope_type" in values or "type" in values else None
    extra = sorted(set(values) & (ROPE | ROPE_NO_EFFECT) - {"rope_theta", "partial_rotary_factor", "mrope_section"})
    if kind is None and extra:
        ledger.problem(
            f"{where} has {', '.join(extra)} but no rope_type; add it ({' or '.join(SCALING_NEEDS)}), or delete {where}"
        )
        return False
    missing = [key for key in SCALING_NEEDS.get(str(kind), ()) if values.get(key) is None]
    if missing:
        ledger.problem(f"{where} of type {kind} lacks {', '.join(missing)}; transformers fills nothing in, so add it")
    return not missing
