"""Run files drawn at random over every key of the language: `draw(n)` is always the same file.

Sizes that must fit one another (degrees, layers, batch, cluster) are drawn together; every other key stands at any of
its values, most often at its default. What contradicts itself is mostly made to agree, so that half of the files are
accepted; the rest must be refused by name. A word (a Literal, true or false) is read from the schema, a number from
VALUES: a new number must be given values there, or `test_every_key_is_drawn` fails.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from plan.run.reading import nested_spec
from plan.run.schema import SECTIONS, Spec

JUNK: list[Any] = [None, "", -1, 0, 2.5, 10**30, "auto", "nan", [], [1], {}, {"a": 1}, True, "none", "1e400", "²"]

# What a number may be; `shape` draws those that must fit one another.
VALUES: dict[str, list[Any]] = {
    "model.name": ["custom", "m"],
    "model.init_std": [0.02, 0.1],
    "model.vocab": [256, 260, 301],
    "model.vocab_multiple": [1, 8, 128],
    "model.max_positions": ["auto", 16, 64],
    "model.norm_eps": [1e-5, 1e-6],
    "model.dropout": [0.0, 0.1],
    "model.attention_dropout": [0.0, 0.1],
    "model.embedding_scale": [1.0, 1.0, 4.0],
    "model.attention_scale": ["auto", 0.25],
    "model.attention_softcap": ["none", "none", 50.0],
    "model.logit_softcap": ["none", 30.0],
    "model.window.size": [3, 4096],
    "model.window.full_every": [0, 2],
    "model.rope.theta": [10000.0, 500000.0],
    "model.rope.local_theta": ["auto", "auto", 10000.0],
    "model.rope.fraction": [1.0, 0.5, 0.25],
    "model.rope.scaling.beta_fast": [32.0, 16.0],
    "model.rope.scaling.beta_slow": [1.0, 2.0],
    "model.rope.scaling.attention_factor": [0.0, 1.2],
    "model.rope.scaling.short_factor": [[]],
    "model.rope.scaling.long_factor": [[]],
    "model.rope.scaling.factor": [1.0, 8.0],
    "model.rope.scaling.low_freq_factor": [1.0, 2.0],
    "model.rope.scaling.high_freq_factor": [4.0, 8.0],
    "model.rope.scaling.original_max_positions": [8, 8192],
    "cluster.name": ["custom", "c"],
    "cluster.gpu": ["h100", "a100-40gb", "h200"],
    "cluster.profile": ["auto", "h100", "h200"],
    "cluster.gpu_memory_gib": ["auto", 40, "80 GiB"],
    "cluster.peak_tflops": [{"bf16": 989}, {"fp32": 67, "fp64": 34}],
    "cluster.nvlink.bandwidth_gb_s": [300, 450],
    "cluster.nvlink.latency_us": [0, 2],
    "cluster.nics.count": [1, 8],
    "cluster.nics.bandwidth_gb_s": [25, 50],
    "cluster.nics.latency_us": [0, 5],
    "cluster.pcie_gb_s": [25, 50],
    "cluster.gpus_per_pcie": [1, 2],
    "cluster.host.cores": [2, 128],
    "cluster.host.memory_gib": [16, 2048],
    "cluster.fabric.oversubscription": [1.0, 1.0, 1.0, 2.0],
    "cluster.price_per_gpu_hour": [0, 2.5],
    "cluster.threads_per_rank": ["auto", 1, 4],
    "plan.context_parallel": [1, 1, 1, 2],
    "plan.expert_parallel": [1, 1, 1, 2],
    "plan.rank_order": ["tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-pp-dp"],
    "plan.zero_stage": [0, 1, 2, 3],
    "plan.zero.prefetch": ["auto", "auto", 1e6],
    "plan.zero.live": ["auto", "auto", 1e9],
    "plan.zero.persist_below": ["auto", 0, 100, 2000, 1e9],
    "plan.offload.fraction": [1.0, 0.5, 0.0],
    "plan.recompute.layers": [1, 2, 3],
    "plan.loss_chunks": ["auto", 1, 2, 4],
    "plan.loss_scale.initial": [1.0, 65536.0],
    "plan.loss_scale.window": [1, 1000],
    "plan.loss_scale.hysteresis": [1, 2],
    "plan.loss_scale.floor": [1.0, 0.5],
    "plan.loss_scale.factor": [2.0, 4.0],
    "plan.communication.bucket_mb": ["auto", 0.001, 0.005, 0.02, 1],
    "plan.communication.order": ["auto", "auto", "auto", "tp-first"],
    "optimizer.lr": [0, 1e-4, 3e-3],
    "optimizer.betas": [[0.9, 0.95], [0.0, 0.0], [0.8, 0.999]],
    "optimizer.eps": [1e-8, 1e-6],
    "optimizer.weight_decay": [0, 0.1],
    "optimizer.clip_norm": [0, 0.1, 1.0],
    "optimizer.schedule.warmup_steps": [0, 2, 100],
    "optimizer.schedule.decay_steps": [3, 10, 10000],
    "optimizer.schedule.min_lr": ["auto", 0, 1e-5],
    "optimizer.schedule.anneal_steps": ["auto", 2],
    "train.steps": [3, 100],
    "train.seed": [0, 1234, 10**18],
    "train.record_every": ["auto", 1],
    "train.eval_every": [0, 0, 0, 10],
    "data.path": ["builtin"],
    "data.tokenizer": ["auto"],
    "checkpoint.every": [0, 0, 0, 10],
    "checkpoint.path": ["auto", "saved"],
    "budget.tokens": [None, 1e9],
    "budget.price_per_gpu_hour": [None, 2.0],
}
SHAPE = {
    *(f"model.{key}" for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "seq_length")),
    *(f"cluster.{key}" for key in ("device", "gpus", "gpus_per_node", "nodes")),
    *(f"plan.{key}" for key in ("tensor_parallel", "pipeline_parallel", "virtual_pipeline", "data_parallel")),
    *(f"plan.{key}" for key in ("pipeline_layout", "microbatch_group", "micro_batch_size", "global_batch_size")),
    "plan.schedule",
}
# What is not forecast yet is refused, whatever stands beside it: a few such files are enough.
LATER: dict[str, list[Any]] = {
    "cluster.fabric.oversubscription": [2.0],
    "plan.communication.allreduce": ["hierarchical"],
    "plan.communication.order": ["tp-first"],
    "plan.context_parallel": [2],
    "plan.expert_parallel": [2],
    "plan.gradient_compression": ["onebit-adam"],
    "plan.hybrid": ["zero3-ffn"],
    "plan.offload.activations": ["cpu", "nvme"],
    "plan.offload.optimizer": ["nvme"],
    "plan.offload.parameters": ["nvme"],
    "plan.precision": ["fp8"],
    "plan.rank_order": ["tp-pp-dp"],
    "plan.zero.live": [1e9],
    "plan.zero.prefetch": [1e6],
    "plan.zero.reshard": [False],
}


def keys(spec: type[Spec], where: str) -> Iterator[tuple[str, Any]]:
    """Every key below a section with its annotation; a key that takes a word or a mapping is both."""
    for name, field in spec.model_fields.items():
        path, inner = f"{where}.{name}", nested_spec(field.annotation)
        if inner is not None:
            yield from keys(inner, path)
        if inner is None or words(field.annotation):
            yield path, field.annotation


def words(annotation: Any) -> list[Any]:
    """The words that an annotation admits: those of its Literals, true and false."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if annotation is bool:
        return [False, True]
    if get_origin(annotation) in (list, dict):
        return []
    return [word for part in get_args(annotation) if part is not NoneType for word in words(part)]


