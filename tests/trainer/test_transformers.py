"""An oracle from outside: logits, loss and gradients of the Llama and GPT-2 layouts equal transformers' own models on
copied weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
import trainer
from tests.trainer.copied import Pair, hold, one_batch
from tests.trainer.ranks import GPT, LLAMA


@pytest.mark.parametrize("scaling", [None, "llama3"])
def test_llama_equals_transformers(scaling: str | None) -> None:
    """In fp32: transformers' own norm and rotary tables are fp32 whatever the model's type."""
    from transformers import LlamaConfig, LlamaForCausalLM

    rope: dict[str, Any] = {"theta": 10000.0, "scaling": "none"}
    theirs: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if scaling:
        shape = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["scaling"] = {"kind": "llama3", **shape, "original_max_positions": 8}
        theirs = {"rope_type": "llama3", "rope_theta": 10000.0, **shape, "original_max_position_embeddings": 8}
    run = one_batch(LLAMA | {"rope": rope}, "fp32")
    m = run.model
    config = LlamaConfig(
        vocab_size=m.vocab,
        hidden_size=m.hidden,
        intermediate_size=m.ffn,
        num_hidden_layers=m.layers,
        num_attention_heads=m.heads,
        num_key_value_heads=m.kv_heads,
        head_dim=m.head_dim,
        rms_norm_eps=m.norm_eps,
        max_position_embeddings=m.seq_length,
        rope_parameters=theirs,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    pairs = {
        "embed.tokens.weight": Pair(("model.embed_tokens.weight",)),
        "head.weight": Pair(("lm_head.weight",)),
        "head.norm.weight": Pair(("model.norm.weight",)),
    }
    for i in range(m.layers):
        ours, base = f"layers.{i}", f"model.layers.{i}"
        pairs |= {
            f"{ours}.attn.norm.weight": Pair((f"{base}.input_layernorm.weight",)),
            f"{ours}.attn.qkv.weight": Pair(tuple(f"{base}.self_attn.{p}_proj.weight" for p in "qkv")),
            f"{ours}.attn.out.weight": Pair((f"{base}.self_attn.o_proj.weight",)),
            f"{ours}.mlp.norm.weight": Pair((f"{base}.post_attention_layernorm.weight",)),
            f"{ours}.mlp.up.weight": Pair((f"{base}.mlp.gate_proj.weight", f"{base}.mlp.up_proj.weight")),
            f"{ours}.mlp.down.weight": Pair((f"{base}.mlp.down_proj.weight",)),
        }
    hold(run, model, pairs)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_gpt2_equals_transformers(precision: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    run = one_batch(GPT, precision)
    m = run.model
    config = GPT2Config(
        vocab_size=m.vocab,
        n_positions=m.max_positions,
        n_embd=m.hidden,
        n_layer=m.layers,
        n_head=m.heads,
        n_inner=m.ffn,
        layer_norm_epsilon=m.norm_eps,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    model = GPT2LMHeadModel(config).to(torch.float64 if precision == "fp64" else torch.float32)
    pairs = {
        "embed.tokens.weight": Pair(("transformer.wte.weight",)),
        "embed.positions.weight": Pair(("transformer.wpe.weight",)),
    }
    for name, base in (("head.norm", "transformer.ln_f"),):
        pairs |= {f"{name}.{k}": Pair((f"{base}.{k}",)) for k in ("weight", "bias")}
    for i in range(m.layers):
        ours, base = f"layers.{i}", f"transformer.h.{i}"
        places = {
            "attn.norm": "ln_1",
            "attn.qkv": "attn.c_attn",
            "attn.out": "attn.c_proj",
            "mlp.norm": "ln_2",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        }
        for mine, place in places.items():
            pairs[f"{ours}.{mine}.weight"] = Pair((f"{base}.{place}.weight",), not mine.endswith("norm"))
            pairs[f"{ours}.{mine}.bias"] = Pair((f"{base}.{place}.bias",))
    hold(run, model, pairs)


def test_our_package_names_hide_nobody_elses() -> None:
    """`kernels` and `trainer` are other projects' names too: transformers imports with ours imported before it."""
    from transformers import LlamaConfig

    assert LlamaConfig().hidden_size
    for ours in (kernels, trainer):
        assert Path(ours.__file__).parents[1] == Path(__file__).parents[2]
