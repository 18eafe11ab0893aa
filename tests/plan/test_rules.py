"""Rules between model, cluster and plan: each broken alone, and the message with value, rule and nearest valid value.

Cases are people's real ones, by the number and source in their text.
"""

from typing import Any

import pytest
import yaml

from plan.presets import merge
from plan.run import load
from program.errors import InputError, NotYetForecast

BASE: dict[str, Any] = {
    "model": {"layers": 80, "hidden": 1024, "heads": 16, "vocab": 1000, "seq_length": 64},
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 2},
    "plan": {},
}

# name: what is laid over BASE, and what the one problem must say
BROKEN = yaml.safe_load("""
world size (issue 2, TP32 x PP8 x DP16 on 1,024 GPUs):
  over:
    model: {heads: 64}
    cluster: {nodes: 128}
    plan: {tensor_parallel: 32, pipeline_parallel: 8, data_parallel: 16}
  says: ["TP32 × PP8 × DP16 = 4096 ranks, but the cluster has 1024 GPUs", "nearest plans for 1024: TP8 PP8 DP16"]
batch 64 on micro 4 (060, starcoder issue 77):
  over: {cluster: {nodes: 1, gpus_per_node: 3}, plan: {micro_batch_size: 4, global_batch_size: 64}}
  says: ["64 != 4 × 5.333 × 3", "global_batch_size 60 or 72", "data_parallel 2"]
batch launched on too small a world (062, LlamaFactory issue 2574):
  over: {plan: {data_parallel: 16, micro_batch_size: 1, global_batch_size: 24}}
  says: ["24 != 1 × 1.5 × 16", "global_batch_size 16 or 32", "data_parallel 12"]
80 layers on PP16 with two chunks of 2 (064, Megatron-LM issue 468):
  over: {plan: {pipeline_parallel: 16, virtual_pipeline: 2, pipeline_layout: even, global_batch_size: 16}}
  says: ["80 layers do not divide evenly", "16 · virtual_pipeline 2 = 32 stages", "80 / 32 = 2.5"]
the same under megatron's own rule:
  over: {plan: {implementation: megatron, pipeline_parallel: 16, virtual_pipeline: 2, global_batch_size: 16}}
  says: ["megatron needs layers (80) or layers + embedding + head (82) to be a multiple of 32"]
30 layers on PP4 (Megatron-LM issue 1304 dropped two):
  over: {model: {layers: 30}, plan: {pipeline_parallel: 4, pipeline_layout: even}}
  says: ["30 layers do not divide evenly", "nearest that divide: pipeline_parallel 2, 3, 5, 6", "pipeline_layout: auto"]
52 heads over TP8 (066, DeepSpeed issue 3634):
  over: {model: {heads: 52, hidden: 6656}, plan: {tensor_parallel: 8}}
  says: ["tensor_parallel 8 does not divide heads 52", "legal: 1, 2, 4, 13, 26, 52 (nearest 4)"]
28 heads with 4 kv heads over TP8 (066, AdaptThink issue 1):
  over: {model: {heads: 28, kv_heads: 4, hidden: 3584, ffn: 18944}, plan: {tensor_parallel: 8}}
  says: ["does not divide heads 28 nor kv_heads 4", "legal: 1, 2, 4 (nearest 4)"]
kv heads alone (torchtitan issue 2574):
  over: {model: {heads: 32, kv_heads: 2}, plan: {tensor_parallel: 4}}
  says: ["tensor_parallel 4 does not divide kv_heads 2", "(nearest 2)"]
hidden over heads:
  over: {model: {heads: 15}}
  says: ["hidden 1024 is not a multiple of heads 15; give head_dim, or heads 16"]
more heads than hidden, rotary:
  over: {model: {heads: 2048, positions: rotary}}
  says: ["hidden 1024 is not a multiple of heads 2048; give head_dim, or heads 1024"]
heads over kv_heads:
  over: {model: {kv_heads: 5}}
  says: ["heads 16 is not a multiple of kv_heads 5; nearest kv_heads 4"]
too few positions:
  over: {model: {max_positions: 32}}
  says: ["max_positions 32 is below seq_length 64"]
odd rotary width:
  over: {model: {positions: rotary, head_dim: 63}}
  says: ["head_dim 63 is odd", "use 62 or 64"]
sequence parallel alone:
  over: {plan: {sequence_parallel: true}}
  says: ["sequence_parallel: true needs tensor_parallel > 1 (it is 1)"]
a sequence that does not split:
  over: {model: {seq_length: 62}, plan: {tensor_parallel: 4, sequence_parallel: true}}
  says: ["seq_length 62 is not a multiple of tensor_parallel 4; nearest 64"]
more stages than units:
  over: {model: {layers: 5}, plan: {pipeline_parallel: 8, global_batch_size: 2}}
  says: ["5 layers with embedding and head are 7 units", "use at most 7"]
a layout that forgets embedding and head:
  over: {model: {layers: 4}, plan: {pipeline_parallel: 2, pipeline_layout: [2, 2]}}
  says: ["sums to 4 units; 4 layers + embedding + head are 6", "add 1 to the first"]
a layout of another length:
  over: {model: {layers: 4}, plan: {pipeline_parallel: 2, pipeline_layout: [2, 2, 2]}}
  says: ["lists 3 stages but pipeline_parallel 2"]
chunks without a pipeline:
  over: {plan: {virtual_pipeline: 2}}
  says: ["virtual_pipeline 2 needs pipeline_parallel > 1"]
chunks under plain 1f1b:
  over: {plan: {pipeline_parallel: 2, virtual_pipeline: 2, schedule: 1f1b, global_batch_size: 16}}
  says: ["schedule 1f1b runs one chunk a stage, but virtual_pipeline is 2"]
interleaved without chunks:
  over: {plan: {pipeline_parallel: 2, schedule: interleaved-1f1b}}
  says: ["interleaved-1f1b needs virtual_pipeline > 1"]
a group of micro-batches without chunks:
  over: {plan: {pipeline_parallel: 2, microbatch_group: 4}}
  says: ["microbatch_group 4 needs virtual_pipeline > 1 (it is 1) to have an effect; use auto"]
micro-batches that leave a rest:
  over: {plan: {pipeline_parallel: 4, virtual_pipeline: 2, data_parallel: 4, global_batch_size: 24}}
  says: ["groups of 4: 6 leave a rest of 2", "global_batch_size 16 or 32", "microbatch_group 6"]
a group smaller than the pipeline:
  over: {plan: {pipeline_parallel: 4, virtual_pipeline: 2, microbatch_group: 2, global_batch_size: 32}}
  says: ["microbatch_group 2 must lie between pipeline_parallel 4 and the 8 micro-batches; nearest 4"]
attention dropout in a fused kernel:
  over: {model: {attention_dropout: 0.1}, plan: {attention: flash}}
  says: ["attention_dropout 0.1 needs attention: unfused, but it is flash"]
loss chunks:
  over: {plan: {loss_chunks: 3}}
  says: ["loss_chunks 3 does not divide the 64 tokens", "nearest 2"]
more micro-batches than a program is made for:
  over: {plan: {global_batch_size: 16_000_000}}
  says: ["1000000 micro-batches over 1 stages", "nearest: global_batch_size 4000000"]
more layers than a program is made for:
  over: {model: {layers: 20_000}}
  says: ["model.layers is 20000", "at most 10000"]
more GPUs than a program is made for:
  over: {cluster: {nodes: 200_000}}
  says: ["1600000 GPUs", "at most 1048576"]
more recomputed layers than layers:
  over: {plan: {recompute: {layers: 81}}}
  says: ["recompute layers 81 is more than the model's 80"]
a graph on a machine without CUDA:
  over: {cluster: {preset: cpu, gpus: 16, nodes: null}, plan: {cuda_graph: true}}
  says: ["cuda_graph true needs CUDA devices, but the cluster is cpu; set it to false"]
a graph of somebody else's step:
  over: {plan: {cuda_graph: true, implementation: megatron}}
  says: ["cuda_graph true is of implementation windtunnel, but it is megatron"]
a graph of blocking launches:
  over: {plan: {cuda_graph: true, launch_blocking: true}}
  says: ["cuda_graph true with launch_blocking true", "set one to false"]
warm-up longer than decay:
  over: {optimizer: {schedule: {warmup_steps: 100, decay_steps: 100}}}
  says: ["warms up for 100 steps but ends its decay at 100"]
weight gradients apart of layers that are repeated:
  over: {plan: {schedule: zb-h1, pipeline_parallel: 2, recompute: full}}
  says: ["what recompute full throws away", "use recompute selective or none, or schedule 1f1b"]
weight gradients apart of partitioned gradients:
  over: {plan: {schedule: zb-h1, zero_stage: 2}}
  says: ["zero_stage 2 reduces gradients unit by unit", "use zero_stage 1"]
weight gradients apart in several chunks:
  over: {plan: {schedule: zb-h1, pipeline_parallel: 2, virtual_pipeline: 2, global_batch_size: 16}}
  says: ["schedule zb-h1 runs one chunk a stage, but virtual_pipeline is 2"]
a graph of kernels that are not ours:
  over: {plan: {kernels: fms, cuda_graph: true}}
  says: ["cuda_graph true is of our own kernels", "kernels is fms", "set it to false"]
torch-fsdp without shards:
  over: {plan: {implementation: torch-fsdp, zero_stage: 1}}
  says: ["torch-fsdp shards parameters", "zero_stage is 1", "use 3"]
torch-fsdp with small parameters whole:
  over: {plan: {implementation: torch-fsdp, zero: {persist_below: 1000}}}
  says: ["torch-fsdp shards every parameter", "persist_below is 1000", "leave it out"]
torch-fsdp without overlap:
  over: {plan: {implementation: torch-fsdp, communication: {overlap: false}}}
  says: ["torch-fsdp always overlaps", "overlap is false", "use true"]
torch-fsdp with another schedule:
  over: {plan: {implementation: torch-fsdp, schedule: gpipe}}
  says: ["torch-fsdp runs a micro-batch's backward behind its forward", "schedule is gpipe", "use 1f1b"]
a floor above the ceiling:
  over: {optimizer: {lr: 1.0e-5, schedule: {min_lr: 1.0e-4}}}
  says: ["min_lr 0.0001 is above lr 1e-05"]
""")