KEYS = {path: annotation for name, spec in SECTIONS.items() for path, annotation in keys(spec, name)}


def values(key: str) -> list[Any]:
    """Every value that a key is drawn at; none where a number is not in VALUES."""
    return VALUES.get(key, []) + words(KEYS[key])


def draw(number: int, device: str = "", ranks: int = 16) -> dict[str, Any]:
    """The run file of a number, of at most so many ranks; `device`: any, unless it is named."""
    rng = Random(number)
    chosen = shape(rng, device or rng.choice(["cpu", "cuda"]), ranks)
    often = rng.choice([0.15, 0.5, 0.9])
    for key in KEYS:
        if key not in SHAPE and (found := values(key)) and rng.random() < often:
            chosen.setdefault(key, rng.choice(found))
    needs = {
        "model.rope.scaling.": ("kind", "factor"),
        "cluster.host.": ("cores", "memory_gib"),
        "model.window.": ("size",),
    }
    for whole, needed in needs.items():  # mappings whose keys need one another
        if any(key.startswith(whole) for key in chosen):
            chosen |= {whole + name: chosen.get(whole + name) or rng.choice(values(whole + name)) for name in needed}
    if rng.random() < 0.9:
        agree(rng, chosen)
    if rng.random() < 0.05:
        chosen[rng.choice(sorted(KEYS))] = rng.choice(JUNK)
    return nested(chosen)


