"""The model of a Megatron command: shape, vocabulary, positions, activation, norms; Megatron's own defaults made
explicit.

What `plan.model.Model` cannot express (experts, latent attention, partial rotary embeddings, ...) is collected as "not
yet forecast".
"""

import re
from typing import Any

from importers.arguments import Arguments
from plan.ledger import Ledger

GPT2_VOCABULARY = 50257
TOKENIZERS = {"GPT2BPETokenizer": GPT2_VOCABULARY}
TOKENIZER_MODELS = (
    (re.compile(r"llama-?3|meta-llama-3", re.I), 128256),
    (re.compile(r"llama-?2|llama-7b|mistral|mixtral", re.I), 32000),
    (re.compile(r"gpt2", re.I), GPT2_VOCABULARY),
    (re.compile(r"bloom|bigscience/tokenizer", re.I), 250680),
    (re.compile(r"qwen(1\.5|2|2\.5|3)", re.I), 151936),
)
POSITIONS = {
    "learned_absolute": "learned",
    "absolute": "learned",
    "rope": "rotary",
    "rotary": "rotary",
    "alibi": "alibi",
}


def model_section(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    """The `model:` section; {} when the command has no model flags."""
    layers = a.whole("--num-layers") or a.whole("--encoder-num-layers") or a.whole("--decoder-num-layers")
    hidden, heads = a.whole("--hidden-size"), a.whole("--num-attention-heads")
    sequence = a.whole("--seq-length") or a.whole("--encoder-seq-length")
    needed = {"--num-layers": layers, "--hidden-size": hidden, "--num-attention-heads": heads, "--seq-length": sequence}
    missing = [flag for flag, value in needed.items() if value is None and flag not in a.given]
    if len(missing) >= 3:
        return {}
    if missing:
        ledger.problem(
            f"the model is incomplete: {', '.join(missing)} is missing"
            if len(missing) == 1
            else f"the model is incomplete: {', '.join(missing)} are missing"
        )
    model: dict[str, Any] = {"layers": layers, "hidden": hidden, "heads": heads, "seq_length": sequence}
    model |= _attention(a, heads or 1, ledger)  # a wrong size counts as 1 in what is still checked
    model |= _mlp(a, hidden or 1, ledger)
    model |= _positions(a, sequence or 1, ledger)
    model |= _vocabulary(a, model, ledger)
    model |= _norms_and_rest(a, ledger)
    model |= _window(a, ledger)
    _unsupported(a, ledger)
    return model


def _attention(a: Arguments, heads: int, ledger: Ledger) -> dict[str, Any]:
    found: dict[str, Any] = {}
    groups = a.whole("--num-query-groups")
    if groups is not None and not a.has("--group-query-attention"):
        ledger.warn(
            f"--num-query-groups {groups} has no effect without --group-query-attention; every head keeps its own keys"
            " and values"
        )
        groups = None
    if a.has("--group-query-attention"):
        found["kv_heads"] = groups or 1
    if (kv_heads := a.whole("--num-key-value-heads")) is not None:
        found["kv_heads"] = kv_heads
    if (width := a.whole("--kv-channels")) is not None:
        found["head_dim"] = width
    return {"kv_heads": heads} | found


def _mlp(a: Arguments, hidden: int, ledger: Ledger) -> dict[str, Any]:
    gate = a.text("--glu-activation")
    gated = a.has("--swiglu") or gate in ("swiglu", "geglu")
    activation = gate if gate == "geglu" else "swiglu" if gated else "relu2" if a.has("--squared-relu") else "gelu"
    others = {"--quick-geglu": "GeGLU of a sigmoid"}
    for flag, name in others.items():
        if a.has(flag):
            ledger.not_yet(f"the activation {name} ({flag})", "gelu or --swiglu")
    if gate not in (None, "swiglu", "geglu"):
        ledger.not_yet(f"the activation {gate} (--glu-activation)", "--swiglu")
    if a.has("--openai-gelu"):
        ledger.note("--openai-gelu: the tanh form of GELU, the one that is forecast")
    ffn = a.whole("--ffn-hidden-size")
    if ffn is None:
        # Megatron: 4h; with a gate two thirds of it, rounded down to a multiple of 64.
        ffn = 8 * hidden // 3 // 64 * 64 if gated else 4 * hidden
        rule = "8h/3 rounded down to a multiple of 64" if gated else "4h"
        ledger.assume("feed-forward width", f"{ffn} ({rule})", "--ffn-hidden-size", "parameters, step time and memory")
    return {"ffn": ffn, "activation": activation}


def _positions(a: Arguments, sequence: int, ledger: Ledger) -> dict[str, Any]:
    kind = a.text("--position-embedding-type")
    if a.has("--use-rotary-position-embeddings"):
        ledger.note("--use-rotary-position-embeddings is an old form of --position-embedding-type rope")
        kind = kind or "rope"
    if a.has("--no-position-embedding") and kind is None:
        kind = "none"
    kind = kind or "learned_absolute"
    found: dict[str, Any] = {"positions": POSITIONS.get(kind, "rotary")}
    if kind not in POSITIONS:
        ledger.not_yet(
            f"position embeddings of type {kind}", "--position-embedding-type rope, learned_absolute or alibi"
        )
    table = a.whole("--max-position-embeddings")
    if found["positions"] == "learned":
        found["max_positions"] = table or sequence
        if table is None:
            ledger.note(f"--max-position-embeddings is not given: the position table has seq_length = {sequence} rows")
    if found["positions"] == "rotary":
        found["rope"] = _rope(a, ledger)
    return found


def _rope(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    percent = a.number("--rotary-percent", 1.0)
    rope: dict[str, Any] = {"theta": a.number("--rotary-base", 10000)}
    rope |= {} if percent in (None, 1.0) else {"fraction": percent}
    if a.has("--use-rope-scaling"):
        rope["scaling"] = {"kind": "llama3", "factor": a.number("--rope-scaling-factor", 8.0)}
    elif (factor := a.number("--rotary-seq-len-interpolation-factor")) is not None:
        rope["scaling"] = {"kind": "linear", "factor": factor}
    return rope


def _vocabulary(a: Arguments, model: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Vocabulary and its padding: exact when a size is given, else from the tokenizer, else assumed with a warning."""
    multiple = a.whole("--make-vocab-size-divisible-by", 128)
    padded = a.whole("--pad-vocab-size-to") or a.whole("--padded-vocab-size")
    kind, file = a.shown("--tokenizer-type"), a.shown("--tokenizer-model")
    if padded is not None:
        a.has("--vocab-size")
        return {"vocab": padded, "vocab_multiple": 1}
    size = a.whole("--vocab-size")
    if size is None:
        size, of = _tokenizer_size(kind, file, _at_stake(a, model), ledger)
        padding = f", padded to a multiple of {multiple} × tensor parallel" if multiple else ""
        ledger.assume(
            "vocabulary", f"{size} {of}{padding}", "--vocab-size", "parameters and time of embedding and head"
        )
    return {"vocab": size, "vocab_multiple": multiple}


def _at_stake(a: Arguments, model: dict[str, Any]) -> str:
    """The share of parameters that a vocabulary of GPT-2's size takes: what a wrong one is wrong by."""
    layers, hidden, ffn = (model.get(key) for key in ("layers", "hidden", "ffn"))
    if not layers or not hidden or not ffn:
        return ""
    tables = GPT2_VOCABULARY * hidden * (1 + ("--untie-embeddings-and-output-weights" in a.given))
    rest = layers * (4 * hidden * hidden + (3 if model["activation"] in ("swiglu", "geglu") else 2) * hidden * ffn)
    return f", {tables / (tables + rest):.0%} of the parameters"


def _tokenizer_size(kind: str | None, file: str | None, at_stake: str, ledger: Ledger) -> tuple[int, str]:
    """A vocabulary, and what it is known from."""
    named = next((size for pattern, size in TOKENIZER_MODELS if file and pattern.search(file)), None)
    if named is not None:
        return named, f"from the tokenizer's name {file!r}"
    if kind in TOKENIZERS or (kind is None and file is None):
        return TOKENIZERS.get(kind or "", GPT2_VOCABULARY), f"of {kind or 'the default tokenizer GPT2BPETokenizer'}"
    if kind == "NullTokenizer":
        ledger.problem("--tokenizer-type NullTokenizer needs --vocab-size")
        return GPT2_VOCABULARY, ""
    named_by = f"{kind} with {file}" if kind and file else kind or file
    return GPT2_VOCABULARY, f"(GPT-2's), as the vocabulary of {named_by} cannot be read here{at_stake}"


def _norms_and_rest(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    norm = (a.text("--normalization") or "LayerNorm").lower()
    if norm not in ("layernorm", "rmsnorm"):
        ledger.not_yet(f"--normalization {norm}", "LayerNorm or RMSNorm")
    epsilon = a.number("--norm-epsilon")
    bias = not a.has("--disable-bias-linear")
    found: dict[str, Any] = {
        "norm": norm,
        "norm_eps": epsilon if epsilon is not None else a.number("--layernorm-epsilon", 1e-5),
        "tied_embeddings": not a.has("--untie-embeddings-and-output-weights"),
        "bias": bias,
        "qkv_bias": bias or a.has("--add-qkv-bias"),
        "embedding_norm": a.has("--embed-layernorm"),
        "dropout": a.number("--hidden-dropout", 0.1),
        "attention_dropout": a.number("--attention-dropout", 0.1),
        "init_std": a.number("--init-method-std", 0.02),
    }
    if a.has("--qk-layernorm"):
        found["qk_norm"] = "head"
        if norm == "layernorm":
            ledger.not_yet("--qk-layernorm with LayerNorm", "--normalization RMSNorm")
    unstated = [flag for flag in ("--hidden-dropout", "--attention-dropout") if flag not in a.given]
    if unstated:
        ledger.note(f"{' and '.join(unstated)} not given: Megatron's default 0.1")
    return found


def _window(a: Arguments, ledger: Ledger) -> dict[str, Any]:
    """`--window-size left,right`: the positions before a token that it sees beside itself (-1: all), in every layer but
    each `--window-attn-skip-freq`-th."""
    window, skip = a.text("--window-size"), a.text("--window-attn-skip-freq")
    sides = re.findall(r"-?(?<![0-9])[0-9]{1,12}(?![0-9])", window or "")
    if window is None or not sides or int(sides[0]) < 0:
        if skip is not None:
            ledger.note("--window-attn-skip-freq has no effect without --window-size")
        return {}
    every = None if skip is None else ledger.integer(skip, "--window-attn-skip-freq", least=1)
    return {"window": {"size": int(sides[0]) + 1, "full_every": every or 0}}


def _unsupported(a: Arguments, ledger: Ledger) -> None:
    experts = a.whole("--num-experts")
    if experts is not None and experts > 1:
        ledger.not_yet(
            f"mixture of experts (--num-experts {experts})", "the dense model of the same shape, without --num-experts"
        )
    depth = a.whole("--mtp-num-layers")
    for flag, present, nearest in (
        ("--mtp-num-layers", bool(depth), "the model without multi-token prediction"),
        ("--multi-latent-attention", a.has("--multi-latent-attention"), "grouped-query attention"),
        ("--hybrid-layer-pattern", a.has("--hybrid-layer-pattern"), "a model of transformer layers only"),
        ("--is-hybrid-model", a.has("--is-hybrid-model"), "a model of transformer layers only"),
        ("--spec", a.has("--spec"), "the standard transformer layer"),
        (
            "--apply-residual-connection-post-layernorm",
            a.has("--apply-residual-connection-post-layernorm"),
            "pre-norm layers",
        ),
    ):
        if present:
            ledger.not_yet(flag, nearest)
