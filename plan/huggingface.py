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
from plan.huggingface_families import FAMILIES, MIXTURES
from plan.huggingface_values import ALIASES, first, flag, list_of, name_of, whole
from plan.ledger import Ledger
from plan.lenient_json import read_json
from program.files import text_of
from program.nearest import nearest_name, shown

LANGUAGE_PARTS = ("text_config", "llm_config", "language_config", "language_model")
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
    config = {**(FAMILIES[kind].defaults if kind in FAMILIES else {}), **config}
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
    groups = whole(config, "kv_heads", ledger)
    model["kv_heads"] = (
        (1 if flag(config, "multi_query", False, ledger) else shape["heads"]) if groups is None else groups
    )
    model |= _family(kind, config, model, ledger)
    if (width := whole(config, "head_dim", ledger)) is not None:
        model["head_dim"] = width
    epsilon = first(config, "eps")
    if epsilon is not None:
        model["norm_eps"] = ledger.number(epsilon, name_of(config, "eps"), above=0)
    if (deviation := next((key for key in ("initializer_range", "init_std") if key in config), None)) is not None:
        model["init_std"] = ledger.number(config[deviation], deviation, above=0)
    _unsupported(kind, config, ledger)
    model |= _windows(kind, config, shape["layers"], length, ledger)
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
            said = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
            return language_part({**said, **config[part]}, ledger)
    return config


def _family(kind: str, config: Mapping[str, Any], model: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    family = FAMILIES.get(kind)
    if family is None:  # it may do what none of these does: never read as its nearest relative
        dense = sorted(FAMILIES.keys() - MIXTURES)
        near = nearest_name(kind, dense, cutoff=0.7)
        known = ", ".join(dense)
        ledger.not_yet(f"model_type {kind!r}", f"{near} (of {known})" if near else known)
        return FAMILIES["llama"].read(kind, config, model, ledger)
    keys.check(config, ledger, family.keys)
    return family.read(kind, config, model, ledger)


def _unsupported(kind: str, config: Mapping[str, Any], ledger: Ledger) -> None:
    _experts(kind, config, ledger)
    if not all(list_of(config, "no_rope_layers", [0] if kind == "smollm3" else [], ledger)):
        ledger.not_yet("layers without rotary embeddings (no_rope_layers)", "rotary embeddings in every layer")
    if config.get("kv_lora_rank"):
        ledger.not_yet(
            f"latent attention (kv_lora_rank {config['kv_lora_rank']})", "grouped-query attention of the same heads"
        )
    if config.get("use_bidirectional_attention") not in (None, False):
        ledger.not_yet("use_bidirectional_attention", "causal attention (use_bidirectional_attention false)")
    if config.get("quantization_config") is not None:
        ledger.not_yet("quantized weights (quantization_config)", "the bf16 model, without quantization_config")


LOCAL = ("gemma3_text",)  # layers with a window turn by angles of their own, however long the window is
PATTERNS = {"gemma2": 2, "gemma3_text": 6}
"""Every how many-th layer sees everything, where `layer_types` does not say it."""


def _windows(kind: str, config: Mapping[str, Any], layers: int, length: int, ledger: Ledger) -> dict[str, Any]:
    """The window of attention; {} where no layer has one that is shorter than the sequence."""
    window = _window(config, ledger)
    kinds = [str(each) for each in list_of(config, "layer_types", [], ledger)]
    others = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if others:
        ledger.not_yet(f"layers of {', '.join(others)} (layer_types)", "full_attention in every layer")
        return {}
    slides = (
        "sliding_attention" in kinds
        if kinds
        else flag(config, "use_sliding_window", not kind.startswith("qwen"), ledger)
    )
    if not slides or (window is None and not kinds):
        return {}
    if window is None:
        ledger.problem("layer_types has sliding_attention, but sliding_window is not given; give it")
        return {}
    if window < 1:
        ledger.problem(f"sliding_window is {window}; it must be at least 1, or null for full attention")
        return {}
    if window >= length and kind not in LOCAL:
        return {}
    every = _full_every(kind, config, kinds, layers, ledger)
    return {} if every is None else {"window": {"size": window, "full_every": every}}


def _first_window(config: Mapping[str, Any], layers: int, ledger: Ledger) -> int:
    """Layers before the first with a window: Qwen's `max_window_layers`."""
    value = config.get("max_window_layers")
    return layers if value is None else ledger.integer(value, "max_window_layers", least=0) or 0


def _full_every(kind: str, config: Mapping[str, Any], kinds: list[str], layers: int, ledger: Ledger) -> int | None:
    """Every how many-th layer sees everything (0: none); None where it is no such pattern."""
    if not kinds:
        if kind.startswith("qwen") and (begin := _first_window(config, layers, ledger)) > 0:
            if begin < layers:
                ledger.not_yet(
                    f"a sliding window from layer {begin} of {layers} on (max_window_layers)",
                    "use_sliding_window false, or max_window_layers 0",
                )
            return None
        pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern"))
        if pattern is None:
            return PATTERNS.get(kind, 0)
        return ledger.integer(pattern, "sliding_window_pattern", least=1)
    full = [number for number, each in enumerate(kinds, 1) if each == "full_attention"]
    every = full[0] if full else 0
    if len(kinds) != layers or full != [n for n in range(1, layers + 1) if every and n % every == 0]:
        ledger.not_yet(
            "layer_types in no repeated order", "sliding_attention in all layers but every n-th, one value a layer"
        )
        return None
    return every


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
