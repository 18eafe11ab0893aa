"""Compiles what happens once a step: `open` before the first micro-batch and `close` after the last.

`open`: ZERO clears main gradients and the running loss; under ZeRO one all-gather a bucket brings the weights that the
last STEP changed, in the order in which forward needs them (reverse bucket order).
`close`, in order: reductions that were not overlapped → sum of replicated gradients over `tp` (sequence parallelism) →
sum of tied gradients over `embed` → loss over `dp` → NORM → its sum over `model` (under ZeRO over `world`) → STEP of
each bucket → LOSS, where the host reads loss and gradient norm.

Positional order. ZERO "grads": reads = writes = (gradient flats in bucket order…, loss). NORM "norm": reads (reduced
gradient of each bucket…, loss), writes (stats,) = [Σ norm_weight·sum of squares, loss share]. STEP "adamw", unit =
bucket: reads (stats, reduced gradient, master, exp_avg, exp_avg_sq, weights), writes the last four (weights once if
they are the master). The loss share is loss / tp on the stage that holds the head and 0 elsewhere, so that its plain
sum is the global mean loss; without ZeRO the loss was summed over `dp` before, because `model` leaves dp out.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.block_builder import BlockBuilder
from compiler.offload import HostSteps
from compiler.parameters import Parameters
from compiler.units import AdamNumbers
from compiler.units import step as around
from plan.implementations import engine
from plan.parallel import Plan
from program import DTYPE_BYTES, Block, Bucket, Buffer, Comm, CommOp, Role, Stream, rank_wide

Ports = dict[str, tuple[int, int]]
COPIED = "bucket.copied."


def open_block(plan: Plan, parameters: Parameters, loss: int) -> Block:
    """ZERO, and under ZeRO the weights' all-gathers (out-ports `weights.<bucket>`)."""
    builder = BlockBuilder("open")
    buckets = parameters.buckets
    flats = (*(rank_wide(b.grad_buffer) for b in buckets), rank_wide(loss))
    counts = [b.shard_numel if b.gradients_sharded else b.numel for b in buckets]
    zero = around.zero(counts, plan.gradient_dtype, state_dtype(plan))
    builder.emit("step", "ZERO", 0, "grads", "compute", flats, flats, zero)
    if engine(plan).sharded_optimizer and not engine(plan).gathers_at_once:
        for bucket in (b for b in reversed(buckets) if not b.weights_sharded):
            builder.give(f"weights.{bucket.index}", None, _gather(builder, plan, bucket))
    return builder.finish()


def _gather(builder: BlockBuilder, plan: Plan, bucket: Bucket, after: tuple[int, ...] = ()) -> int:
    """The all-gather of a bucket's weights, in place; returns its local id."""
    flat, size = rank_wide(bucket.weight_buffer), bucket.numel * DTYPE_BYTES[plan.precision]
    comm = Comm("all_gather", "dp", size, plan.precision, "dp")
    return builder.emit("step", "AG", bucket.index, "weights", "dp", (flat,), (flat,), comm=comm, after=after)


def reduce_bucket(builder: BlockBuilder, plan: Plan, bucket: Bucket, after: int) -> int:
    """The data-parallel reduction of a bucket, after instruction (or in-port) `after`; returns its local id."""
    grad, size = rank_wide(bucket.grad_buffer), bucket.numel * DTYPE_BYTES[plan.gradient_dtype]
    zero = engine(plan).sharded_optimizer and not engine(plan).reduces_whole
    op: CommOp = "reduce_scatter" if zero else "all_reduce"
    comm = Comm(op, "dp", size, plan.gradient_dtype, "dp", "sum", plan.communication.allreduce)
    target, kind = rank_wide(bucket.reduced_buffer), "RS" if zero else "AR"
    return builder.emit("step", kind, bucket.index, "bucket", "dp", (grad,), (target,), comm=comm, after=(after,))