def shape(rng: Random, device: str, ranks: int) -> dict[str, Any]:
    """The numbers that must fit one another, by dotted key."""
    degrees = [(t, p, d) for t in (1, 2, 3, 4) for p in (1, 2, 3, 4) for d in (1, 2, 3, 4) if t * p * d <= ranks]
    t, p, d = rng.choice(degrees)
    v = rng.choice([1, 1, 2, 3, 16 // p]) if p > 1 else 1
    stages = p * v
    layers = rng.choice([max(1, stages - 2), max(1, stages - 2), stages, rng.randint(max(1, stages - 2), stages + 4)])
    heads, kv_heads = t * rng.choice([1, 2, 3]), rng.choice(["auto", t])
    group = rng.choice([p, p, rng.randint(p, p + 2)]) if v > 1 else p
    whole = rng.randint(1, 3) * group + rng.choice([0, 0, rng.randint(0, group)])
    microbatches = whole if v > 1 else rng.randint(1, 6)
    micro, seq = rng.choice([1, 2, 3]), rng.choice([7, t * 4, t * 6, t * 8])
    hidden, head_dim = rng.choice([(heads * 6, "auto"), (15, 6), (16, 8), (24, 4)])
    batch = micro * d * microbatches + (rng.random() < 0.03)
    found = {
        "model.layers": layers, "model.hidden": hidden, "model.heads": heads, "model.kv_heads": kv_heads,
        "model.head_dim": head_dim, "model.ffn": rng.choice([t * 8, t * 15, "auto"]), "model.seq_length": seq,
        "model.vocab": rng.choice(VALUES["model.vocab"]), "model.vocab_multiple": rng.choice([1, 8, 128]),
        "plan.tensor_parallel": t, "plan.pipeline_parallel": p, "plan.data_parallel": d, "plan.virtual_pipeline": v,
        "plan.pipeline_layout": units(rng, layers + 2, stages), "plan.micro_batch_size": micro,
        "plan.global_batch_size": batch, "plan.microbatch_group": group if v > 1 else "auto",
        "plan.schedule": rng.choice(["auto", "interleaved-1f1b"] if v > 1 else ["auto", "gpipe", "1f1b", "zb-h1"]),
    }  # fmt: skip
    if t > 1 and seq % t == 0:
        found["plan.sequence_parallel"] = rng.random() < 0.6
    if rng.random() < 0.05:
        found["plan.schedule"] = rng.choice(["zb-h1", "gpipe", "1f1b", "interleaved-1f1b"])
    return found | cluster(rng, device, t * p * d)


def units(rng: Random, count: int, stages: int) -> Any:
    """A pipeline layout: a word, or a list, which likes stages of one unit."""
    if stages > count or rng.random() < 0.3:
        return rng.choice(["auto", "auto", "even"])
    free, found = count - stages, [1] * stages
    likes = rng.sample(range(stages), rng.randint(1, stages))
    for _ in range(free):
        found[rng.choice(likes)] += 1
    return found


def cluster(rng: Random, device: str, world: int) -> dict[str, Any]:
    """A preset that the ranks fill, or every key of one."""
    if device == "cpu":
        stated = {"cluster.device": "cpu", "cluster.gpus": world} if rng.random() < 0.2 else {}
        return {"cluster.preset": "cpu"} | stated
    per_node = rng.choice([n for n in (1, 2, 4, 8) if n <= world])
    size = {"cluster.gpus": world, "cluster.gpus_per_node": per_node}
    if world % per_node == 0 and rng.random() < 0.5:
        size = {"cluster.gpus_per_node": per_node, "cluster.nodes": world // per_node}
    if rng.random() < 0.5:
        return size | {"cluster.preset": rng.choice(["dgx-h100", "dgx-a100-80gb", "dgx-h200"])}
    given = ("gpu", "nvlink.bandwidth_gb_s", "nvlink.latency_us", "nics.count", "nics.bandwidth_gb_s")
    more = (*given, "nics.latency_us", "pcie_gb_s", "host.cores", "host.memory_gib")
    return size | {"cluster.device": device} | {f"cluster.{k}": rng.choice(VALUES[f"cluster.{k}"]) for k in more}


def agree(rng: Random, c: dict[str, Any]) -> None:
    """Takes back most of what contradicts itself."""

    def unless(fits: bool, *names: str) -> None:
        for name in names:
            if not fits and rng.random() < 0.97:
                c.pop(name, None)

    for key, later in LATER.items():
        unless(c.get(key) not in later, key)
    t, p, d = (c[f"plan.{name}_parallel"] for name in ("tensor", "pipeline", "data"))
    unless(t > 1, "plan.sequence_parallel", "plan.partition_activations")
    unless(c["model.seq_length"] % t == 0, "plan.sequence_parallel")
    if isinstance(c["model.ffn"], str) and t == 3:
        c["model.ffn"] = 24
    unless(t == 1, "plan.loss_chunks")
    if c.get("plan.schedule") == "zb-h1":
        unless(False, "plan.implementation", "plan.partition_activations", "plan.recompute.layers")
        unless(c.get("plan.recompute") != "full", "plan.recompute")
        c["plan.zero_stage"] = rng.choice([0, 1])
    if c.get("plan.zero_stage", 1) > 1 and p > 1:
        c["plan.zero_stage"] = rng.choice([0, 1])
    stage, engine = c.get("plan.zero_stage", 1), c.get("plan.implementation", "windtunnel")
    if engine == "torch-fsdp" and p == 1 and c.get("plan.schedule", "auto") in ("auto", "1f1b"):
        c["plan.zero_stage"] = stage = rng.choice([2, 3])
        unless(False, "plan.zero.persist_below", "plan.communication.overlap")
    elif engine == "torch-fsdp":
        c["plan.implementation"] = engine = "windtunnel"
    if (engine == "megatron" and stage > 1) or (engine == "deepspeed" and stage == 3):
        c["plan.implementation"] = engine = "windtunnel"
    ours = engine == "windtunnel" or (engine == "deepspeed" and stage == 2)
    unless(engine != "deepspeed", "plan.schedule", "plan.loss_chunks", "plan.gradient_dtype", "plan.virtual_pipeline",
           "plan.microbatch_group")  # fmt: skip
    if c.get("plan.virtual_pipeline", 1) == 1:
        layout = c["plan.pipeline_layout"]
        unless(isinstance(layout, str) or len(layout) == p, "plan.pipeline_layout")
    unless(stage == 3, *(f"plan.zero.{k}" for k in ("prefetch", "live", "persist_below", "reshard")))
    unless(ours and stage > 0, "plan.offload.optimizer", "plan.offload.parameters", "plan.offload.fraction")
    unless(stage == 3 and d > 1 and c.get("plan.offload.optimizer") == "cpu", "plan.offload.parameters")
    unless(
        c.get("plan.offload.optimizer") == "cpu" and c.get("plan.offload.parameters", "none") == "none",
        "plan.offload.fraction",
    )
    if c.get("plan.partition_activations"):
        unless(not c.get("plan.sequence_parallel"), "plan.partition_activations")
        c["plan.recompute"] = "full"
        c.pop("plan.recompute.layers", None)
    unless(c.get("plan.recompute.layers", 1) <= c["model.layers"], "plan.recompute.layers")
    unless(c.get("plan.attention") == "unfused", "model.attention_dropout", "model.attention_softcap")
    _forms(c, t, unless)
    unless(c.get("plan.gradient_dtype") in ("fp32", c.get("plan.precision", "bf16")), "plan.gradient_dtype")
    dropped = c.get("model.dropout") or c.get("model.attention_dropout")
    on_cpu = c.get("cluster.preset") == "cpu"
    scaled = c.get("plan.precision") == "fp16" or any(key.startswith("plan.loss_scale") for key in c)
    graph = not on_cpu and not dropped and not scaled and engine == "windtunnel" and not c.get("plan.launch_blocking")
    unless(graph, "plan.cuda_graph")
    unless(c.get("model.max_positions") != 16 or c["model.seq_length"] <= 16, "model.max_positions")
    unless(c.get("optimizer.lr", 6e-5) > 0, "optimizer.schedule.min_lr")
    if c.get("optimizer.schedule.warmup_steps", 100) >= c.get("optimizer.schedule.decay_steps", 10000):
        c["optimizer.schedule.warmup_steps"] = 1
    if c.get("optimizer.schedule.kind") == "wsd" and c.get("optimizer.schedule.anneal_steps") == 2:
        c["optimizer.schedule.warmup_steps"] = min(1, c.get("optimizer.schedule.warmup_steps", 1))


def _forms(c: dict[str, Any], t: int, unless: Callable[..., None]) -> None:
    """What the form of a layer takes back."""
    head_dim = c["model.hidden"] // c["model.heads"] if c["model.head_dim"] == "auto" else c["model.head_dim"]
    width = int(head_dim * c.get("model.rope.fraction", 1.0))
    unless(width > 0 and width % 2 == 0, "model.rope.fraction")
    if c.get("model.rope.scaling.kind") == "longrope":
        width = int(head_dim * c.get("model.rope.fraction", 1.0))
        c |= {f"model.rope.scaling.{name}_factor": [1.0] * (width // 2) for name in ("short", "long")}
    unless(not c.get("model.dropout"), "model.parallel_residual")
    unless(not c.get("model.parallel_residual"), "model.norm_place")
    unless(bool(c.get("model.parallel_residual")), "model.shared_norm")
    if c.get("model.norm_place", "input") != "input":
        c.pop("model.bias.out", None), c.pop("model.bias.mlp", None), c.pop("model.bias.qkv", None)
        c["model.bias"] = False
    unless(t == 1 or (c.get("model.qk_norm") == "head" and bool(c.get("plan.sequence_parallel"))), "model.qk_norm")
    unless(any(key.startswith("model.window.") for key in c), "model.rope.local_theta")
    unless(c.get("model.positions") != "alibi", "model.attention_softcap")
    unless(c.get("plan.attention") != "cudnn", "model.window.size", "model.window.full_every")


def nested(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A run file from dotted keys; of a word and a mapping at one key the mapping stays."""
    found: dict[str, Any] = {"model": {}, "cluster": {}, "plan": {}}
    for key, value in chosen.items():
        *path, name = key.split(".")
        place = found
        for part in path:
            inner = place.get(part)
            place[part] = place = inner if isinstance(inner, dict) else {}
        if not (isinstance(place.get(name), dict) and place[name]):
            place[name] = value
    return found
