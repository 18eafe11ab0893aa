"""The forward and the backward block of one chunk of a stage.

A forward block takes the chunk's input from a receive (or loads tokens), and hands over its output and everything
backward reads. A backward block takes those, runs recompute instructions (phase R) where the plan asks, and hands the
gradient of the chunk's input to a send. It has a second form for the last micro-batch, in which each gradient bucket is
reduced right after its last gradient. Where a schedule runs weight gradients apart it leaves them to `compiler.halves`.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.builder import BlockBuilder
from compiler.chunk import ChunkCompiler, Scope
from compiler.fresh import add_fresh
from compiler.groups import block_shards
from compiler.halves import Given, Handed, take_saved, weight_half
from compiler.held import Held
from compiler.recompute import UnitPlan
from compiler.reduced import Unreduced
from compiler.shards import BlockShards
from plan.implementations import engine
from program import Block, Phase
from program.lines import Part


def forward_block(held: Held, chunk: int) -> Block:
    """The forward of a chunk, for any micro-batch."""
    builder = BlockBuilder(f"F{chunk}")
    compiler = _compiler(held, builder, chunk, "F")
    builder.follow("previous")
    if not (held.last(chunk) or held.edges.kept):
        compiler.free_on_entry("sent", "send_fwd", held.edges.carried())
    plans = held.chunks[chunk]
    compiler.shards = shards = block_shards(held.shards, builder, "F", [plan.number for plan in plans])
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


def backward_block(
    held: Held, chunk: int, name: str, halved: bool, closes: str, unreduced: Unreduced
) -> tuple[Block, Handed]:
    """The backward of a chunk, or where it is `halved` its input half and what that hands to the weight half. `closes`:
    the halves of whose gradients this form makes the last."""
    made = _Backward(held, chunk, name, halved, closes, unreduced)
    return made.block(), made.handed


class _Backward:
    """One backward block in the making."""

    def __init__(self, held: Held, chunk: int, name: str, halved: bool, closes: str, unreduced: Unreduced) -> None:
        self.held, self.chunk, self.halved, self.closes = held, chunk, halved, closes
        self.first, self.last = held.first(chunk), held.last(chunk)
        self.plans = held.chunks[chunk]
        self.order = [plan.number for plan in reversed(self.plans)]
        self.builder = BlockBuilder(name)
        self.compiler = _compiler(held, self.builder, chunk, "B")
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
        if engine(self.held.plan).grad_accumulation == "separate_buffer":
            for number in self.order:
                held = self.held.parameters
                params = [p for p in self.held.params_of(number) if p.name in held.grad_ref]
                add_fresh(self.builder, self.held.plan, held, number, params)
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
            plan.number: {name: self._take_saved(plan, name) for name in self._saved(plan)} for plan in self.plans
        }
        self.sent = None if self.last or not held.edges.kept else held.edges.take_sent(compiler, self.order[0])
        self.arrived = None if self.last else held.edges.arrive(compiler, "B", self.order[0], held.arrival(True))
        last = bool(self.closes)
        compiler.shards = self.shards = block_shards(held.shards, self.builder, "B", self.order, last=last)

    def _parts(self, plan: UnitPlan) -> tuple[Part, ...]:
        """The unit's backward as far as this block runs it."""
        return tuple(part for part in plan.unit.backward if not (self.halved and part.phase == "W"))

    def _saved(self, plan: UnitPlan) -> list[str]:
        """What of the kept tensors this block reads."""
        read = {name for part in (*plan.repeated, *self._parts(plan)) for name in part.reads}
        return [name for name in plan.kept if name in read or not self.halved]

    def _take_saved(self, plan: UnitPlan, name: str) -> int:
        return take_saved(self.held, self.builder, self.chunk, plan, name, last=name not in self.later[plan.number])

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