@dataclass(slots=True)
class _Close:
    """The block being built, and what its communications must wait for: earlier compute (`tail`), reduced buckets
    (`done`).
    """

    builder: BlockBuilder
    plan: Plan
    parameters: Parameters
    tail: int
    done: list[int]
    optimizer: AdamNumbers

    def sum(self, kind_piece: tuple[str, str], unit: int, role: Role, buffer: int, elements: int, dtype: str) -> None:
        """An all-reduce in place on a rank-wide buffer; later instructions wait for it."""
        channel: Stream = "tp" if role == "tp" else "dp"
        comm = Comm("all_reduce", role, elements * DTYPE_BYTES[dtype], dtype, channel, "sum")
        ref = (rank_wide(buffer),)
        kind, piece = kind_piece
        after = (self.tail, *self.done)
        self.done.append(self.builder.emit("step", kind, unit, piece, channel, ref, ref, comm=comm, after=after))


def close_block(
    plan: Plan,
    parameters: Parameters,
    loss: int,
    has_head: bool,
    reduced: list[str],
    sends: list[Stream],
    edge: Buffer,
    optimizer: AdamNumbers,
    left: tuple[str, Buffer] | None,
) -> Block:
    """The end of the step. In-ports: `tail` (the last backward), `reduced` tokens of overlapped buckets and of
    gradients already on the host, one payload for each send still out, and what the last reduction `left`. `loss`: the
    rank-wide buffer of the loss; its statistics and their copy on the host follow it."""
    builder = BlockBuilder("close")
    tail = -1 - builder.take("tail", "compute", None)
    sums = [name for name in reduced if not name.startswith(COPIED)]
    ends = [-1 - builder.take(name, "dp", None) for name in sums]
    close = _Close(builder, plan, parameters, tail, ends, optimizer)
    copied = {
        int(name.removeprefix(COPIED)): -1 - builder.take(name, "d2h", None) for name in reduced if name not in sums
    }
    payloads = [builder.take(f"sent.{i}", stream, edge) for i, stream in enumerate(sends)]
    if left is not None:
        payloads.append(builder.take(left[0], "dp", left[1]))
    _sum_gradients(close)
    _sum_statistics(close, loss, has_head)
    done = _step_all(close, loss, copied)
    waits = (*(-1 - builder.port_of(p) for p in payloads), *done)
    if engine(plan).sharded_optimizer and engine(plan).gathers_at_once:
        stepped = (builder.last_of("compute"), *done)
        waits += tuple(_gather(builder, plan, bucket, stepped) for bucket in reversed(parameters.buckets))
    stats = (rank_wide(loss + 1),)
    index = builder.emit(
        "step", "LOSS", 0, "loss", "compute", stats, (), around.read(state_dtype(plan)), after=waits, host_sync=True
    )
    for payload in payloads:
        builder.discard(payload, index)
    return builder.finish()


def _sum_gradients(close: _Close) -> None:
    """Every sum of gradients that no backward has begun, in the implementation's order."""
    plan, buckets = close.plan, close.parameters.buckets
    if engine(plan).sums_tied_first:
        _sum_tied(close)
    if plan.data_parallel > 1 and not engine(plan).overlaps_gradients:
        whole = [bucket for bucket in buckets if not bucket.gradients_sharded]
        close.done += [reduce_bucket(close.builder, plan, bucket, close.tail) for bucket in whole]
    _sum_replicated(close)
    if not engine(plan).sums_tied_first:
        _sum_tied(close)


def _sum_statistics(close: _Close, loss: int, has_head: bool) -> None:
    """The loss and the gradient norm, summed over whoever shares them."""
    plan, role = close.plan, _norm_role(close.plan)
    if has_head and plan.data_parallel > 1 and role != "world":
        close.sum(("AR", "loss"), 0, "dp", loss, 1, state_dtype(plan))
    _norm(close, loss)
    if role is not None:
        close.sum(("AR", "norm"), 0, role, loss + 1, 2, state_dtype(plan))


def _step_all(close: _Close, loss: int, copied: dict[int, int]) -> tuple[int, ...]:
    """STEP of every bucket, on the device or on the host; returns what the host's end with. `copied`: the in-ports of
    gradients already on the host."""
    plan, buckets = close.plan, close.parameters.buckets
    gradients = [rank_wide(bucket.reduced_buffer) for bucket in buckets]
    if engine(plan).grad_accumulation == "autograd":
        gradients = [_widen(close, bucket) for bucket in buckets]
    for bucket, gradient in zip(buckets, gradients, strict=True):
        if not bucket.offloaded:
            _step(close, bucket, gradient, loss + 1)
    host = HostSteps(close.builder, close.parameters, close.optimizer, (loss + 1, loss + 2), copied)
    host.take([b for b in buckets if b.offloaded], (close.tail, *close.done))
    return tuple(host.done)


