"""The forward and the backward block of one chunk of a stage.

A forward block takes the chunk's input from a receive (or loads tokens), and hands over its output and everything
backward reads. A backward block takes those, runs recompute instructions (phase R) where the plan asks, and hands the
gradient of the chunk's input to a send. It has a second form for the last micro-batch, in which each gradient bucket is
reduced right after its last gradient.
"""

from __future__ import annotations

from compiler.builder import BlockBuilder
from compiler.chunk import ChunkCompiler, Scope
from compiler.fresh import add_fresh
from compiler.held import Held
from compiler.offload import copied_early, copy_gradient
from compiler.recompute import UnitPlan
from compiler.shards import BlockShards
from compiler.step import COPIED, reduce_bucket
from plan.implementations import engine
from program import Block, Bucket, Buffer, Phase


def forward_block(held: Held, chunk: int) -> Block:
    """The forward of a chunk, for any micro-batch."""
    builder = BlockBuilder(f"F{chunk}")
    compiler = _compiler(held, builder, chunk, "F")
    builder.follow("previous")
    if not (held.last(chunk) or held.edges.kept):
        compiler.free_on_entry("sent", "send_fwd", held.edges.carried())
    plans = held.chunks[chunk]
    compiler.shards = shards = BlockShards(held.shards, builder, "F", [plan.number for plan in plans])
    if held.first(chunk):
        flow = compiler.load(plans[0].unit, 0, "tokens")
    else:
        flow = held.edges.arrive(compiler, "F", plans[0].number, held.arrival(False))
    for plan in plans:
        flow = _forward_unit(compiler, shards, plan, flow)
    if not held.last(chunk):
        held.edges.depart(compiler, "F", plans[-1].number, flow)
    shards.leave()
    builder.give("tail", None, builder.last_of("compute"))
    return builder.finish()


def _forward_unit(compiler: ChunkCompiler, shards: BlockShards, plan: UnitPlan, flow: int) -> int:
    """A unit's forward on the buffer `flow`; what backward needs is handed out. Returns the unit's output."""
    scope = {plan.unit.source: flow}
    if any("targets" in step.reads for step in plan.unit.forward):
        scope["targets"] = compiler.load(plan.unit, plan.number, "targets")
    shards.begin(plan.number)
    if plan.shared:
        compiler.share(plan, scope)
    compiler.steps(plan, plan.unit.forward, scope)
    shards.end(plan.number)
    for name in plan.kept:
        compiler.builder.give(f"{plan.number}.{name}", scope[name])
    return scope[plan.unit.output]


def _compiler(held: Held, builder: BlockBuilder, chunk: int, phase: Phase) -> ChunkCompiler:
    return ChunkCompiler(builder, held.names, held.rings, _gathers(held, builder, chunk, phase), held.e.serial)


def _gathers(held: Held, builder: BlockBuilder, chunk: int, phase: Phase) -> dict[int, int]:
    """In-ports of the all-gathers of weights that a chunk's first forward waits for, by bucket; or its first backward,
    for what no forward of it has read (a head whose loss is computed in chunks)."""
    if not engine(held.plan).sharded_optimizer or engine(held.plan).gathers_at_once:
        return {}
    forward = held.buckets_read(chunk, "F")
    used = forward if phase == "F" else [b for b in held.buckets_read(chunk, "B") if b not in forward]
    return {b: builder.take(f"weights.{b}", "dp", None) for b in used}


class Unreduced:
    """Gradients that the last micro-batch has still to make in each bucket, over all chunks of the stage."""

    def __init__(self, held: Held) -> None:
        self.plan, self.buckets, self.bucket_of = held.plan, held.parameters.buckets, held.names.bucket_of
        self.missing: dict[int, int] = {}
        for step in (step for plans in held.chunks for plan in plans for step in plan.unit.backward):
            for name in dict.fromkeys(n for n in step.writes if n.startswith("g:")):
                bucket = self.bucket_of[name[2:]]
                self.missing[bucket] = self.missing.get(bucket, 0) + 1

    def made(self, builder: BlockBuilder, name: str) -> None:
        """A parameter's gradient was just made."""
        bucket = self.buckets[self.bucket_of[name]]
        if bucket.gradients_sharded:
            return
        self.missing[bucket.index] -= 1
        if self.missing[bucket.index] == 0:
            self._complete(builder, bucket)

    def _complete(self, builder: BlockBuilder, bucket: Bucket) -> None:
        """A bucket's last gradient was just made: reduce it, and copy it to the host, beside what follows."""
        index = len(builder.instructions) - 1
        if self.plan.data_parallel > 1 and engine(self.plan).overlaps_gradients:
            index = reduce_bucket(builder, self.plan, bucket, index)
            builder.give(f"bucket.{bucket.index}", None, index)
        if copied_early(self.plan, bucket):
            builder.give(f"{COPIED}{bucket.index}", None, copy_gradient(builder, bucket, (index,)))


