"""The compiler: what stands where in a rank's program, told on small plans."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from compiler import compile_run, coordinates
from plan.layout import layout
from plan.run import Run, load
from program import RankProgram, StepProgram, expand, label
from program.errors import InputError
from program.proofs import ProofError, prove

Tiny = Callable[..., Run]
GPT = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 256, "seq_length": 32, "vocab_multiple": 16}


def lines(program: RankProgram) -> list[str]:
    return [
        label(p.instruction.phase, p.instruction.kind, p.micro, p.instruction.unit, p.instruction.piece)
        for p in expand(program)
    ]


def compiled(tiny: Tiny, **plan: object) -> StepProgram:
    base = {"precision": "fp32", "zero_stage": 0, "global_batch_size": 8, **plan}
    return compile_run(tiny(model=GPT, plan=base))


def test_labels_are_unique_in_a_step(tiny: Tiny) -> None:
    program = compiled(
        tiny, tensor_parallel=2, sequence_parallel=True, pipeline_parallel=2, data_parallel=2, zero_stage=1
    )
    for rank in program.classes:
        assert [label_ for label_, n in Counter(lines(rank)).items() if n > 1] == []


def test_the_reduce_scatter_runs_beside_the_weight_gradient(tiny: Tiny) -> None:
    """B RS mlp.in is issued before W mlp.core; the weight gradient does not wait for it, the norm's backward does."""
    rank = compiled(tiny, tensor_parallel=2, sequence_parallel=True).classes[0]
    placed = {label(p.instruction.phase, p.instruction.kind, p.micro, p.instruction.unit, p.instruction.piece): p
              for p in expand(rank)}  # fmt: skip
    scatter, weight, norm = placed["B RS0.3 mlp.in"], placed["W W0.3 mlp.core"], placed["B B0.3 mlp.in"]
    assert scatter.id < weight.id < norm.id
    assert scatter.id not in weight.waits
    assert norm.waits == (scatter.id,)


def test_the_input_is_gathered_again_while_the_input_gradient_runs(tiny: Tiny) -> None:
    rank = compiled(tiny, tensor_parallel=2, sequence_parallel=True).classes[0]
    order = [x for x in lines(rank) if x.endswith(("0.3 mlp.in", "0.3 mlp.core", "0.3 mlp.out")) and x[0] in "BW"]
    assert order == [
        "B B0.3 mlp.out", "B AG0.3 mlp.out", "W AG0.3 mlp.in", "B I0.3 mlp.core", "B RS0.3 mlp.in", "W W0.3 mlp.core",
        "B B0.3 mlp.in",
    ]  # fmt: skip


def test_every_micro_batch_visits_every_unit_once_each_way(tiny: Tiny) -> None:
    program = compiled(tiny, pipeline_parallel=2, virtual_pipeline=2, schedule="interleaved-1f1b", global_batch_size=4)
    cores = Counter(line for rank in program.classes for line in lines(rank) if line.endswith("attn.core"))
    assert set(cores.values()) == {1}
    assert len(cores) == 3 * 4 * 4  # F, I, W; 4 micro-batches; 4 layers


def test_buckets_close_at_the_first_parameter_end_past_the_limit_and_are_reduced_in_the_last_backward(
    tiny: Tiny,
) -> None:
    rank = compiled(tiny, data_parallel=2, communication={"bucket_mb": 0.1}).classes[0]
    sizes: Counter[int] = Counter()
    largest: Counter[int] = Counter()
    for param in rank.params:
        sizes[param.bucket] += param.local_numel
        largest[param.bucket] = max(largest[param.bucket], param.local_numel)
    whole = [b for b in rank.buckets if b.kind == "sharded"]
    assert len(whole) > 3
    assert all(b.numel % 128 == 0 for b in rank.buckets)
    for bucket in whole[:-1]:
        assert sizes[bucket.index] * 4 >= 0.1e6 > (sizes[bucket.index] - largest[bucket.index]) * 4
    text = lines(rank)
    last_micro = rank.calls[-2].micro
    for bucket in rank.buckets:
        assert text.index(f"step AR{bucket.index} bucket") > text.index(f"B B{last_micro}.5 head.in")