NOT_YET = yaml.safe_load("""
plan.zero_stage 2: {zero_stage: 2, implementation: megatron}
plan.zero.prefetch 50000000.0: {zero_stage: 3, zero: {prefetch: 5e7}}
plan.zero.reshard false: {zero_stage: 3, zero: {reshard: false}}
plan.context_parallel 2: {context_parallel: 2}
plan.expert_parallel 2: {expert_parallel: 2}
plan.precision fp8: {precision: fp8}
plan.schedule zb-v: {pipeline_parallel: 2, schedule: zb-v}
plan.schedule zb-h1 with implementation megatron: {pipeline_parallel: 2, schedule: zb-h1, implementation: megatron}
plan.offload.optimizer cpu with implementation torch-fsdp: {implementation: torch-fsdp, offload: {optimizer: cpu}}
plan.offload.optimizer nvme: {zero_stage: 3, offload: {optimizer: nvme}}
plan.offload.parameters cpu with optimizer none: {zero_stage: 3, offload: {parameters: cpu}}
plan.offload.optimizer cpu with implementation megatron: {implementation: megatron, offload: {optimizer: cpu}}
plan.hybrid zero3-ffn: {hybrid: zero3-ffn}
plan.gradient_compression onebit-adam: {gradient_compression: onebit-adam}
plan.gradient_dtype fp16 with precision bf16: {gradient_dtype: fp16}
""")


