"""The forward and the backward block of one chunk of a stage.

A forward block takes the chunk's input from a receive (or loads tokens), and hands over its output and everything
backward reads. A backward block takes those, runs recompute instructions (phase R) where the plan asks, and hands the
gradient of the chunk's input to a send. It has a second form for the last micro-batch, in which each gradient bucket is
reduced right after its last gradient. Where a schedule runs weight gradients apart it leaves them to `compiler.halves`.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.block_builder import BlockBuilder
from compiler.chunk import ChunkCompiler, Scope
from compiler.fsdp_groups import block_shards
from compiler.halves import Given, Handed, take_saved, weight_half
from compiler.recompute import UnitPlan
from compiler.reduced import Unreduced
from compiler.shards import BlockShards
from compiler.stage_context import StageContext
from compiler.units import step as around
from plan.implementations import engine
from program import Block, Phase, rank_wide
from program.lines import Part


def forward_block(context: StageContext, chunk: int) -> Block:
    """The forward of a chunk, for any micro-batch."""
    builder = BlockBuilder(f"F{chunk}")
    compiler = _compiler(context, builder, chunk, "F")
    builder.follow("previous")
    if not (context.last(chunk) or context.edges.kept):
        compiler.free_on_entry("sent", "send_fwd", context.edges.carried())
    plans = context.chunks[chunk]
    compiler.shards = shards = block_shards(context.shards, builder, "F", [plan.number for plan in plans])
    if context.first(chunk):
        flow = compiler.load(plans[0].unit, 0, "tokens")
    else:
        flow = context.edges.arrive(compiler, "F", plans[0].number, context.arrival(False))
    for plan in plans:
        flow = _forward_unit(compiler, shards, plan, flow)
    if not context.last(chunk):
        context.edges.depart(compiler, "F", plans[-1].number, flow)
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


def _compiler(context: StageContext, builder: BlockBuilder, chunk: int, phase: Phase) -> ChunkCompiler:
    return ChunkCompiler(
        builder, context.names, context.allocator, _gathers(context, builder, chunk, phase), context.e.serial
    )


def _gathers(context: StageContext, builder: BlockBuilder, chunk: int, phase: Phase) -> dict[int, int]:
    """In-ports of the all-gathers of weights that a chunk's first forward waits for, by bucket; or its first backward,
    for what no forward of it has read (a head whose loss is computed in chunks)."""
    if not engine(context.plan).sharded_optimizer or engine(context.plan).gathers_at_once:
        return {}
    forward = context.buckets_read(chunk, "F")
    used = forward if phase == "F" else [b for b in context.buckets_read(chunk, "B") if b not in forward]
    return {b: builder.take(f"weights.{b}", "dp", None) for b in used}


def backward_block(
    context: StageContext, chunk: int, name: str, halved: bool, closes: str, unreduced: Unreduced
) -> tuple[Block, Handed]:
    """The backward of a chunk, or where it is `halved` its input half and what that hands to the weight half. `closes`:
    the halves of whose gradients this form makes the last."""
    made = _Backward(context, chunk, name, halved, closes, unreduced)
    return made.block(), made.handed


class _Backward:
    """One backward block in the making."""

    def __init__(
        self, context: StageContext, chunk: int, name: str, halved: bool, closes: str, unreduced: Unreduced
    ) -> None:
        self.context, self.chunk, self.halved, self.closes = context, chunk, halved, closes
        self.first, self.last = context.first(chunk), context.last(chunk)
        self.plans = context.chunks[chunk]
        self.order = [plan.number for plan in reversed(self.plans)]
        self.builder = BlockBuilder(name)
        self.compiler = _compiler(context, self.builder, chunk, "B")
        unreduced.watch(self.compiler, closes)
        self.handed: Handed = {}
        self.later = {plan.number: weight_half(plan.unit)[1] if halved else () for plan in self.plans}

    def block(self) -> Block:
        """The block: what it takes, its units in reverse, what it hands over."""
        self._enter()
        gradient = self.arrived
        for plan in reversed(self.plans):
            gradient = self._unit(plan, gradient)
        self.shards.leave()
        if engine(self.context.plan).grad_accumulation == "separate_buffer":
            for number in self.order:
                self._join_main(number)
        if not self.first:
            self.context.edges.depart(self.compiler, "B", self.order[-1], gradient)
        if not self.context.edges.partitioned:
            self._release()
        self.builder.give("tail", None, self.builder.last_of("compute"))
        return self.builder.finish()

    def _enter(self) -> None:
        """Take what forward saved, the output it sent away, and the gradient of it."""
        context, compiler = self.context, self.compiler
        self.builder.follow("previous")
        if not self.first:
            compiler.free_on_entry("sent", "send_bwd", context.edges.carried())
        self.scopes: dict[int, Scope] = {
            plan.number: {name: self._take_saved(plan, name) for name in self._saved(plan)} for plan in self.plans
        }
        self.sent = None if self.last or not context.edges.kept else context.edges.take_sent(compiler, self.order[0])
        self.arrived = None if self.last else context.edges.arrive(compiler, "B", self.order[0], context.arrival(True))
        last = bool(self.closes)
        compiler.shards = self.shards = block_shards(context.shards, self.builder, "B", self.order, last=last)

    def _parts(self, plan: UnitPlan) -> tuple[Part, ...]:
        """The unit's backward as far as this block runs it."""
        return tuple(part for part in plan.unit.backward if not (self.halved and part.phase == "W"))

    def _saved(self, plan: UnitPlan) -> list[str]:
        """What of the kept tensors this block reads."""
        read = {name for part in (*plan.repeated, *self._parts(plan)) for name in part.reads}
        return [name for name in plan.kept if name in read or not self.halved]

    def _take_saved(self, plan: UnitPlan, name: str) -> int:
        return take_saved(self.context, self.builder, self.chunk, plan, name, last=name not in self.later[plan.number])

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
        compiler.steps(plan, self._parts(plan), scope)
        self.shards.end(plan.number)
        self._hand_over(plan, scope)
        return scope.get("d0")

    def _hand_over(self, plan: UnitPlan, scope: Scope) -> None:
        """Give the weight half what it reads and forward did not keep."""
        for name in self.later[plan.number]:
            if name not in plan.kept:
                port, ref, buffers = f"half.{plan.number}.{name}", scope[name], self.builder.buffers
                if buffers[ref].pool == "stash":  # no longer gone when the block ends
                    buffers[ref] = replace(buffers[ref], pool="act")
                self.builder.give(port, ref)
                self.handed[plan.number, name] = Given(port, buffers[ref], received=ref == self.arrived)

    def _join_main(self, number: int) -> None:
        """ACC: a unit's fresh gradients (of the computing type) are widened one by one, each into a new tensor, and
        added into the main ones (`update_hp_grads` of DeepSpeed's `runtime/bf16_optimizer.py`, v0.6.5). They stay
        beside these until the next backward overwrites them, or what it adds up (norms, biases, the embedding's tables)
        starts from zero again. Unit 0's body also holds what clearing its tables' gradients costs: their backward
        scatters into zeros."""
        plan, parameters = self.context.plan, self.context.parameters
        params = [p for p in self.context.params_of(number) if p.name in parameters.grad_ref]
        if not params:
            return
        cleared = [len(p.local_shape) == 1 or number == 0 for p in params]
        body = around.accumulate([p.local_shape for p in params], plan.precision, plan.gradient_dtype, cleared)
        refs = tuple(rank_wide(of[p.name]) for of in (parameters.fresh_ref, parameters.grad_ref) for p in params)
        self.builder.emit("W", "ACC", number, "grads", "compute", refs, refs, body)

    def _release(self) -> None:
        """Slots in which the chunk's input and gradient arrived are free again; the kept output goes."""
        builder = self.builder
        if not self.first and self.plans[0].unit.source not in self.later[self.order[-1]]:
            source = self.scopes[self.order[-1]][self.plans[0].unit.source]
            builder.give("x_done", None, builder.done_with(source))
        if self.arrived is not None and not any(given.received for given in self.handed.values()):
            builder.give("d_done", None, builder.done_with(self.arrived))
        if self.sent is not None:
            builder.discard(self.sent, builder.last_of("compute"))