def state_dtype(plan: Plan) -> str:
    """The type of optimizer state, statistics and losses."""
    return "fp64" if plan.precision == "fp64" else "fp32"


def _held(close: _Close, bucket: Bucket) -> int:
    """Elements of a bucket's gradient that the rank has reduced: its share, or all of them."""
    return bucket.numel if engine(close.plan).reduces_whole else bucket.shard_numel


def _sum_replicated(close: _Close) -> None:
    """Gradients of parameters that every tensor-parallel rank holds, summed over them under sequence parallelism."""
    plan = close.plan
    for bucket in close.parameters.buckets:
        if bucket.kind == "replicated" and plan.sequence_parallel:
            elements = _held(close, bucket)
            close.sum(("AR", "replicated"), bucket.index, "tp", bucket.reduced_buffer, elements, plan.gradient_dtype)


def _sum_tied(close: _Close) -> None:
    """Gradients of the tied table, summed over the two stages that hold it (DeepSpeed does this first)."""
    plan = close.plan
    for bucket in close.parameters.buckets:
        if bucket.kind == "tied" and plan.pipeline_parallel > 1:
            elements = _held(close, bucket)
            close.sum(("AR", "tied"), bucket.index, "embed", bucket.reduced_buffer, elements, plan.gradient_dtype)


def _norm(close: _Close, loss: int) -> None:
    """Sum of squares of this rank's gradients and its share of the loss."""
    buckets = close.parameters.buckets
    plan, counts = close.plan, [_held(close, b) for b in buckets]
    weights = [b.norm_weight for b in buckets]
    share, scaled = 1.0 / plan.tensor_parallel, plan.loss_scale is not None
    body = around.norm(counts, plan.gradient_dtype, state_dtype(plan), weights, share, scaled)
    reads = (*(rank_wide(b.reduced_buffer) for b in buckets), rank_wide(loss))
    after = (close.tail, *close.done)
    close.builder.emit("step", "NORM", 0, "norm", "compute", reads, (rank_wide(loss + 1),), body, after=after)


def _norm_role(plan: Plan) -> Role | None:
    """Who shares the norm: every rank under ZeRO (shards are distinct), else the ranks of one model copy; DeepSpeed
    takes the norm of whole gradients."""
    if engine(plan).sharded_optimizer and not engine(plan).reduces_whole:
        return "world"
    return "model" if plan.tensor_parallel * plan.pipeline_parallel > 1 else None


def _widen(close: _Close, bucket: Bucket) -> int:
    """The rank's share of a gradient as the optimizer wants it: its parameters' gradients made flat, then widened
    (`single_partition_of_fp32_groups[i].grad`). DeepSpeed does this for all groups before it steps the first."""
    plan, state = close.plan, state_dtype(close.plan)
    wide = close.builder.buffer(Buffer((bucket.shard_numel,), state, "work", f"wide gradient.{bucket.index}"))
    body = around.widen(_held(close, bucket), bucket.shard_numel, plan.gradient_dtype, state)
    source = (rank_wide(bucket.reduced_buffer),)
    close.builder.emit("step", "CAST", bucket.index, "gradient", "compute", source, (wide,), body)
    return wide


def _step(close: _Close, bucket: Bucket, gradient: int, stats: int) -> None:
    state = [bucket.master_buffer, bucket.exp_avg_buffer, bucket.exp_avg_sq_buffer]
    if bucket.weight_buffer != bucket.master_buffer:
        state.append(bucket.weight_buffer)
    updated = tuple(rank_wide(b) for b in state)
    held = close.builder.buffers[gradient] if gradient >= 0 else close.parameters.buffers[-1 - gradient]
    body = around.adamw(close.parameters.stepped(bucket, held, state), close.optimizer)
    reads = (rank_wide(stats), gradient, *updated)
    close.builder.emit("step", "STEP", bucket.index, "adamw", "compute", reads, updated, body)
