"""What a trainer tries when a plan does not fit its card, in the order it is tried, as changes of the plan.

`remedies(run, shape)` names changes kind by kind, the mildest of a kind first; whoever asks loads, compiles and
simulates them. `estimate` says by closed forms what a change would hold, from what the run's own simulation holds, so
that few are compiled: states by their sharding, activations by what recompute keeps of a layer (arXiv 2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from plan.implementations import implementation
from plan.parallel import Plan
from plan.run.job import Run
from program.nearest import divisors

STATES = ("weights", "gradients", "optimizer")
WEIGHTS = {"tensor parallel": 3, "offload": 6}
"""Changes that a trainer makes after steps of the other kinds; the others count 1 a step."""
Changes = Mapping[str, Any]
"""Dotted keys of a run file and their new values."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the plan. `kind` groups those that differ in degree."""

    kind: str
    what: str
    changes: Changes


def remedies(run: Run) -> Iterator[Remedy]:
    """Changes that the rules may accept, kind after kind, the mildest of a kind first."""
    yield from _smaller_micro_batch(run)
    yield from _recompute(run)
    yield from _higher_zero(run)
    yield from _model_parallel(run)
    yield from _offload(run)


def combined(run: Run) -> list[Remedy]:
    """Changes of several kinds together, fewest and mildest first."""
    kinds: dict[str, list[Remedy | None]] = {}
    for remedy in remedies(run):
        if remedy.kind not in ("pipeline", "partitioned"):  # whose changes are another kind's too
            kinds.setdefault(remedy.kind, [None]).append(remedy)
    found = []
    for steps in product(*(_spread(len(options)) for options in kinds.values())):
        chosen = [options[step] for options, step in zip(kinds.values(), steps, strict=True)]
        taken = [each for each in chosen if each is not None]
        if len(taken) > 1:
            weight = sum(step * WEIGHTS.get(kind, 1) for kind, step in zip(kinds, steps, strict=True))
            found.append(((len(taken), weight), taken))
    return [_together(run, taken) for _, taken in sorted(found, key=lambda item: item[0])]


def _spread(options: int, most: int = 6) -> list[int]:
    """Places of at most so many options, the first and the last among them."""
    return sorted({round(place * (options - 1) / (most - 1)) for place in range(most)})


def _together(run: Run, taken: list[Remedy]) -> Remedy:
    changes = {key: value for each in taken for key, value in each.changes.items()}
    return Remedy("together", ", ".join(each.what for each in taken), _filled(run, changes))


def less_offload(run: Run) -> Iterator[Remedy]:
    """What brings state back from a host that is too small."""
    offload = run.plan.offload
    if offload.parameters != "none":
        yield Remedy("offload", "parameters on the device", {"plan.offload.parameters": "none"})
    if offload.optimizer != "none":
        changes = {"plan.offload.parameters": "none", "plan.offload.optimizer": "none"}
        yield Remedy("offload", "nothing in host memory", changes)


def _filled(run: Run, changes: Changes) -> Changes:
    """Changes of several degrees, with the data parallelism that they leave together."""
    plan = applied(run, changes).plan
    if plan.world == run.cluster.gpus:
        return changes
    left = run.cluster.gpus // (plan.world // plan.data_parallel)
    return {**changes, "plan.data_parallel": max(1, left), "plan.global_batch_size": plan.global_batch_size}


def applied(run: Run, changes: Changes) -> Run:
    """The run under changes, unchecked: what `estimate` reads of it."""
    plan = run.plan
    for dotted, value in changes.items():
        _, key, *inner = dotted.split(".")
        whole = replace(getattr(plan, key), **{inner[0]: value}) if inner else value
        plan = replace(plan, **{key: whole})
    return replace(run, plan=plan)


def states_bytes(parts: Mapping[str, float]) -> float:
    """Weights, gradients and optimizer state of a stage: what no smaller batch and no recompute makes less."""
    return sum(parts[name] for name in STATES)


def whole_states_bytes(run: Run, parts: Mapping[str, float]) -> float:
    """The states of one replica, from the `parts` of its fullest stage; those on the host are not in it."""
    plan = run.plan
    stage = sum(parts[name] / _share(name, plan) for name in STATES if _share(name, plan) > 0)
    return stage * plan.tensor_parallel * plan.pipeline_parallel


def _smaller_micro_batch(run: Run) -> Iterator[Remedy]:
    now = run.plan.micro_batch_size
    for size in reversed([each for each in divisors(now) if each < now]):
        many = run.plan.microbatches * now // size
        changes: dict[str, Any] = {"plan.micro_batch_size": size, "plan.global_batch_size": run.plan.global_batch_size}
        yield Remedy("micro-batch", f"micro-batch {size}, accumulating {many}", changes)


def _recompute(run: Run) -> Iterator[Remedy]:
    plan = run.plan
    stronger = {"none": ("selective", "full"), "selective": ("full",), "layers": ("full",)}.get(plan.recompute, ())
    for kind in stronger:
        yield Remedy("recompute", f"recompute {kind}", {"plan.recompute": kind})
    if plan.tensor_parallel > 1 and not plan.sequence_parallel:
        yield Remedy("sequence parallel", "sequence parallelism", {"plan.sequence_parallel": True})
        if not plan.partition_activations:
            changes = {"plan.recompute": "full", "plan.partition_activations": True}
            yield Remedy("partitioned", "recompute full, checkpoints partitioned over tensor parallelism", changes)


