"""An oracle from outside: logits, loss and gradients of the Llama and GPT-2 layouts equal transformers' own models on
copied weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
import trainer
from compiler import compile_run
from plan.run import Run
from program import expand
from tests.trainer.ranks import GPT, LLAMA, make_run, text
from trainer.executor import Executor
from trainer.streams import Op
from windtunnel.job import job_of

Tensor = torch.Tensor
TOLERANCE = {"fp64": 1e-9, "fp32": 1e-5}


def _ours(run: Run) -> tuple[Executor, Tensor, float]:
    """(executor after one step without clipping, logits (batch, seq, padded vocabulary), loss)."""
    seen: list[Tensor] = []

    program = compile_run(run)
    executor = Executor(program, job_of(run), 0, {}, text(run))
    place = {p.id: p for p in expand(executor.mine)}

    def watched(op: Op) -> Op:
        at = place[op.id]

        def action() -> None:
            seen.append(executor.storage.tensor(executor.storage.place(at.call, at.instruction.reads[0])).clone())
            op.run()

        return replace(op, run=action) if at.instruction.piece == "head.exp" else op

    executor.ops = [watched(op) for op in executor.ops]
    weights = {name: w.clone() for name, w in executor.parameters().items()}
    result = executor.step(0)
    executor.close()
    for name, w in executor.parameters().items():
        w.copy_(weights[name])
    batch, seq = run.plan.micro_batch_size, run.model.seq_length
    return executor, seen[0].view(seq, batch, -1).transpose(0, 1), result.loss


def _hold(run: Run, theirs: torch.nn.Module, pairs: dict[str, tuple[list[str], bool]]) -> None:
    """`pairs`: our parameter → (theirs, concatenated along rows; whether theirs is transposed)."""
    executor, logits, loss = _ours(run)
    tolerance, vocab = TOLERANCE[run.plan.precision], run.model.vocab
    named = dict(theirs.named_parameters())
    ours, gradients = executor.parameters(), executor.storage.gradients()
    with torch.no_grad():
        for name, (targets, transposed) in pairs.items():
            full = _cut(name, ours[name], vocab)
            for target, part in zip(targets, full.split([_rows(named[t], transposed) for t in targets]), strict=True):
                named[target].copy_(part.t() if transposed else part)
    grid = text(run).batch(0, tuple(range(run.plan.global_batch_size)))
    out = theirs(grid[:, :-1])
    expected = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), grid[:, 1:].flatten())
    expected.backward()
    assert torch.allclose(logits[..., :vocab], out.logits.detach(), atol=tolerance, rtol=tolerance)
    assert loss == pytest.approx(float(expected.detach()), rel=tolerance)
    for name, (targets, transposed) in pairs.items():
        want = torch.cat([named[t].grad.t() if transposed else named[t].grad for t in targets])
        got = _cut(name, gradients[name], vocab)
        assert torch.allclose(
            got, want, atol=tolerance * float(want.abs().max()) + 1e-7 * (tolerance > 1e-6), rtol=tolerance
        ), name


def _cut(name: str, tensor: Tensor, vocab: int) -> Tensor:
    return tensor[:vocab] if name in ("embed.tokens.weight", "head.weight") else tensor


def _rows(tensor: Tensor, transposed: bool) -> int:
    return tensor.shape[1] if transposed else tensor.shape[0]


def _run(model: dict[str, Any], precision: str) -> Run:
    """One micro-batch, so that its logits are the whole batch's; no clipping, which would scale the gradients in
    place."""
    raw = make_run(model, {"precision": precision, "micro_batch_size": 4, "global_batch_size": 4}).to_dict()
    from plan.run import load

    return load(raw | {"optimizer": raw["optimizer"] | {"clip_norm": 0.0}})


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
    run = _run(LLAMA | {"rope": rope}, "fp32")
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
        "embed.tokens.weight": (["model.embed_tokens.weight"], False),
        "head.weight": (["lm_head.weight"], False),
        "head.norm.weight": (["model.norm.weight"], False),
    }
    for i in range(m.layers):
        ours, base = f"layers.{i}", f"model.layers.{i}"
        pairs |= {
            f"{ours}.attn.norm.weight": ([f"{base}.input_layernorm.weight"], False),
            f"{ours}.attn.qkv.weight": ([f"{base}.self_attn.{p}_proj.weight" for p in "qkv"], False),
            f"{ours}.attn.out.weight": ([f"{base}.self_attn.o_proj.weight"], False),
            f"{ours}.mlp.norm.weight": ([f"{base}.post_attention_layernorm.weight"], False),
            f"{ours}.mlp.up.weight": ([f"{base}.mlp.gate_proj.weight", f"{base}.mlp.up_proj.weight"], False),
            f"{ours}.mlp.down.weight": ([f"{base}.mlp.down_proj.weight"], False),
        }
    _hold(run, model, pairs)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_gpt2_equals_transformers(precision: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    run = _run(GPT, precision)
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
        "embed.tokens.weight": (["transformer.wte.weight"], False),
        "embed.positions.weight": (["transformer.wpe.weight"], False),
    }
    for name, base in (("head.norm", "transformer.ln_f"),):
        pairs |= {f"{name}.{k}": ([f"{base}.{k}"], False) for k in ("weight", "bias")}
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
            pairs[f"{ours}.{mine}.weight"] = ([f"{base}.{place}.weight"], not mine.endswith("norm"))
            pairs[f"{ours}.{mine}.bias"] = ([f"{base}.{place}.bias"], False)
    _hold(run, model, pairs)


def test_our_package_names_hide_nobody_elses() -> None:
    """`kernels` and `trainer` are other projects' names too: transformers imports with ours imported before it."""
    from transformers import LlamaConfig

    assert LlamaConfig().hidden_size
    for ours in (kernels, trainer):
        assert Path(ours.__file__).parents[1] == Path(__file__).parents[2]