def test_without_overlap_buckets_wait_for_the_end_of_backward(tiny: Tiny) -> None:
    rank = compiled(tiny, data_parallel=2, communication={"bucket_mb": 0.1, "overlap": False}).classes[0]
    text = lines(rank)
    last = max(i for i, line in enumerate(text) if line.startswith("W "))
    assert all(text.index(f"step AR{b.index} bucket") > last for b in rank.buckets)


def test_zero_scatters_gradients_and_gathers_weights_in_the_order_forward_needs_them(tiny: Tiny) -> None:
    rank = compiled(tiny, data_parallel=2, zero_stage=1, communication={"bucket_mb": 0.1}).classes[0]
    text = lines(rank)
    gathers = [line for line in text if line.startswith("step AG")]
    assert gathers == [f"step AG{b.index} weights" for b in reversed(rank.buckets)]
    assert all(b.shard_numel * 2 == b.numel for b in rank.buckets)
    assert sum(line.startswith("step RS") for line in text) == len(rank.buckets)
    first = next(p for p in expand(rank) if p.instruction.piece == "attn.core")
    assert any(text[w].startswith("step AG") for w in first.waits) or len(gathers) == 1


def test_full_recompute_repeats_all_but_a_layers_last_sum(tiny: Tiny) -> None:
    rank = compiled(tiny, tensor_parallel=2, recompute="full").classes[0]
    repeated = [line for line in lines(rank) if line.startswith("R ") and "0.2 " in line]
    assert repeated == [
        "R F0.2 attn.in", "R F0.2 attn.core", "R AR0.2 attn.out", "R F0.2 attn.out", "R F0.2 mlp.in", "R F0.2 mlp.core",
    ]  # fmt: skip


def test_selective_recompute_repeats_the_attention_alone(tiny: Tiny) -> None:
    rank = compiled(tiny, recompute="selective").classes[0]
    assert {line.split(" ")[-1] for line in lines(rank) if line.startswith("R ")} == {"attn.sdpa"}


def test_the_first_n_layers_of_a_chunk_are_recomputed(tiny: Tiny) -> None:
    program = compiled(tiny, pipeline_parallel=2, recompute={"layers": 1})
    for rank, layers in zip(program.classes, ({1}, {3}), strict=True):
        assert {p.instruction.unit for p in expand(rank) if p.instruction.phase == "R"} == layers


def test_tied_embeddings_across_stages_are_summed_over_the_embed_group_and_counted_once(tiny: Tiny) -> None:
    program = compiled(tiny, tensor_parallel=2, pipeline_parallel=2, data_parallel=2)
    assert [g.ranks for g in program.groups["embed"]] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    first, last = program.classes
    weights = [[b.norm_weight for b in rank.buckets if b.kind == "tied"] for rank in (first, last)]
    assert weights == [[1.0], [0.0]]
    assert (
        sum(line.endswith("tied") for line in lines(first)) == sum(line.endswith("tied") for line in lines(last)) == 1
    )