def problems_of(over: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load(merge(BASE, over))
    return caught.value.problems


def test_the_base_is_legal() -> None:
    assert load(BASE).plan.world == 16


@pytest.mark.parametrize("name", BROKEN)
def test_one_broken_rule_gives_one_sentence_with_value_rule_and_repair(name: str) -> None:
    case = BROKEN[name]
    (problem,) = problems_of(case["over"])
    for part in case["says"]:
        assert part in problem


def test_partitioned_activations_need_equal_shares() -> None:
    """DeepSpeed's get_partition_size asserts it; Megatron-LM's equal chunks would lose the rest."""
    odd = {"model": {"hidden": 15, "heads": 4, "head_dim": 4, "ffn": 16, "seq_length": 7}, "cluster": {"nodes": 1}}
    split = {"tensor_parallel": 4, "recompute": "full", "partition_activations": True}
    (problem,) = problems_of({**odd, "plan": split})
    assert "tensor_parallel 4, but its 1 × 7 × 15 elements" in problem
    assert problem.endswith("leave a rest; nearest micro_batch_size 4, or set it to false")
    assert load(merge(BASE, {**odd, "plan": split | {"micro_batch_size": 4}})).plan.partition_activations


def test_zero_2_with_a_pipeline_is_refused_with_the_reason_and_both_ways_out() -> None:
    """Case 078: DeepSpeed issues 3589 and 823."""
    problem = problems_of({"plan": {"pipeline_parallel": 2, "zero_stage": 2}})[0]
    assert "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism" in problem
    assert "gradients accumulate over the micro-batches" in problem
    assert "use zero_stage 1 with this pipeline, or zero_stage 2 with pipeline_parallel 1" in problem
    assert load(merge(BASE, {"plan": {"pipeline_parallel": 2, "zero_stage": 1}})).plan.zero_stage == 1


@pytest.mark.parametrize("sentence", NOT_YET)
def test_what_is_not_yet_forecast_says_so_and_names_the_nearest_plan(sentence: str) -> None:
    with pytest.raises(NotYetForecast) as caught:
        load(merge(BASE, {"plan": NOT_YET[sentence]}))
    assert [p.partition(" is not yet forecast; nearest supported: ")[0] for p in caught.value.problems] == [sentence]


def test_an_oversubscribed_fabric_is_not_forecast_as_a_full_one() -> None:
    with pytest.raises(NotYetForecast, match=r"cluster.fabric.oversubscription 4.* nics.bandwidth_gb_s at the share"):
        load(merge(BASE, {"cluster": {"fabric": {"oversubscription": 4}}}))


def test_illegal_and_not_yet_forecast_come_together_as_wrong_input() -> None:
    problems = problems_of({"plan": {"tensor_parallel": 3, "precision": "fp8"}})
    assert len(problems) == 3  # 16 % 3 ranks, 16 % 3 heads, fp8
    with pytest.raises(InputError) as caught:
        load(merge(BASE, {"plan": {"tensor_parallel": 3, "precision": "fp8"}}))
    assert not isinstance(caught.value, NotYetForecast)
    assert str(caught.value).startswith("3 problems:\n1. world size: TP3")


def test_bloom_on_twelve_stages_is_legal_and_even_is_not() -> None:
    """72 units: 70 layers, the embedding and the head."""
    plan = {"tensor_parallel": 4, "pipeline_parallel": 12, "micro_batch_size": 2, "global_batch_size": 2048}
    bloom = {"model": "bloom-176b", "cluster": {"preset": "dgx-a100-80gb", "nodes": 48}, "plan": plan}
    assert load(bloom).plan.data_parallel == 8
    assert load(bloom, ["plan.implementation=megatron"]).plan.data_parallel == 8
    with pytest.raises(InputError, match=r"70 / 12 = 5\.833.*counts embedding and head as units \(72 / 12\)"):
        load(bloom, ["plan.pipeline_layout=even"])


def test_nearest_plans_are_legal_themselves() -> None:
    over = {
        "model": {"heads": 64},
        "cluster": {"nodes": 128},
        "plan": {"tensor_parallel": 32, "pipeline_parallel": 8, "data_parallel": 16},
    }
    (problem,) = problems_of(over)
    for text in problem.partition("nearest plans for 1024: ")[2].split(", "):
        t, p, d = (int(part[2:]) for part in text.split())
        plan = {"tensor_parallel": t, "pipeline_parallel": p, "data_parallel": d}
        assert load(merge(BASE, merge(over, {"plan": plan}))).plan.world == 1024


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"attention_softcap": 50}, "attention_softcap 50 needs attention: unfused, but it is flash"),
        ({"shared_norm": True}, "shared_norm: true needs parallel_residual: true"),
        ({"rope": {"local_theta": 1e4}}, "rope.local_theta 10000 is of layers with a window, but window is none"),
        ({"positions": "rotary", "rope": {"fraction": 0.01}}, "columns are pairs; nearest"),
        (
            {"positions": "rotary", "rope": {"scaling": {"kind": "longrope", "factor": 2, "short_factor": [1]}}},
            "rope.scaling.short_factor has 1 factors, but",
        ),
        ({"qk_norm": "projection"}, "qk_norm projection with tensor_parallel 2 is not yet forecast"),
        ({"qk_norm": "head"}, "qk_norm head with tensor_parallel 2 without sequence_parallel is not yet forecast"),
        ({"parallel_residual": True, "dropout": 0.1}, "parallel_residual true with dropout 0.1 is not yet forecast"),
        ({"norm_place": "output", "bias": True}, "norm_place output with biases before it is not yet forecast"),
        ({"window": 0}, "model.window is 0; it must be"),
        ({"window": "wide"}, "model.window is 'wide'; it must be"),
        ({"bias": {"kqv": True}}, "unknown key model.bias.kqv"),
    ],
)
def test_the_forms_of_a_layer_that_contradict_each_other_or_are_not_forecast(over: dict[str, Any], words: str) -> None:
    plan = {"attention": "flash", "tensor_parallel": 2}
    said = problems_of({"model": over, "plan": plan})
    assert any(words in problem for problem in said), said