def backward_block(held: Held, chunk: int, unreduced: Unreduced | None) -> Block:
    """The backward of a chunk; `unreduced` when this is the form of the last micro-batch."""
    return _Backward(held, chunk, unreduced).block()


class _Backward:
    """One backward block in the making."""

    def __init__(self, held: Held, chunk: int, unreduced: Unreduced | None) -> None:
        self.held, self.chunk, self.unreduced = held, chunk, unreduced
        self.first, self.last = held.first(chunk), held.last(chunk)
        self.plans = held.chunks[chunk]
        self.order = [plan.number for plan in reversed(self.plans)]
        self.builder = BlockBuilder(f"B{chunk}" if unreduced is None else f"B{chunk}.last")
        self.compiler = _compiler(held, self.builder, chunk, "B")

    def block(self) -> Block:
        """The block: what it takes, its units in reverse, what it hands over."""
        self._enter()
        gradient = self.arrived
        for plan in reversed(self.plans):
            gradient = self._unit(plan, gradient)
        self.shards.leave()
        if engine(self.held.plan).grad_accumulation == "separate_buffer":
            for number in self.order:
                add_fresh(self.builder, self.held.plan, self.held.parameters, number, self.held.params_of(number))
        if not self.first:
            self.held.edges.depart(self.compiler, "B", self.order[-1], gradient)
        if not self.held.edges.partitioned:
            self._release()
        self.builder.give("tail", None, self.builder.last_of("compute"))
        return self.builder.finish()

    def _enter(self) -> None:
        """Take what forward saved, the output it sent away, and the gradient of it."""
        held, compiler = self.held, self.compiler
        self.builder.follow("previous")
        if not self.first:
            compiler.free_on_entry("sent", "send_bwd", held.edges.carried())
        self.scopes: dict[int, Scope] = {
            plan.number: {name: self._take_saved(plan, name) for name in plan.kept} for plan in self.plans
        }
        self.sent = None if self.last or not held.edges.kept else held.edges.take_sent(compiler, self.order[0])
        self.arrived = None if self.last else held.edges.arrive(compiler, "B", self.order[0], held.arrival(True))
        if (unreduced := self.unreduced) is not None:
            compiler.after_grad = lambda name: unreduced.made(self.builder, name)
        last = unreduced is not None
        compiler.shards = self.shards = BlockShards(held.shards, self.builder, "B", self.order, last=last)

    def _take_saved(self, plan: UnitPlan, name: str) -> int:
        spec = plan.unit.tensors[name]
        first = plan is self.plans[0] and name == plan.unit.source and not self.first
        received = first and not self.held.edges.partitioned  # else the slot's contents were joined into a buffer
        buffer = Buffer(spec.shape, spec.dtype, spec.pool, name)
        return self.builder.take(f"{plan.number}.{name}", "compute", buffer, consume=not received)

    def _unit(self, plan: UnitPlan, gradient: int | None) -> int | None:
        """A unit's recompute and backward on the gradient of its output; returns the gradient of its input."""
        compiler, scope = self.compiler, self.scopes[plan.number]
        self.shards.begin(plan.number)
        if plan.shared:
            compiler.unshare(plan, scope)
        compiler.steps(plan, plan.repeated, scope, recompute=True)
        if "targets" not in scope and any("targets" in step.reads for step in plan.unit.backward):
            scope["targets"] = compiler.load(plan.unit, plan.number, "targets")
        if gradient is not None:
            scope["d2"] = gradient
        compiler.steps(plan, plan.unit.backward, scope)
        self.shards.end(plan.number)
        return scope.get("d0")

    def _release(self) -> None:
        """Slots in which the chunk's input and gradient arrived are free again; the kept output goes."""
        builder = self.builder
        if not self.first:
            source = self.scopes[self.order[-1]][self.plans[0].unit.source]
            builder.give("x_done", None, builder.done_with(source))
        if self.arrived is not None:
            builder.give("d_done", None, builder.done_with(self.arrived))
        if self.sent is not None:
            builder.discard(self.sent, builder.last_of("compute"))