def test_ranks_follow_the_rank_order_and_groups_differ_in_one_axis(tiny: Tiny) -> None:
    run = tiny(
        model=GPT, plan={"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "global_batch_size": 4}
    )
    assert [coordinates(run.plan, rank)["dp"] for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    program = compile_run(run)
    assert [g.ranks for g in program.groups["tp"]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [g.ranks for g in program.groups["dp"]] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert [g.ranks for g in program.groups["model"]] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert program.class_of == (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_a_forward_leaves_what_its_backward_frees(tiny: Tiny, pp: int) -> None:
    """Allocator bytes of one forward and one backward call cancel, boundary tensors apart (they are freed two calls
    later).
    """
    program = compiled(tiny, pipeline_parallel=pp)
    for rank in program.classes:
        nets = {b.name: b.net_bytes for b in rank.blocks}
        edge = 4 * 32 * 64
        produced = (rank.stage < pp - 1) + (rank.stage > 0)
        released = produced  # each block frees the payload of two calls before: counted as an import
        assert nets["F0"] + nets["B0"] - edge * (produced - released) == 0


def test_the_same_run_compiles_to_the_same_hash_and_another_plan_to_another(tiny: Tiny) -> None:
    assert compiled(tiny, pipeline_parallel=2).hash == compiled(tiny, pipeline_parallel=2).hash
    assert compiled(tiny, pipeline_parallel=2).hash != compiled(tiny, pipeline_parallel=2, schedule="gpipe").hash


def transfers(rank: RankProgram) -> list[str]:
    return [
        label(p.instruction.phase, p.instruction.kind, p.micro, p.instruction.unit, p.instruction.piece)
        for p in expand(rank)
        if p.instruction.comm is not None and p.instruction.comm.op in ("send", "recv", "exchange")
    ]


def test_megatron_pairs_transfers_with_the_same_neighbour(tiny: Tiny) -> None:
    program = compiled(tiny, implementation="megatron", pipeline_parallel=2, global_batch_size=3, attention="flash")
    first, last = (transfers(rank) for rank in program.classes)
    assert first == ["F SEND0.2 x", "F XCHG1.2 x.d", "F XCHG2.2 x.d", "B RECV2.2 d"]
    assert last == ["F RECV0.3 x", "B XCHG0.3 d.x", "B XCHG1.3 d.x", "B SEND2.3 d"]


def test_megatron_with_fewer_micro_batches_than_stages_pairs_nothing_on_the_first(tiny: Tiny) -> None:
    program = compiled(tiny, implementation="megatron", pipeline_parallel=4, global_batch_size=2, attention="flash")
    assert not any("XCHG" in line for line in transfers(program.classes[0]))
    assert any("XCHG" in line for line in transfers(program.classes[3]))


def test_megatron_uses_one_bucket_on_later_stages(tiny: Tiny) -> None:
    program = compiled(
        tiny, implementation="megatron", pipeline_parallel=2, data_parallel=2, communication={"bucket_mb": 0.05}
    )
    counts = [sum(b.kind == "sharded" for b in rank.buckets) for rank in program.classes]
    assert counts[0] > 1
    assert counts[1] == 1


def test_loss_chunks_keep_one_chunk_of_logits_alive(tiny: Tiny) -> None:
    """The head's products come once a chunk, in the backward; memory for logits falls by the number of chunks."""
    whole, chunked = (compiled(tiny, loss_chunks=n).classes[0] for n in (1, 4))
    assert "B B0.5 head.fused" in lines(chunked)
    assert not any("head.logits" in line for line in lines(chunked))
    logits = 4 * 32 * 256
    peaks = [
        max(b.peak_bytes for b in rank.blocks if b.name == name) for rank, name in ((whole, "F0"), (chunked, "B0"))
    ]
    fused = next(p.instruction for p in expand(chunked) if p.instruction.piece == "head.fused")
    statistics = 4 * 3 * 32  # of a row: maximum, sum, target's logit
    assert fused.transient_bytes == (logits + statistics) // 4
    assert peaks[0] > logits
    assert sum(c.count for c in fused.body if c.op == "gemm") == 3 * 4


def test_the_header_says_how_gradients_are_reduced_as_the_instructions_do_it(tiny: Tiny) -> None:
    for implementation, kind, said in (("windtunnel", "RS", "reduce-scattered"), ("deepspeed", "AR", "all-reduced")):
        program = compiled(tiny, implementation=implementation, data_parallel=2, zero_stage=2)
        kinds = {i.kind for b in program.classes[0].blocks for i in b.instructions if i.piece == "gradients" and i.comm}
        assert (kinds, program.rules["gradients"].split()[0].strip(",")) == ({kind}, said)
        assert ("weights" in program.rules) == (implementation == "deepspeed")


def test_the_header_says_how_the_implementation_talks_to_neighbours(tiny: Tiny) -> None:
    ours = compiled(tiny, pipeline_parallel=2)
    theirs = compiled(tiny, implementation="megatron", pipeline_parallel=2, attention="flash")
    assert "four streams" in ours.rules["pipeline"]
    assert "paired" in theirs.rules["pipeline"]


ALONE: dict[str, dict[str, Any]] = {
    "embedding": {"pipeline_layout": [1, 2]},
    "head": {"pipeline_layout": [2, 1]},
    "both ends": {"pipeline_parallel": 3, "pipeline_layout": [1, 1, 1]},
    "every unit": {"virtual_pipeline": 2, "pipeline_layout": [1, 1, 1, 1]},
}
MODELS = [
    {"positions": "learned"},
    {"positions": "rotary", "tied_embeddings": False, "bias": False, "norm": "rmsnorm"},
    {"positions": "alibi", "embedding_norm": True},
    {"positions": "rotary", "dropout": 0.1},
]
OPTIONS: list[dict[str, object]] = [
    {},
    {"recompute": "full", "zero_stage": 1, "data_parallel": 2},
    {"recompute": "selective"},
    {"recompute": "full", "sequence_parallel": False, "partition_activations": True},
    {"tensor_parallel": 1, "sequence_parallel": False, "loss_chunks": 4},
]


@pytest.mark.parametrize("implementation", ["windtunnel", "megatron", "deepspeed"])
@pytest.mark.parametrize("alone", ALONE)
def test_units_alone_on_their_chunks_compile_and_prove(tiny: Tiny, alone: str, implementation: str) -> None:
    """Nothing but a gather may read the gradient that reaches the embedding: when it is over, the slot is free."""
    base = {"implementation": implementation, "tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True}
    for model, option in list(product(MODELS, OPTIONS))[::2]:  # each option with every other model, and back
        plan = {"global_batch_size": 6, "zero_stage": 0, **base, **ALONE[alone], **option}
        layers = sum(ALONE[alone]["pipeline_layout"]) - 2
        with suppress(InputError):  # DeepSpeed computes its loss in one piece and interleaves nothing
            run = tiny(model=model | {"layers": layers}, plan=plan)
            prove(compile_run(run))


@pytest.mark.parametrize(
    ("model", "degrees"), [("llama-3-405b", (8, 16, 8)), ({**GPT, "layers": 14}, (2, 2, 8))], ids=["llama-405b", "gpt"]
)
def test_one_unit_a_chunk_as_llama_3_405b_was_trained(model: Any, degrees: tuple[int, int, int]) -> None:
    """Dubey et al. 2024 (arXiv 2407.21783): embedding and head count as layers, 126 + 2 units on 16 · 8 chunks."""
    t, p, v = degrees
    plan = {"tensor_parallel": t, "sequence_parallel": True, "pipeline_parallel": p, "virtual_pipeline": v}
    run = load({"model": model, "cluster": "cpu", "plan": plan | {"global_batch_size": p}})
    assert {len(chunk) for stage in layout(run.model, run.plan) for chunk in stage} == {1}
    prove(compile_run(run))


def test_each_flat_gradient_and_the_loss_is_cleared_by_a_fill_of_its_own(tiny: Tiny) -> None:
    stage = compile_run(tiny()).classes[0]
    zero = next(i for block in stage.blocks for i in block.instructions if i.kind == "ZERO")
    cleared = [stage.buffers[-1 - ref].shape for ref in zero.writes]
    assert len(cleared) == len(stage.buckets) + 1
    assert [(call.op, call.shape) for call in zero.body] == [("fill", shape) for shape in cleared]


def test_layers_of_two_kinds_are_each_proved_by_their_own(tiny: Tiny) -> None:
    """Every second layer has no window; were every third said to have none, layers would differ from their like."""
    program = compile_run(tiny(model={**GPT, "layers": 6, "window": {"size": 4, "full_every": 2}}))
    prove(program)
    with pytest.raises(ProofError, match="are not those of unit 1"):
        prove(replace(program, degrees={**program.degrees, "layer_period": 3}))
