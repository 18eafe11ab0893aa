"""Rules on degrees: what fills the cluster, what divides the batch and the model, what a program can hold."""

from collections.abc import Iterator

from plan.layout import layout_problems
from plan.model import Model
from plan.pipeline import known, usual
from plan.pipeline import schedule as schedule_of
from plan.run.job import Run
from program.nearest import divisors, nearest_number

MAXIMUM_GPUS = 1 << 20
MAXIMUM_LAYERS = 10_000
MAXIMUM_CALLS = 250_000  # micro-batches · stages: a forward and a backward call each, some 16 kB


def size(run: Run) -> Iterator[str]:
    """What a step program can hold: a forecast ends in about half a minute and 4 GB, or does not begin."""
    plan, gpus, layers = run.plan, run.cluster.gpus, run.model.layers
    if gpus > MAXIMUM_GPUS:
        yield f"the cluster has {gpus} GPUs; a program is made for at most {MAXIMUM_GPUS}"
    if layers > MAXIMUM_LAYERS:
        yield f"model.layers is {layers}; a program is made for at most {MAXIMUM_LAYERS}"
    if plan.microbatches * plan.stages > MAXIMUM_CALLS:
        most = max(1, MAXIMUM_CALLS // plan.stages) * plan.micro_batch_size * plan.data_parallel
        yield (
            f"a step of {plan.microbatches} micro-batches over {plan.stages} stages is more than a program is made "
            f"for, {MAXIMUM_CALLS} micro-batches · stages; nearest: global_batch_size {most}, or a larger "
            "micro_batch_size"
        )


def world_size(run: Run) -> Iterator[str]:
    """TP · CP · PP · DP must be the number of GPUs."""
    plan, gpus = run.plan, run.cluster.gpus
    if plan.world == gpus:
        return
    parts = [
        ("TP", plan.tensor_parallel),
        ("CP", plan.context_parallel),
        ("PP", plan.pipeline_parallel),
        ("DP", plan.data_parallel),
    ]
    shown = [(name, size) for name, size in parts if size > 1 or name != "CP"]
    product = " × ".join(f"{name}{size}" for name, size in shown)
    near = ", ".join(f"TP{t} PP{p} DP{d}" for t, p, d in nearest_plans(run)[:3])
    hint = f"; nearest plans for {gpus}: {near}" if near else ""
    yield f"world size: {product} = {plan.world} ranks, but the cluster has {gpus} GPUs{hint}"


def nearest_plans(run: Run) -> list[tuple[int, int, int]]:
    """(TP, PP, DP) that fill the cluster and split the model, closest to the plan first (fewest doublings away)."""
    model, plan, gpus = run.model, run.plan, run.cluster.gpus
    if gpus % plan.context_parallel:
        return []
    found = []
    for t in divisors(gpus // plan.context_parallel):
        if t in legal_tensor_parallel(run) and t <= run.cluster.gpus_per_node:
            rest = gpus // plan.context_parallel // t
            found += [(t, p, rest // p) for p in divisors(rest) if _splits(model.layers, p * plan.virtual_pipeline)]

    def distance(degrees: tuple[int, int, int]) -> float:
        asked = (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel)
        return sum(max(a / b, b / a) for a, b in zip(asked, degrees, strict=True))

    return sorted(found, key=distance)


def _splits(layers: int, stages: int) -> bool:
    return layers % stages == 0 or (layers + 2) % stages == 0


def batch(run: Run) -> Iterator[str]:
    """global batch = micro batch · accumulation · DP, with a whole number of micro-batches."""
    plan = run.plan
    step = plan.micro_batch_size * plan.data_parallel
    if plan.global_batch_size % step == 0:
        return
    ratio = plan.global_batch_size / step
    lower = plan.global_batch_size // step * step
    repairs = [f"global_batch_size {' or '.join(str(n) for n in (lower, lower + step) if n)}"]
    micros = [m for m in divisors(plan.global_batch_size) if plan.global_batch_size % (m * plan.data_parallel) == 0]
    if micros:
        repairs.append(f"micro_batch_size {nearest_number(plan.micro_batch_size, micros)}")
    replicas = [
        d for d in divisors(plan.global_batch_size) if plan.global_batch_size % (d * plan.micro_batch_size) == 0
    ]
    if replicas:
        near = nearest_number(plan.data_parallel, replicas)
        repairs.append(f"data_parallel {near} (on {plan.world // plan.data_parallel * near} GPUs)")
    yield (
        f"batch: {plan.global_batch_size} != {plan.micro_batch_size} × {ratio:.4g} × {plan.data_parallel} "
        "(global_batch_size = micro_batch_size × micro-batches × data_parallel, and micro-batches must be whole); "
        f"nearest: {', '.join(repairs)}"
    )


def heads(run: Run) -> Iterator[str]:
    """hidden = heads · head_dim unless head_dim is chosen; heads share kv_heads evenly."""
    model = run.model
    broken = model.hidden % model.heads and model.head_dim == max(1, model.hidden // model.heads)
    if broken:
        legal = nearest_number(model.heads, divisors(model.hidden))
        yield f"model.hidden {model.hidden} is not a multiple of heads {model.heads}; give head_dim, or heads {legal}"
    if model.heads % model.kv_heads:
        legal = nearest_number(model.kv_heads, divisors(model.heads))
        yield f"model.heads {model.heads} is not a multiple of kv_heads {model.kv_heads}; nearest kv_heads {legal}"
    if model.positions == "rotary" and not broken:
        yield from _turned(model)


def _turned(model: Model) -> Iterator[str]:
    """Rotary positions rotate pairs of columns; longrope has a factor for each pair."""
    width, scaling = model.rope_width, model.rope_scaling
    if width % 2 or not width:
        if model.rope_fraction == 1:
            near = f"{model.head_dim - 1} or {model.head_dim + 1}"
            yield f"model.head_dim {model.head_dim} is odd, but rotary positions rotate pairs; use {near}"
            return
        columns = f"{width} of model.head_dim {model.head_dim}"
        least = 2 * max(1, round(width / 2)) / model.head_dim
        yield f"model.rope.fraction {model.rope_fraction:g} turns {columns}, but columns are pairs; nearest {least:g}"
        return
    if scaling is not None and scaling.kind == "longrope":
        for name in ("short_factor", "long_factor"):
            if (given := len(getattr(scaling, name))) != width // 2:
                yield f"model.rope.scaling.{name} has {given} factors, but {width} turned columns need {width // 2}"


def norms(run: Run) -> Iterator[str]:
    """Keys of a layer's form that have an effect only beside another."""
    model = run.model
    if model.shared_norm and not model.parallel_residual:
        yield "model.shared_norm: true needs parallel_residual: true (it is false); set it to false"
    if model.rope_local_theta is not None and model.window is None:
        yield f"model.rope.local_theta {model.rope_local_theta:g} is of layers with a window, but window is none"


def positions(run: Run) -> Iterator[str]:
    """A learned position table has a row for every position."""
    model = run.model
    if model.positions == "learned" and model.max_positions < model.seq_length:
        least = model.seq_length
        yield f"model.max_positions {model.max_positions} is below seq_length {least}; give at least {least}"


def legal_tensor_parallel(run: Run) -> list[int]:
    """Every TP that divides heads, kv_heads and ffn."""
    return divisors(run.model.heads, run.model.kv_heads, run.model.ffn)


def tensor_parallel(run: Run) -> Iterator[str]:
    """heads, kv_heads and ffn are split over TP."""
    model, t = run.model, run.plan.tensor_parallel
    names = (("heads", model.heads), ("kv_heads", model.kv_heads), ("ffn", model.ffn))
    broken = [f"{name} {size}" for name, size in names if size % t]
    if broken:
        legal = legal_tensor_parallel(run)
        shown = legal if len(legal) <= 12 else legal[:11] + legal[-1:]
        yield (
            f"tensor_parallel {t} does not divide {' nor '.join(broken)}; legal: {', '.join(map(str, shown))} "
            f"(nearest {nearest_number(t, legal)})"
        )


def sequence_parallel(run: Run) -> Iterator[str]:
    """Sequence parallelism splits the sequence over the tensor-parallel group."""
    plan, seq = run.plan, run.model.seq_length
    if not plan.sequence_parallel:
        return
    if plan.tensor_parallel == 1:
        yield "sequence_parallel: true needs tensor_parallel > 1 (it is 1); use false, or tensor_parallel 2 or more"
    elif seq % (plan.tensor_parallel * plan.context_parallel):
        share = plan.tensor_parallel * plan.context_parallel
        near = max(share, round(seq / share) * share)
        yield f"sequence_parallel: seq_length {seq} is not a multiple of tensor_parallel {share}; nearest {near}"


def layers(run: Run) -> Iterator[str]:
    """Every layer, the embedding and the head on exactly one virtual stage."""
    yield from layout_problems(run.model.layers, run.plan)


def virtual_pipeline(run: Run) -> Iterator[str]:
    """Interleaving: chunks need a pipeline, the interleaved schedule, and micro-batches in groups."""
    plan = run.plan
    p, v, m, n = plan.pipeline_parallel, plan.virtual_pipeline, plan.microbatches, plan.microbatch_group
    given = schedule_of(plan) if known(plan) else None
    if v == 1:
        if given is not None and given.chunks == "several":
            yield f"schedule {given.name} needs virtual_pipeline > 1 (it is 1); use 1f1b, or virtual_pipeline 2"
        elif n != p:
            yield f"microbatch_group {n} needs virtual_pipeline > 1 (it is 1) to have an effect; use auto"
        return
    if p == 1:
        yield f"virtual_pipeline {v} needs pipeline_parallel > 1 (it is 1); use virtual_pipeline 1"
        return
    if given is not None and given.chunks == "one":
        repair = f"use {usual(v)}, or virtual_pipeline 1"
        yield f"schedule {given.name} runs one chunk a stage, but virtual_pipeline is {v}; {repair}"
    if plan.global_batch_size % (plan.micro_batch_size * plan.data_parallel):
        return  # `batch` speaks of it; a rest of a rest would only confuse
    if given is not None and given.chunks == "any":
        return
    if not p <= n <= max(p, m):
        near = min(max(n, p), max(p, m))
        yield f"microbatch_group {n} must lie between pipeline_parallel {p} and the {m} micro-batches; nearest {near}"
    elif m % n and m % n < p:
        legal = [k for k in divisors(m) if k >= p]
        group = f"; or microbatch_group {nearest_number(n, legal)}" if legal else ""
        size = plan.micro_batch_size * plan.data_parallel
        batches = " or ".join(str(k * n * size) for k in (m // n, m // n + 1) if k)
        yield (
            f"interleaving runs micro-batches in groups of {n}: {m} leave a rest of {m % n}, which must be 0 or "
            f"at least pipeline_parallel {p}; nearest: global_batch_size {batches}{group}"
        )


def schedule(run: Run) -> Iterator[str]:
    """What the plan's schedule cannot run."""
    yield from schedule_of(run.plan).problems(run.plan)