def test_absurdly_large_numbers_are_answered_at_once() -> None:
    plan = {"pipeline_parallel": 7, "virtual_pipeline": 11, "global_batch_size": 10**12 - 11, "pipeline_layout": "even"}
    assert len(problems_of({"model": {"layers": 10**12}, "plan": plan})) == 5
    (problem,) = problems_of({"plan": {"global_batch_size": 10**17}})
    assert "at most 1000000000000" in problem
    (problem,) = problems_of({"plan": {"global_batch_size": 10**30}})
    assert "the most is 10^18" in problem


def test_the_nearest_plan_is_not_the_one_given() -> None:
    """ZeRO-3 with both offloads lacks our trainer alone."""
    offload = {"optimizer": "cpu", "parameters": "cpu"}
    found = problems_of({"plan": {"implementation": "deepspeed", "zero_stage": 3, "offload": offload}})
    (parameters,) = (text for text in found if text.startswith("plan.offload.parameters"))
    assert parameters.endswith("nearest supported: the same with implementation: windtunnel")
    found = problems_of({"plan": {"zero_stage": 3, "offload": {"parameters": "cpu"}}})
    assert found[0].endswith("nearest supported: the same with offload.optimizer: cpu")


def test_the_nearest_plan_is_not_one_that_a_rule_has_ruled_out() -> None:
    """A pipeline admits ZeRO-1 at most."""
    plan = {"zero_stage": 3, "zero": {"reshard": False}}
    assert "nearest supported: zero_stage: 2" in problems_of({"plan": plan})[0]
    ruled_out, reshard = problems_of({"plan": {**plan, "pipeline_parallel": 2}})
    assert ruled_out.startswith("zero_stage 3 with pipeline_parallel 2")
    assert "nearest supported: zero_stage: 1" in reshard


def test_what_is_wrong_inside_a_mapping_is_said_of_the_inside() -> None:
    """Not that the mapping is no word; and values stand as YAML spells them."""
    scaling = {"kind": "linear", "factor": -2}
    assert problems_of({"model": {"rope": {"scaling": scaling}}}) == (
        "model.rope.scaling.factor is -2; it must be above 0",
    )
    assert problems_of({"plan": {"recompute": {"layers": True}, "precision": False}}) == (
        "plan.recompute.layers: true is not a number",
        "plan.precision is false; it must be one of fp64, fp32, fp16, bf16, fp8",
    )