def _higher_zero(run: Run) -> Iterator[Remedy]:
    plan = run.plan
    if plan.data_parallel == 1:
        return
    most = 1 if plan.pipeline_parallel > 1 else 3
    for stage in range(plan.zero_stage + 1, most + 1):
        changes: dict[str, Any] = {"plan.zero_stage": stage}
        gaps = implementation(plan.implementation).gaps(replace(plan, zero_stage=stage))
        if any(each.key == "plan.implementation" for each in gaps):
            changes["plan.implementation"] = "windtunnel"
        yield Remedy("ZeRO", f"ZeRO-{stage}", changes)


def _model_parallel(run: Run) -> Iterator[Remedy]:
    """More tensor parallelism within a node, then a longer pipeline; data parallelism gives way. A cpu cluster is as
    large as its plan, and more ranks would share one memory."""
    plan, model, cluster = run.plan, run.model, run.cluster
    if cluster.device == "cpu":
        return
    for degree in divisors(cluster.gpus_per_node, model.heads, model.kv_heads):
        if degree > plan.tensor_parallel and cluster.gpus % (degree * plan.pipeline_parallel) == 0:
            changes = {"plan.tensor_parallel": degree, "plan.sequence_parallel": True}
            yield Remedy(
                "tensor parallel", f"tensor parallel {degree}", _shrunk(run, changes, degree, plan.pipeline_parallel)
            )
    for degree in divisors(cluster.gpus // plan.tensor_parallel, model.layers):
        if degree > plan.pipeline_parallel and plan.virtual_pipeline == 1:
            changes = {"plan.pipeline_parallel": degree} | ({"plan.zero_stage": 1} if plan.zero_stage > 1 else {})
            yield Remedy("pipeline", f"pipeline parallel {degree}", _shrunk(run, changes, plan.tensor_parallel, degree))


def _shrunk(run: Run, changes: Changes, tensor: int, pipeline: int) -> Changes:
    left = run.cluster.gpus // (tensor * pipeline * run.plan.context_parallel)
    return {**changes, "plan.data_parallel": left, "plan.global_batch_size": run.plan.global_batch_size}


def _offload(run: Run) -> Iterator[Remedy]:
    plan = run.plan
    if plan.offload.optimizer == "none":
        changes: dict[str, Any] = {"plan.offload.optimizer": "cpu"} | (
            {} if plan.zero_stage else {"plan.zero_stage": 1}
        )
        yield Remedy("offload", "optimizer state in host memory", changes)
    if plan.zero_stage == 3 and plan.offload.parameters == "none":
        both = {"plan.offload.optimizer": "cpu", "plan.offload.parameters": "cpu"}
        yield Remedy("offload", "optimizer state and parameters in host memory", both)


def estimate(run: Run, other: Run, parts: Mapping[str, float]) -> float:
    """Bytes that `other` holds at its peak by closed forms, from the `parts` of the fullest stage of `run`."""
    one, two = run.plan, other.plan
    split = one.tensor_parallel * one.pipeline_parallel / (two.tensor_parallel * two.pipeline_parallel)
    states = sum(parts[name] * split * _share(name, two) / max(_share(name, one), 1e-9) for name in STATES)
    batch = two.micro_batch_size / one.micro_batch_size
    activations = parts["activations"] * batch * _kept(other) / _kept(run)
    passing = (parts["workspace"] + parts["framework"]) * max(batch, split)
    return states + activations + passing + parts["buffers"]


def _share(name: str, plan: Plan) -> float:
    """The share of a kind of state that a rank keeps on its device."""
    from_stage = {"weights": 3, "gradients": 2, "optimizer": 1}[name]
    sharded = 1 / plan.data_parallel if plan.zero_stage >= from_stage else 1.0
    away = {"optimizer": plan.offload.optimizer, "weights": plan.offload.parameters}.get(name, "none") != "none"
    return sharded * (1 - plan.offload.fraction) if away else sharded


def _kept(run: Run) -> float:
    """Bytes of activations that a rank keeps for a token, over the model's width: what a layer saves, times layers in
    flight; with recompute one whole layer; and the logits where they stand on the same rank."""
    plan, model = run.plan, run.model
    t, scores = plan.tensor_parallel, 5 * model.heads * model.seq_length / model.hidden
    scores = scores if plan.attention == "unfused" and plan.recompute == "none" else 0.0
    whole = 10 / t if plan.sequence_parallel else 10
    saved = layer = whole + (24 + scores) / t
    if plan.recompute == "full":
        layer = 2 / t if plan.sequence_parallel or plan.partition_activations else 2
    in_flight = min(plan.microbatches, plan.pipeline_parallel)
    once = saved if plan.recompute == "full" else 0.0
    logits = 6 * model.vocab / model.hidden / t if plan.pipeline_parallel == 1 else 0.0
    return layer * model.layers / plan.pipeline_parallel * in_flight + once + logits
