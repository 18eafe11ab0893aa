"""Rotary embeddings of a Hugging Face `config.json`: `rope_theta` and `rope_scaling` (transformers 4),
`rope_parameters` (transformers 5). Half a scaling is a problem that names what is missing; kinds that are not forecast
are refused.
"""

from collections.abc import Mapping
from typing import Any

from plan.ledger import Ledger
from program.nearest import shown

ROPE = frozenset(
    """rope_theta rope_type type factor low_freq_factor high_freq_factor original_max_position_embeddings
    partial_rotary_factor""".split()
)
ROPE_NO_EFFECT = frozenset(
    """attention_factor beta_fast beta_slow mscale mscale_all_dim short_factor long_factor truncate mrope_section
    mrope_interleaved finetuned""".split()
)
"""Keys of other kinds of rope scaling, which are refused by their kind; `mrope_section` sorts image positions."""

SCALING_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""What transformers asks of each kind of scaling; it fills nothing in."""


def rope(config: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Rotary settings from `rope_parameters` (v5) or `rope_theta` and `rope_scaling` (v4)."""
    new, old = _object(config, "rope_parameters", ledger), _object(config, "rope_scaling", ledger)
    values = {**old, **new}
    theta = new.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    part = values.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct", 1.0)))
    if ledger.number(part, "partial_rotary_factor") != 1.0:
        ledger.not_yet(f"rotary embeddings on {part} of the head", "the whole head")
    stated = "rope_theta" in {**new, **config} or "rotary_emb_base" not in config
    named = "rope_theta" if stated else "rotary_emb_base"
    found: dict[str, Any] = {"theta": ledger.number(theta, named, above=0)}
    scaling = _scaling(values, "rope_parameters" if new else "rope_scaling", ledger)
    return found | ({"scaling": scaling} if scaling else {})


def _scaling(values: Mapping[str, Any], where: str, ledger: Ledger) -> dict[str, Any]:
    """How rotary angles are stretched; empty when they are not."""
    if any(isinstance(value, Mapping) for value in values.values()):
        ledger.not_yet(f"{where} that differ between layers", "the same for every layer")
        return {}
    kind = str(values.get("rope_type", values.get("type", "default")))
    if not _whole(values, where, ledger) or kind in ("default", "none", "mrope"):
        return {}
    if kind not in SCALING_NEEDS:
        ledger.not_yet(f"rope scaling of type {kind}", " or ".join(SCALING_NEEDS))
        return {}
    scaling: dict[str, Any] = {"kind": kind}
    for name in SCALING_NEEDS[kind]:
        ours = "original_max_positions" if name == "original_max_position_embeddings" else name
        scaling[ours] = ledger.number(values[name], f"{where}.{name}", above=0)
    return scaling


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
    kind = values.get("rope_type", values.get("type"))
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
