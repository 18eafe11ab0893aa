"""A stage's parameters, laid out in flat buckets in the order in which their gradients are finished.

Order of last gradient is backward order, so that a bucket can be reduced while earlier layers still compute. A bucket
closes at the first parameter end at or above the threshold and is padded to lcm(dp, 128) elements; parameters are not
split. Tied embeddings and parameters that every tensor-parallel rank holds whole have buckets of their own: their
gradients need one more sum (over the two stages, over `tp`) than the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from compiler.partition import Kind, Members, offloaded, partitions_gradients, partitions_weights, unit_buckets
from compiler.units import HEAD, TABLE
from compiler.units.step import Stepped
from plan.implementations import engine
from plan.model import Model
from plan.parallel import Plan
from program import DTYPE_BYTES, Bucket, Buffer, Param, Pool, numel
from program.lines import Unit, Weight


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters with their places, buckets, and the rank-wide buffers that hold them (views and flats)."""

    params: tuple[Param, ...]
    buckets: tuple[Bucket, ...]
    buffers: tuple[Buffer, ...]
    weight_ref: dict[str, int]  # rank-wide buffer of each parameter's weight view
    grad_ref: dict[str, int]  # of its main gradient
    fresh_ref: dict[str, int]  # of the gradient that a backward makes: the main one, unless it is made apart

    def stepped(self, bucket: Bucket, gradient: Buffer, state: list[int]) -> Stepped:
        """What the step of a bucket is on a rank; `state`: master, exp_avg, exp_avg_sq [, the weights that follow]."""
        flats = [self.buffers[index] for index in state]
        sizes = [(numel(flat.shape), flat.dtype) for flat in (gradient, *flats)]
        params = sorted((p for p in self.params if p.bucket == bucket.index and p.decay), key=lambda p: p.offset)
        return Stepped(
            share=bucket.shard_numel,
            sharded=bucket.shard_numel < bucket.numel,
            gradient=sizes[0],
            master=sizes[1],
            weight=sizes[4] if len(sizes) > 4 else None,
            state=flats[1].dtype,
            decayed=tuple((p.offset, p.offset + p.local_numel) for p in params),
        )


def unit_params(model: Model, plan: Plan, unit: Unit, tied_here: bool) -> list[Param]:
    """Parameters of a unit in order of last gradient. `tied_here`: the head shares this stage's embedding table, whose
    last gradient is the embedding's."""
    names = [name for name in unit.parameters() if not (tied_here and name == TABLE and unit.source != "tokens")]
    return [_param(name, unit.weights[name], model, plan) for name in names]


def _param(name: str, weight: Weight, model: Model, plan: Plan) -> Param:
    t, shard_dim = plan.tensor_parallel, weight.shard_dim
    std = model.init_std
    scaled = std / math.sqrt(2 * model.layers)  # GPT-2: residual projections start smaller
    return Param(
        name,
        tuple(n * t if d == shard_dim else n for d, n in enumerate(weight.dims)),
        weight.dims,
        shard_dim,
        plan.precision,
        bucket=-1,
        offset=-1,
        init={"normal": f"normal:{std}", "scaled": f"normal:{scaled}"}.get(weight.init, weight.init),
        decay=len(weight.dims) > 1,
        tp_replicated=shard_dim is None and plan.sequence_parallel and t > 1,
        tied_to=TABLE if name == HEAD and model.tied_embeddings else None,
        segments=tuple(n * t for n in weight.segments),
        used_rows=weight.used_rows,
    )


def _kind(param: Param, model: Model, plan: Plan) -> Kind:
    if param.shard_dim is None and plan.tensor_parallel > 1:
        return "replicated"
    if model.tied_embeddings and param.name in (TABLE, HEAD):
        return "tied"
    return "sharded"


def _bucketed(params: list[Param], kinds: list[Kind], limit_bytes: float, plan: Plan) -> list[list[Param]]:
    """Buckets in order of completion; each a list of parameters with `bucket` and `offset` filled in."""
    closed: list[tuple[int, list[Param]]] = []
    open_: dict[Kind, tuple[list[Param], int]] = {}
    size = DTYPE_BYTES[plan.gradient_dtype]
    for position, (param, kind) in enumerate(zip(params, kinds, strict=True)):
        members, used = open_.get(kind, ([], 0))
        members = [*members, replace(param, offset=used)]
        used += param.local_numel
        open_[kind] = (members, used)
        if kind == "sharded" and used * size >= limit_bytes:
            closed.append((position, open_.pop(kind)[0]))
    order = {id_: p for p, id_ in enumerate(param.name for param in params)}
    closed += [(order[members[-1].name], members) for members, _ in open_.values()]
    ordered = [members for _, members in sorted(closed, key=lambda item: item[0])]
    return [[replace(p, bucket=b) for p in members] for b, members in enumerate(ordered)]


