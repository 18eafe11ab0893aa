"""What each source's rows mean as runs: the facts its columns leave out, each with its reason.

A published row names sizes and degrees; what else a run needs (model family, attention kernel, how a node is wired,
whether gradients overlap) is the same for all rows of a source and stands here, once, as data. `presumed` are cells
that the source did not publish and that are filled all the same; they are counted as presumptions and printed with the
scoreboard. Nothing in this file is fitted: every entry is what the source, its framework's defaults or a data sheet
says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from program.errors import InputError
from program.nearest import did_you_mean
from validation.published import Published, named

MemoryKind = Literal["allocated", "reserved", "device"]

GPT: Mapping[str, Any] = {
    "activation": "gelu",
    "norm": "layernorm",
    "positions": "learned",
    "bias": True,
    "tied_embeddings": True,
    "dropout": 0.1,  # Megatron-LM's defaults, both
    "attention_dropout": 0.1,
}
BLOOM: Mapping[str, Any] = {**GPT, "positions": "alibi", "embedding_norm": True}
LLAMA: Mapping[str, Any] = {"activation": "swiglu", "norm": "rmsnorm", "positions": "rotary", "bias": False}
MPT: Mapping[str, Any] = {**GPT, "dropout": 0.0, "attention_dropout": 0.0}

MEGATRON: Mapping[str, Any] = {"implementation": "megatron", "attention": "unfused"}
# FSDP1's flat parameters are gathered to where modules read them, two at most: our own ZeRO-3. FSDP2 copies them out.
FSDP: Mapping[str, Any] = {"implementation": "windtunnel", "attention": "flash"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a source's rows are read. `matches`: the `file` column and how ids begin; `nodes`: only rows of one node, or
    of several.

    `cluster` overrides keys of the node type that the row's `gpu` column names. `stages`: how units are shared out
    over the pipeline. `memory`: what the printed figure counts (live tensors, what the allocator holds, or the whole
    device), in units of `memory_unit_bytes`. `presumed[column]` = (value, why) fills an empty cell.
    `fabric[nodes]` is the row of nccl.csv that says what the source's own network carried between so many nodes.
    `noted[text]` are plan keys of rows whose notes hold that text.
    `blocking_from`: rows of at least so many GPUs ran with CUDA_LAUNCH_BLOCKING=1.
    `anomalous[id]` = why no model of healthy hardware can be held to that row: scores are given with and without them.
    """

    name: str
    matches: tuple[str, str]
    nodes: Literal["any", "one", "several"] = "any"
    family: Mapping[str, Any]
    plan: Mapping[str, Any]
    cluster: Mapping[str, Any] = field(default_factory=dict)
    presumed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    anomalous: Mapping[str, str] = field(default_factory=dict)
    stages: Literal["auto", "by cost"] = "auto"
    fabric: Mapping[int, str] = field(default_factory=dict)
    noted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    blocking_from: int | None = None
    memory: MemoryKind = "device"
    memory_unit_bytes: float = 2.0**30
    why: str = ""


NANOTRON = (
    "AWS p5 presumed. Megatron's program stands for nanotron's (1F1B, flash attention, fp32 logits and accumulation, "
    "activations kept), with the kernels that nanotron's source launches; stages are balanced by the weights of matrix "
    "products, as it does."
)
_NANOTRON: dict[str, Any] = {
    "family": LLAMA,
    "plan": {
        "implementation": "megatron",
        "attention": "flash",
        "communication": {"overlap": True},
        "kernels": "nanotron",
    },
    "stages": "by cost",
    "presumed": {
        "recompute": ("none", "the framework's default"),
        "sp": ("yes", "TP mode not printed; reduce-scatter mode is the benchmark script's default"),
    },
    "memory": "allocated",
}

