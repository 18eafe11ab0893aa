"""The weight half of a chunk's backward, where a schedule runs it apart from the input half.

It takes what forward kept, and from the input half the gradients that the products read. A gathered tensor lies in a
slot that the next layer overwrites, so it cannot be handed over: the weight half gathers it again (phase R) from the
shard. What lives from the input half to the weight half is so in buffers that the simulation counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.block_builder import BlockBuilder
from compiler.chunk import ChunkCompiler, Scope
from compiler.recompute import UnitPlan
from compiler.reduced import Unreduced
from compiler.stage_context import StageContext
from program import Block, Buffer
from program.lines import Move, Part, Unit


@dataclass(frozen=True, slots=True)
class Given:
    """What the input half hands over: its out-port, the buffer, and whether that is the slot of a receive."""

    port: str
    buffer: Buffer
    received: bool


Handed = dict[tuple[int, str], Given]  # by unit and tensor


def weight_half(unit: Unit) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """The instructions of a unit's weight half, with what is gathered again for it, and the tensors it is given."""
    gathers = {part.target: part for part in unit.backward if isinstance(part, Move) and part.kind == "AG"}
    parts: list[Part] = []
    wanted: dict[str, None] = {}
    made: set[str] = set()
    for part in (part for part in unit.backward if part.phase == "W"):
        for name in (name for name in part.reads if ":" not in name and name not in made):
            if unit.tensors[name].gathered:
                parts.append(replace(gathers[name], phase="R"))
                made.add(name)
                name = gathers[name].source
            wanted[name] = None
        parts.append(part)
        made.update(part.writes)
    return tuple(parts), tuple(wanted)


def take_saved(context: StageContext, builder: BlockBuilder, chunk: int, plan: UnitPlan, name: str, last: bool) -> int:
    """An in-port for a tensor that forward kept; its `last` reader frees it. A received one lies in a receive's slot;
    partitioned, it was joined into a buffer."""
    spec = plan.unit.tensors[name]
    first = plan is context.chunks[chunk][0] and name == plan.unit.source and not context.first(chunk)
    received = first and not context.edges.partitioned
    buffer = Buffer(spec.shape, spec.dtype, spec.pool, name)
    return builder.take(f"{plan.number}.{name}", "compute", buffer, consume=last and not received)


def weight_block(
    context: StageContext, chunk: int, name: str, handed: Handed, closes: str, unreduced: Unreduced
) -> Block:
    """The weight half of a chunk for a micro-batch whose input half ran before."""
    builder = BlockBuilder(name)
    compiler = ChunkCompiler(builder, context.names, context.allocator, serial=context.e.serial)
    builder.follow("previous")
    unreduced.watch(compiler, closes)
    plans = context.chunks[chunk]
    for plan in reversed(plans):
        parts, wanted = weight_half(plan.unit)
        scope: Scope = {}
        for tensor in wanted:
            if tensor in plan.kept:
                scope[tensor] = take_saved(context, builder, chunk, plan, tensor, last=True)
            else:
                given = handed[plan.number, tensor]
                scope[tensor] = builder.take(given.port, "compute", given.buffer, consume=not given.received)
        compiler.steps(plan, parts, scope)
        if plan is plans[0] and plan.unit.source in wanted and not context.first(chunk):
            builder.give("x_done", None, builder.done_with(scope[plan.unit.source]))
        for tensor in wanted:
            if (plan.number, tensor) in handed and handed[plan.number, tensor].received:
                builder.give("d_done", None, builder.done_with(scope[tensor]))
    builder.give("tail", None, builder.last_of("compute"))
    return builder.finish()