def lay_out(units: list[list[Param]], model: Model, plan: Plan, first_stage: bool) -> Parameters:
    """Place a stage's parameters, given unit by unit in order of last gradient, into buckets and flat buffers.

    Flat buffers of a bucket: weights (plan's precision), main gradients (gradient dtype), and one rank's share of
    master weights, exp_avg and exp_avg_sq (fp32; fp64 in fp64 runs) and, under ZeRO, of the reduced gradient. What
    ZeRO-2 and 3 partition (`compiler.partition`) is a rank's share too.
    """
    order = [p for params in units for p in params]
    kinds = [_kind(p, model, plan) for p in order]
    kind_of = {p.name: k for p, k in zip(order, kinds, strict=True)}
    buffers: list[Buffer] = []
    if partitions_gradients(plan):
        groups = unit_buckets(units, kind_of, plan)
    else:
        classic = _classic_groups(order, kinds, plan, first_stage)
        groups = [Members(tuple(members), kind_of[members[0].name]) for members in classic]
    hosted = offloaded([sum(p.local_numel for p in group.params) for group in groups], plan)
    buckets = [
        _bucket(index, group, plan, first_stage, buffers, host)
        for index, (group, host) in enumerate(zip(groups, hosted, strict=True))
    ]
    params = tuple(p for group in groups for p in group.params)
    weight_ref, grad_ref = {}, {}
    for param in params:
        bucket = buckets[param.bucket]
        if bucket.whole_buffer >= 0:
            weight_ref[param.name] = _view(buffers, param, bucket.whole_buffer, plan.precision, "gather")
        elif not bucket.weights_sharded:
            weight_ref[param.name] = _view(buffers, param, bucket.weight_buffer, plan.precision, "weight")
        if not bucket.gradients_sharded:
            grad_ref[param.name] = _view(buffers, param, bucket.grad_buffer, plan.gradient_dtype, "grad")
    separate = engine(plan).grad_accumulation == "separate_buffer"
    fresh_ref = _fresh(buffers, buckets, params, plan) if separate else grad_ref
    return Parameters(params, tuple(buckets), tuple(buffers), weight_ref, grad_ref, fresh_ref)


def _fresh(buffers: list[Buffer], buckets: list[Bucket], params: tuple[Param, ...], plan: Plan) -> dict[str, int]:
    """Gradients in the computing type, beside the main ones: DeepSpeed's BF16_Optimizer leaves them until the next
    backward."""
    whole = {b.index: b for b in buckets if not b.gradients_sharded}  # others are made in slots
    flats = {i: _flat(buffers, b.numel, plan.precision, "grad", f"fresh gradients.{i}") for i, b in whole.items()}
    return {p.name: _view(buffers, p, flats[p.bucket], plan.precision, "grad") for p in params if p.bucket in flats}


def _classic_groups(order: list[Param], kinds: list[Kind], plan: Plan, first_stage: bool) -> list[list[Param]]:
    chosen = engine(plan)
    limit = chosen.first_bucket_bytes if first_stage else chosen.later_bucket_bytes
    return _bucketed(order, kinds, limit, plan)


def _view(buffers: list[Buffer], param: Param, base: int, dtype: str, pool: Pool) -> int:
    buffers.append(Buffer(param.local_shape, dtype, pool, param.name, None, (base, param.offset)))
    return len(buffers) - 1


def _flat(buffers: list[Buffer], elements: int, dtype: str, pool: Pool, what: str) -> int:
    buffers.append(Buffer((elements,), dtype, pool, what))
    return len(buffers) - 1


def _bucket(
    index: int,
    group: Members,
    plan: Plan,
    first_stage: bool,
    buffers: list[Buffer],
    hosted: bool,
) -> Bucket:
    partitioned = group.partitioned
    used = sum(p.local_numel for p in group.params)
    multiple = math.lcm(plan.data_parallel, 128)
    total = -(-used // multiple) * multiple
    zero = engine(plan).sharded_optimizer
    share = total // plan.data_parallel if zero else total
    state = "fp64" if plan.precision == "fp64" else "fp32"
    split = partitioned and partitions_weights(plan)
    up = split and plan.offload.parameters == "cpu"  # the shard lives on the host
    narrow = state if split and engine(plan).flat_copies else plan.precision  # the optimizer's own, or a copy of it
    weight = _flat(buffers, share if split else total, narrow, "host" if up else "weight", f"weights.{index}")
    grad = _flat(buffers, share if partitioned else total, plan.gradient_dtype, "grad", f"gradients.{index}")
    apart = zero and not engine(plan).reduces_in_place and not partitioned
    reduced = _flat(buffers, share, plan.gradient_dtype, "grad", f"reduced.{index}") if apart else grad
    pool: Pool = "host" if hosted else "optim"
    own = narrow == state and hosted == up  # the weights are their own master where the optimizer finds them
    master = weight if own else _flat(buffers, share, state, pool, f"master.{index}")
    exp_avg = _flat(buffers, share, state, pool, f"exp_avg.{index}")
    exp_avg_sq = _flat(buffers, share, state, pool, f"exp_avg_sq.{index}")
    norm_weight = _norm_weight(group.kind, plan, first_stage)
    below = _flat(buffers, share, plan.gradient_dtype, "host", f"gradients on the host.{index}") if hosted else -1
    back = -1
    if hosted and not up:
        wide = plan.precision == state
        back = master if wide else _flat(buffers, share, plan.precision, "host", f"weights on the host.{index}")
    kept = _flat(buffers, total, plan.precision, "gather", f"whole weights.{index}") if split and group.kept else -1
    return Bucket(
        index, total, share, group.kind, norm_weight, weight, grad, master, exp_avg, exp_avg_sq, reduced, split,
        partitioned, below, back, kept,
    )  # fmt: skip


def _norm_weight(kind: Kind, plan: Plan, first_stage: bool) -> float:
    """So that the sum over ranks counts every parameter once (as Megatron's clip_grads filter, as a weight)."""
    if kind == "replicated":
        return 1.0 / plan.tensor_parallel
    if kind == "tied" and plan.pipeline_parallel > 1:
        return 1.0 if first_stage else 0.0
    return 1.0
