"""Tiny models of every family as transformers configures and names them: the configuration, and where our parameters
are in theirs."""

from collections.abc import Callable
from typing import Any

import torch

from plan.model import Model
from tests.trainer.copied import Pair

COMMON: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "attn_implementation": "eager",
    "initializer_range": 0.1,
    "pad_token_id": None,
}
GROUPS = COMMON | {"num_key_value_heads": 2, "intermediate_size": 48, "tie_word_embeddings": False}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.5, 2.0, 4.0],
    "original_max_position_embeddings": 8, "partial_rotary_factor": 0.75,
}  # fmt: skip
GEMMA = GROUPS | {"head_dim": 8, "tie_word_embeddings": True}
WINDOW = {"sliding_window": 5}
BIGCODE = {key: value for key, value in COMMON.items() if key != "max_position_embeddings"} | {
    "n_positions": 16, "n_inner": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", GROUPS),
    "qwen3": ("Qwen3", GROUPS | {"head_dim": 12}),
    "olmo2": ("Olmo2", GROUPS),
    "mistral-window": ("Mistral", GROUPS | WINDOW),
    "mistral-yarn": ("Mistral", GROUPS | {"sliding_window": None, "rope_parameters": YARN}),
    "llama-attention-bias": ("Llama", GROUPS | {"attention_bias": True}),
    "phi3-window-longrope": ("Phi3", GROUPS | WINDOW | {"rope_parameters": LONGROPE}),
    "gemma": ("Gemma", GEMMA),
    "gemma2": (
        "Gemma2",
        GEMMA | WINDOW | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 5},
    ),
    "gemma3": (
        "Gemma3",
        GEMMA
        | WINDOW
        | {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 10,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "neox": ("GPTNeoX", COMMON | {"intermediate_size": 64, "hidden_act": "gelu_new", "use_cache": False}),
    "neox-sequential": (
        "GPTNeoX",
        COMMON | {"intermediate_size": 64, "hidden_act": "gelu_new", "use_parallel_residual": False},
    ),
    "phi": ("Phi", COMMON | {"intermediate_size": 64, "partial_rotary_factor": 0.5}),
    "gptj": ("GPTJ", BIGCODE | {"rotary_dim": 4}),
    "falcon-7b": ("Falcon", COMMON | {"activation": "gelu_pytorch_tanh", "multi_query": True}),
    "falcon-40b": (
        "Falcon",
        COMMON | {"activation": "gelu_pytorch_tanh", "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "opt": ("OPT", COMMON | {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "starcoder": ("GPTBigCode", BIGCODE),
    "starcoder2": ("Starcoder2", GROUPS | WINDOW | {"tie_word_embeddings": True}),
}


def theirs(family: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """(a model of transformers, its configuration as a file holds it)."""
    import transformers

    name, numbers = FAMILIES[family]
    inner = "Gemma3Text" if name == "Gemma3" else name
    config = getattr(transformers, f"{inner}Config")(**numbers)
    kind = {"Falcon": "FalconForCausalLM", "OPT": "OPTForCausalLM", "GPTBigCode": "GPTBigCodeForCausalLM"}
    return getattr(transformers, kind.get(name, f"{name}ForCausalLM"))(config), config.to_dict()


def pairs(family: str, m: Model) -> dict[str, Pair]:
    """Our parameters in theirs."""
    name = FAMILIES[family][0]
    return _NAMED.get(name, _llama)(m, name)


def _norm(ours: str, base: str, bias: bool, shift: float = 0.0) -> dict[str, Pair]:
    words = ("weight", "bias") if bias else ("weight",)
    return {f"{ours}.{word}": Pair((f"{base}.{word}",), shift=shift) for word in words}


def _linear(ours: str, names: list[str], bias: bool, rows: torch.Tensor | None = None) -> dict[str, Pair]:
    words = ("weight", "bias") if bias else ("weight",)
    return {f"{ours}.{word}": Pair(tuple(f"{name}.{word}" for name in names), rows=rows) for word in words}


def _llama(m: Model, name: str) -> dict[str, Pair]:
    """Llama's names, which most have; Gemma's norms are 1 + w."""
    shift, both, out = float(name.startswith("Gemma")), m.norm_place == "both", m.norm_place == "output"
    layered, fused = m.norm == "layernorm", name == "Phi3"
    found = {"embed.tokens.weight": Pair(("model.embed_tokens.weight",))} | _norm(
        "head.norm", "model.norm", layered, shift
    )
    if not m.tied_embeddings:
        found["head.weight"] = Pair(("lm_head.weight",))
    for i in range(m.layers):
        ours, base = f"layers.{i}", f"model.layers.{i}"
        projections = ["qkv_proj"] if fused else ["q_proj", "k_proj", "v_proj"]
        ups = ["gate_up_proj"] if fused else ["gate_proj", "up_proj"] if m.gated else ["c_fc"]
        found |= _linear(f"{ours}.attn.qkv", [f"{base}.self_attn.{p}" for p in projections], m.qkv_bias)
        found |= _linear(f"{ours}.attn.out", [f"{base}.self_attn.o_proj"], m.out_bias)
        found |= _linear(f"{ours}.mlp.up", [f"{base}.mlp.{p}" for p in ups], m.mlp_bias)
        found |= _linear(f"{ours}.mlp.down", [f"{base}.mlp.{'down_proj' if m.gated else 'c_proj'}"], m.mlp_bias)
        norms = {"attn.norm": "input_layernorm", "mlp.norm": "post_attention_layernorm"}
        if both:
            norms = {"attn.norm": "input_layernorm", "attn.out_norm": "post_attention_layernorm",
                     "mlp.norm": "pre_feedforward_layernorm", "mlp.out_norm": "post_feedforward_layernorm"}  # fmt: skip
        if out:
            norms = {"attn.out_norm": "post_attention_layernorm", "mlp.out_norm": "post_feedforward_layernorm"}
        if m.qk_norm != "none":
            norms |= {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}
        for mine, place in norms.items():
            found |= _norm(f"{ours}.{mine}", f"{base}.{place}", layered, shift)
    return found


def _heads_apart(m: Model) -> torch.Tensor:
    """Rows of our queries, keys, values in a product that holds them group by group."""
    many, d, k = m.heads // m.kv_heads, m.head_dim, m.kv_heads
    rows = torch.arange((m.heads + 2 * k) * d).view(k, many + 2, d)
    return torch.cat([rows[:, :many].flatten(), rows[:, many].flatten(), rows[:, many + 1].flatten()])


def _neox(m: Model, name: str) -> dict[str, Pair]:
    base = "gpt_neox" if name == "GPTNeoX" else "transformer"
    neox = name == "GPTNeoX"
    found = {"embed.tokens.weight": Pair((f"{base}.{'embed_in' if neox else 'word_embeddings'}.weight",))}
    found |= _norm("head.norm", f"{base}.{'final_layer_norm' if neox else 'ln_f'}", True)
    if not m.tied_embeddings:
        found["head.weight"] = Pair(("lm_head.weight",))
    for i in range(m.layers):
        ours, layer = f"layers.{i}", f"{base}.{'layers' if neox else 'h'}.{i}"
        attention = f"{layer}.{'attention' if neox else 'self_attention'}"
        found |= _linear(f"{ours}.attn.qkv", [f"{attention}.query_key_value"], m.qkv_bias, _heads_apart(m))
        found |= _linear(f"{ours}.attn.out", [f"{attention}.dense"], m.out_bias)
        found |= _linear(f"{ours}.mlp.up", [f"{layer}.mlp.dense_h_to_4h"], m.mlp_bias)
        found |= _linear(f"{ours}.mlp.down", [f"{layer}.mlp.dense_4h_to_h"], m.mlp_bias)
        norms = {"attn.norm": "input_layernorm", "mlp.norm": "post_attention_layernorm"}
        if not neox:
            norms = (
                {"attn.norm": "input_layernorm"} if m.shared_norm else {"attn.norm": "ln_attn", "mlp.norm": "ln_mlp"}
            )
        for mine, place in norms.items():
            found |= _norm(f"{ours}.{mine}", f"{layer}.{place}", True)
    return found


def _phi(m: Model, name: str) -> dict[str, Pair]:
    phi = name == "Phi"
    table, last = ("model.embed_tokens", "model.final_layernorm") if phi else ("transformer.wte", "transformer.ln_f")
    found = {"embed.tokens.weight": Pair((f"{table}.weight",))} | _norm("head.norm", last, True)
    found |= _linear("head", ["lm_head"], True)
    names = ("self_attn.dense", "mlp.fc1", "mlp.fc2", "input_layernorm", "self_attn")
    names = names if phi else ("attn.out_proj", "mlp.fc_in", "mlp.fc_out", "ln_1", "attn")
    for i in range(m.layers):
        ours, layer = f"layers.{i}", f"{'model.layers' if phi else 'transformer.h'}.{i}"
        out, up, down, norm, attention = (f"{layer}.{place}" for place in names)
        rows = None if phi else _pairs_apart(m)
        found |= _linear(f"{ours}.attn.qkv", [f"{attention}.{p}_proj" for p in "qkv"], phi, rows)
        found |= _linear(f"{ours}.attn.out", [out], phi) | _norm(f"{ours}.attn.norm", norm, True)
        found |= _linear(f"{ours}.mlp.up", [up], True) | _linear(f"{ours}.mlp.down", [down], True)
    return found


def _pairs_apart(m: Model) -> torch.Tensor:
    """Rows of our queries, keys and values in GPT-J's, whose turned columns are pairs side by side."""
    head = torch.arange(m.head_dim)
    head[: m.rope_width] = torch.arange(m.rope_width).view(-1, 2).t().flatten()
    turned = torch.arange(2 * m.heads)[:, None] * m.head_dim + head
    return torch.cat([turned.flatten(), torch.arange(2 * m.hidden, 3 * m.hidden)])


def _opt(m: Model, name: str) -> dict[str, Pair]:
    """Its first two positions stand for padding: ours are the last."""
    base = "model.decoder"
    found = {
        "embed.tokens.weight": Pair((f"{base}.embed_tokens.weight",)),
        "embed.positions.weight": Pair(
            (f"{base}.embed_positions.weight",), rows=torch.arange(m.max_positions).roll(-2)
        ),
    } | _norm("head.norm", f"{base}.final_layer_norm", True)
    for i in range(m.layers):
        ours, layer = f"layers.{i}", f"{base}.layers.{i}"
        found |= _linear(f"{ours}.attn.qkv", [f"{layer}.self_attn.{p}_proj" for p in "qkv"], True)
        found |= _linear(f"{ours}.attn.out", [f"{layer}.self_attn.out_proj"], True)
        found |= _linear(f"{ours}.mlp.up", [f"{layer}.fc1"], True) | _linear(f"{ours}.mlp.down", [f"{layer}.fc2"], True)
        found |= _norm(f"{ours}.attn.norm", f"{layer}.self_attn_layer_norm", True)
        found |= _norm(f"{ours}.mlp.norm", f"{layer}.final_layer_norm", True)
    return found


def _bigcode(m: Model, name: str) -> dict[str, Pair]:
    found = {
        f"embed.{ours}.weight": Pair((f"transformer.{t}.weight",))
        for ours, t in (("tokens", "wte"), ("positions", "wpe"))
    }
    found |= _norm("head.norm", "transformer.ln_f", True)
    places = {"attn.qkv": "attn.c_attn", "attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
              "attn.norm": "ln_1", "mlp.norm": "ln_2"}  # fmt: skip
    for i in range(m.layers):
        for ours, place in places.items():
            found |= _linear(f"layers.{i}.{ours}", [f"transformer.h.{i}.{place}"], True)
    return found


_NAMED: dict[str, Callable[[Model, str], dict[str, Pair]]] = {
    "GPTNeoX": _neox,
    "Falcon": _neox,
    "Phi": _phi,
    "GPTJ": _phi,
    "OPT": _opt,
    "GPTBigCode": _bigcode,
}