CONVENTIONS: tuple[Convention, ...] = (
    Convention(
        name="sc21",
        matches=("megatron_papers", "mlm-sc21"),
        family=GPT,
        plan={**MEGATRON, "communication": {"overlap": True}},
        why="Selene: DGX A100, 8 × 200 Gb/s. torch DDP of the time overlaps its all-reduce with backward.",
    ),
    Convention(
        name="korthikanti",
        matches=("megatron_papers", "korthikanti"),
        family=GPT,
        plan={**MEGATRON, "communication": {"overlap": False}},
        presumed={
            "dp": ("1", "Table 3 of the paper"),
            "zero_stage_or_sharding": ("none (DP=1)", "one replica"),
            "vpp": ("3", "Table 3 of the paper, where there is a pipeline"),
        },
        memory="allocated",
        why="Selene; one replica, so no gradient traffic. Memory figures are states plus activations, GiB.",
    ),
    Convention(
        name="megatron-2020",
        matches=("megatron_papers", "mlm-2020"),
        family=GPT,
        plan={**MEGATRON, "communication": {"overlap": False}},
        why="README tables of 2020.",
    ),
    Convention(
        name="vtrain",
        matches=("vtrain", ""),
        cluster={"nics": {"count": 4}},
        family=GPT,
        plan={**MEGATRON, "communication": {"overlap": False}},
        presumed={
            "vocab": ("50257", "default of the source's simulator"),
            "precision": ("fp16", "Megatron's usual precision on A100 then; bf16 costs the same"),
            "zero_stage_or_sharding": ("none", "not stated; one all-reduce of all gradients, no bucketing"),
        },
        anomalous={
            "vtrain-multi-3.6b-g64-tp8-dp8-pp1-mb64": "twice the time of its neighbour with half the micro-batch",
            "vtrain-multi-3.6b-g64-tp8-dp8-pp1-mb2": "1.6 times the time of its neighbour, at equal work",
            "vtrain-multi-3.6b-g64-tp4-dp16-pp1-mb2": "1.3 times the time of its neighbour, at equal work",
        },
        why="8 GPUs and 4 × 200 Gb/s NICs a node; its validation configurations switch gradient bucketing off.",
    ),
    Convention(
        name="bloom",
        matches=("bloom_bigscience", ""),
        cluster={"nics": {"count": 4, "bandwidth_gb_s": 12.5}},
        family=BLOOM,
        plan={"implementation": "deepspeed", "attention": "unfused"},
        memory="device",
        blocking_from=320,
        why="Jean Zay: 4 × Omni-Path 100 Gb/s a node. Megatron-DeepSpeed. Memory is nvidia-smi's. 320 GPUs hung "
        "without CUDA_LAUNCH_BLOCKING=1 (chronicles-prequel.md), smaller runs are taken to have done without.",
    ),
    Convention(
        name="zero-bubble",
        matches=("papers_misc", "zb-"),
        family=GPT,
        plan={**MEGATRON, "communication": {"overlap": False}},
        presumed={
            "vocab": ("50304", "GPT-2's vocabulary, padded"),
            "precision": ("fp16", "Megatron's default training precision"),
            "recompute": ("none", "memory grows with the micro-batches in flight"),
        },
        memory="allocated",
        memory_unit_bytes=1e9,
        why="A Megatron-LM fork on one node a pipeline; first and last stage hold one layer fewer.",
    ),
    Convention(name="nanotron", matches=("nanotron_playbook", ""), nodes="one", why=NANOTRON, **_NANOTRON),
    Convention(
        name="nanotron-nodes",
        fabric={2: "nccl-0695", 4: "nccl-0698", 8: "nccl-0701", 16: "nccl-0704", 32: "nccl-0707", 64: "nccl-0710"},
        matches=("nanotron_playbook", ""),
        nodes="several",
        why=NANOTRON
        + " Several nodes on a weak shared network, as fast as its own scan over nodes says; many rows run "
        "several times slower than their like.",
        **_NANOTRON,
    ),
    Convention(
        name="nvidia-dgxc",
        matches=("nvidia_dgxc_benchmarking", ""),
        family=LLAMA,
        plan={"implementation": "megatron", "attention": "flash", "communication": {"overlap": True}},
        presumed={"gpus_per_node": ("8", "DGX H100")},
        why="NeMo / Megatron-Core recipes.",
    ),
    Convention(
        name="torchtitan",
        matches=("torchtitan", ""),
        family=LLAMA,
        plan={**FSDP, "implementation": "torch-fsdp"},
        why="FSDP2.",
    ),
    Convention(
        name="fms-fsdp",
        matches=("ibm_fms_fsdp", ""),
        family=LLAMA,
        plan={**FSDP, "gradient_dtype": "bf16", "kernels": "fms"},
        why="FSDP1, read as ZeRO-3 of our own with the eager kernels of its Llama; gradients are reduced in bf16 "
        "(policies/mixed_precision.py).",
    ),
    Convention(
        name="llm-foundry",
        matches=("llm_foundry", ""),
        family=MPT,
        plan={**FSDP, "kernels": "llm-foundry"},
        noted={"mixed precision PURE": {"gradient_dtype": "bf16"}},
        why="Composer on FSDP1, read as ZeRO-3 of our own with the kernels that its MPT launches, attention in Triton "
        "(FlashAttention-1). Learned positions and biases: the printed numbers of parameters have them.",
    ),
)


def convention(row: Published) -> Convention | None:
    """The convention of a row's source, or None for a source nobody described."""
    for known in CONVENTIONS:
        file, prefix = known.matches
        if row.file == file and row.id.startswith(prefix) and known.nodes in ("any", _nodes(row)):
            return known
    return None


def _nodes(row: Published) -> str:
    gpus, per_node = row.count("n_gpus") or 1, row.count("gpus_per_node") or 8
    return "one" if gpus <= per_node else "several"


def chosen(rows: Sequence[Published], sources: Sequence[str], ids: Sequence[str]) -> tuple[Published, ...]:
    """Rows of these sources and with these ids, each once; every row when neither is given."""
    names = [known.name for known in CONVENTIONS]
    unknown = [name for name in sources if name not in names]
    if unknown:
        raise InputError(f"--source {name!r}: {did_you_mean(name, names)}" for name in unknown)
    picked = tuple(row for row in rows if (known := convention(row)) is not None and known.name in sources)
    picked += named(rows, ids)
    return tuple({row.id: row for row in picked}.values()) if sources or ids else tuple(rows)
