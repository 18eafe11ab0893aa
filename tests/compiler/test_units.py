"""Units: saved bytes in closed form, FLOPs of the bodies, volumes of the collectives."""

from collections.abc import Callable

import pytest

from compiler.recompute import unit_plan
from compiler.units import UnitShape, embedding, head, layer, saved_names, unit_shape
from plan.run import Run
from program.lines import Lines, Unit
from program.ops import OPERATORS, flops_of

Tiny = Callable[..., Run]


def units(run: Run) -> dict[str, Unit]:
    """The units of a run, the layer whole and cut, by name."""
    return units_of(unit_shape(run.model, run.plan))


def units_of(shape: UnitShape) -> dict[str, Unit]:
    """The same of extents and choices."""
    return {
        "embedding": embedding(shape),
        "layer": layer(shape, 1),
        "cut": layer(shape, 1, cut=True),
        "head": head(shape),
    }


def saved_bytes(unit: Unit) -> int:
    return sum(unit.tensors[n].bytes for n in saved_names(unit))


def of(run: Run) -> UnitShape:
    return unit_shape(run.model, run.plan)


GPT = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 256, "seq_length": 32, "vocab_multiple": 16}
LLAMA = {
    **GPT, "activation": "swiglu", "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied_embeddings": False,
    "kv_heads": 2, "ffn": 96,
}  # fmt: skip


@pytest.mark.parametrize("tp", [1, 2])
def test_gpt_layer_saves_sixteen_sbh_in_fp32(tiny: Tiny, tp: int) -> None:
    """Per token and hidden column: x, y1, x1, y2 whole; qkv (3), o (1), u (4) shared over tp; plus statistics.

    Megatron's 34 sbh counts a saved GELU output, dropout masks and two-byte elements; here GELU is recomputed and
    there is no dropout: 4 + 8/t elements.
    """
    run = tiny(model=GPT, plan={"tensor_parallel": tp, "precision": "fp32", "attention": "flash"})
    e = of(run)
    rows = e.local_tokens
    statistics = 4 * (4 * rows + e.batch * e.heads * e.seq)  # two norms' rstd and mean; lse
    assert saved_bytes(layer(e, 1)) == 4 * rows * 64 * 4 + 4 * e.tokens * 64 * 8 // tp + statistics


def test_sequence_parallelism_shards_everything_a_layer_saves(tiny: Tiny) -> None:
    whole = saved_bytes(layer(of(tiny(model=GPT)), 1))
    run = tiny(model=GPT, plan={"tensor_parallel": 2, "sequence_parallel": True, "precision": "fp32"})
    assert saved_bytes(layer(of(run), 1)) * 2 == whole


def test_unfused_attention_saves_the_probabilities(tiny: Tiny) -> None:
    """5 a s² b bytes in Megatron's formula are softmax output, mask and dropout output; here the softmax output
    alone.
    """
    flash = of(tiny(model=GPT, plan={"attention": "flash", "precision": "fp32"}))
    unfused = of(tiny(model=GPT, plan={"attention": "unfused", "precision": "fp32"}))
    scores = flash.batch * flash.heads * flash.seq**2 * 4
    lse = flash.batch * flash.heads * flash.seq * 4
    assert saved_bytes(layer(unfused, 1)) - saved_bytes(layer(flash, 1)) == scores - lse


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_backward_does_twice_forward_in_gemms(tiny: Tiny, model: dict[str, object]) -> None:
    unit = layer(of(tiny(model=model)), 1)
    forward = [c for s in unit.forward if isinstance(s, Lines) for c in s.body.calls if c.op == "gemm"]
    backward = [c for s in unit.backward if isinstance(s, Lines) for c in s.body.calls if c.op == "gemm"]
    assert sum(map(flops_of, backward)) == 2 * sum(map(flops_of, forward))


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("cut", [False, True])
def test_cutting_attention_changes_no_kernel_call(tiny: Tiny, model: dict[str, object], cut: bool) -> None:
    def calls(unit: Unit) -> list[object]:
        parts = [s for s in (*unit.forward, *unit.backward) if isinstance(s, Lines)]
        return sorted((c for s in parts for c in s.body.calls), key=repr)

    e = of(tiny(model=model))
    assert calls(layer(e, 1, cut)) == calls(layer(e, 1))


def test_every_kernel_call_names_an_operator(tiny: Tiny) -> None:
    for model in (GPT, LLAMA, {**GPT, "positions": "alibi", "embedding_norm": True, "dropout": 0.1}):
        for attention in ("flash", "unfused"):
            e = of(tiny(model=model, plan={"attention": attention, "precision": "fp32"}))
            for unit in (embedding(e), layer(e, 1), head(e, "head.weight")):
                for step in (*unit.forward, *unit.backward):
                    assert not isinstance(step, Lines) or all(c.op in OPERATORS for c in step.body.calls)


def test_attention_is_priced_within_the_window_of_the_layers_that_have_one(tiny: Tiny) -> None:
    """Row r of 32 sees min(r + 1, 8) keys: 228 of the 1,024 pairs, counted as 8·32 − 8²/2 = 224; every second layer
    sees half the square."""
    windowed = of(tiny(model={**LLAMA, "window": {"size": 8, "full_every": 2}}))

    def attention(number: int) -> list[float]:
        parts = [s for s in layer(windowed, number).forward if isinstance(s, Lines)]
        return [flops_of(c) for s in parts for c in s.body.calls if c.op == "attention_forward"]

    pairs = 2 * 2 * windowed.batch * windowed.heads * windowed.head_dim
    assert attention(1) == attention(3) == [pairs * 224]
    assert attention(2) == attention(4) == [pairs * 32 * 32 / 2]
    one = layer(windowed, 1).tensors, layer(windowed, 2).tensors
    assert [tensors["lse"].bytes for tensors in one] == [windowed.batch * windowed.heads * 32 * 4] * 2


def test_a_parallel_residual_is_summed_over_ranks_once(tiny: Tiny) -> None:
    """One all-reduce forward, and one a norm backward; under sequence parallelism its gradient is gathered once."""
    plan = {"tensor_parallel": 2, "precision": "fp32"}

    def count(shared: bool, sp: bool) -> list[str]:
        numbers = {**GPT, "parallel_residual": True, "shared_norm": shared}
        e = of(tiny(model=numbers, plan=plan | {"sequence_parallel": sp}))
        return sorted(s.kind for s in (*layer(e, 1).forward, *layer(e, 1).backward) if not isinstance(s, Lines))

    assert count(shared=True, sp=False) == ["AR"] * 2
    assert count(shared=False, sp=False) == ["AR"] * 3
    assert count(shared=True, sp=True) == ["AG"] * 3 + ["RS"] * 2
    assert count(shared=False, sp=True) == ["AG"] * 5 + ["RS"] * 3


def test_tensor_parallel_volumes_without_and_with_sequence_parallelism(tiny: Tiny) -> None:
    """4 all-reduces of T·h a layer; with sequence parallelism the same bytes as AG + RS, plus one gather for each
    column GEMM.
    """
    plain = layer(of(tiny(model=GPT, plan={"tensor_parallel": 2, "precision": "fp32"})), 1)
    sp = layer(of(tiny(model=GPT, plan={"tensor_parallel": 2, "sequence_parallel": True, "precision": "fp32"})), 1)

    def count(unit: Unit) -> dict[str, int]:
        kinds = [s.kind for s in (*unit.forward, *unit.backward) if not isinstance(s, Lines)]
        return {k: kinds.count(k) for k in sorted(set(kinds))}

    assert count(plain) == {"AR": 4}
    assert count(sp) == {"AG": 6, "RS": 4}
    sizes = {s.bytes for s in (*sp.forward, *sp.backward) if not isinstance(s, Lines)}
    assert len(sizes) == 1


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (2, False), (2, True)])
def test_megatron_layer_saves_korthikantis_bytes(tiny: Tiny, tp: int, sp: bool) -> None:
    """sbh(10 + 24/t + 5as/(ht)); all of it over t under sequence parallelism (arXiv 2205.05198, equations 1, 2 and 4).

    The formula leaves out norm statistics and counts no log-sum-exp; ours are counted apart here.
    """
    plan = {"implementation": "megatron", "tensor_parallel": tp, "sequence_parallel": sp, "precision": "bf16"}
    run = tiny(model={**GPT, "dropout": 0.1, "attention_dropout": 0.1}, plan=plan)
    e = of(run)
    s, b, h, a = e.seq, e.batch, 64, 4
    replicated = 10 / (tp if sp else 1)
    formula = s * b * h * (replicated + 24 / tp + 5 * a * s / (h * tp))
    statistics = 4 * 4 * e.local_tokens
    assert saved_bytes(layer(e, 1)) == formula + statistics


def test_full_recompute_keeps_two_sbh(tiny: Tiny) -> None:
    e = of(tiny(model=GPT, plan={"precision": "bf16"}))
    kept = unit_plan(layer(e, 1), 1, "full").kept
    assert kept == ("x",)
    assert sum(layer(e, 1).tensors[n].bytes for n in kept) == 2 * e.tokens * 64
