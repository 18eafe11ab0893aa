"""Compiles one pipeline stage's blocks: open, forward and backward of each chunk, transfers, close.

A backward block has a second form for the last micro-batch, in which each gradient bucket is reduced right after its
last gradient. `plan.compile.calls` places the blocks in the order of the schedule.
"""

from __future__ import annotations

from plan.compile.blocks import (
    ChunkCompiler,
    Rings,
    StageNames,
    UnitPlan,
    exchange_block,
    share_saved,
    transfer_block,
    unit_plan,
)
from plan.compile.builder import BlockBuilder
from plan.compile.edges import Edges
from plan.compile.fresh import add_fresh
from plan.compile.offload import copied_early, copy_gradient
from plan.compile.parameters import HEAD, TABLE, Parameters, lay_out, sharded_optimizer, unit_params
from plan.compile.shards import BlockShards, Shards
from plan.compile.step import COPIED, close_block, open_block, reduce_bucket
from plan.deepspeed import gathers_at_once, gradient_way, is_deepspeed, overlaps_gradients
from plan.model import Model
from plan.parallel import Plan
from plan.pieces import TensorSpec, embedding, head, layer
from plan.pieces.shapes import Extents
from plan.program import Block, Bucket, Buffer, Comm, CommOp, Phase, Role, Stream
from plan.schedules import Slot

Units = tuple[tuple[int, ...], ...]  # units of each chunk


class StageBlocks:
    """The blocks of one stage, made on first use; `index` finds them by name.

    `in_ports[block]` lists each in-port's name and, in a backward block, the out-port of its forward block that it
    takes (-1: bound by name); `out_ports[block]` finds out-ports by name.
    """

    def __init__(
        self, model: Model, plan: Plan, e: Extents, units: Units, slots: tuple[Slot, ...], stage: int, batched: bool
    ) -> None:
        self.model, self.plan, self.e = model, plan, e
        self.units, self.stage, self.batched = units, stage, batched
        self.blocking = batched or is_deepspeed(plan)  # transfers block the host
        self._last = {slot.chunk: i for i, slot in enumerate(slots) if slot.phase == "B"}
        self.rings = Rings()
        self.edges = Edges(e, plan, self.rings)
        self.blocks: list[Block] = []
        self.index: dict[str, int] = {}
        self.in_ports: list[tuple[tuple[str, int], ...]] = []
        self.out_ports: list[dict[str, int]] = []
        self.here = {u for chunk in units for u in chunk}
        self.chunks = [[self._unit_plan(u, i) for i, u in enumerate(chunk)] for chunk in units]
        self.parameters = self._parameters()
        self.shards = Shards(plan, self.parameters, self.rings, self.chunks)
        self.scalars = len(self.parameters.buffers)  # loss, then stats
        self.names = StageNames(
            self.parameters.weight_ref,
            self.parameters.fresh_ref,
            self.scalars,
            {p.name: p.bucket for p in self.parameters.params},
        )

    # --- what the stage holds -----------------------------------------------------------------------------------------

    def _unit_plan(self, number: int, position: int) -> UnitPlan:
        if number == 0:
            return unit_plan(embedding(self.e), 0, "none")
        if number == self.model.layers + 1:
            return unit_plan(head(self.e, TABLE if self._tied_here() else HEAD), number, "none")
        recompute = self.plan.recompute
        if recompute == "layers":
            recompute = "full" if position < self.plan.recompute_layers + (0 in self.units[0]) else "none"
        unit = layer(self.e, number, cut=recompute == "selective")
        made = unit_plan(unit, number, recompute, whole=self.e.megatron)
        shared = self.plan.partition_activations and recompute == "full"
        return share_saved(made, self.plan.tensor_parallel) if shared else made

    def _tied_here(self) -> bool:
        return self.model.tied_embeddings and 0 in self.here

    def _last_backwards(self) -> list[int]:
        """Chunks in the order in which they run their last backward."""
        return sorted(self._last, key=lambda c: self._last[c])

    def _parameters(self) -> Parameters:
        order = []
        tied = self._tied_here()
        for chunk in self._last_backwards():
            order += [unit_params(self.model, self.plan, number, tied) for number in reversed(self.units[chunk])]
        return lay_out(order, self.model, self.plan, first_stage=0 in self.here)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _block(self, name: str, block: Block, forward: str | None = None) -> int:
        """Add a block; `forward` names the block whose out-ports a backward block's in-ports are called after."""
        given = {} if forward is None else self.out_ports[self.index[forward]]
        saved = {name: k for name, k in given.items() if not name.startswith("shard.")}  # those follow host order
        self.blocks.append(block)
        self.in_ports.append(tuple((p.name, saved.get(p.name, -1)) for p in block.ports_in))
        self.out_ports.append({p.name: k for k, p in enumerate(block.ports_out)})
        self.index[name] = len(self.blocks) - 1
        return self.index[name]

    def first(self, chunk: int) -> bool:
        return self.stage == 0 and chunk == 0

    def last(self, chunk: int) -> bool:
        return self.stage == self.plan.pipeline_parallel - 1 and chunk == self.plan.virtual_pipeline - 1

    def _forward(self, chunk: int) -> Block:
        builder = BlockBuilder(f"F{chunk}")
        compiler = ChunkCompiler(builder, self.names, self.rings, self._gathers(builder, chunk, "F"), self.e.serial)
        builder.follow("previous")
        if not (self.last(chunk) or self.edges.kept):
            compiler.free_on_entry("sent", "send_fwd", self.edges.carried())
        plans = self.chunks[chunk]
        compiler.shards = shards = BlockShards(self.shards, builder, "F", [plan.number for plan in plans])
        if self.first(chunk):
            flow = compiler.load(plans[0].unit, 0, "tokens")
        else:
            flow = self.edges.arrive(compiler, "F", plans[0].number, self._arrival(False))
        for plan in plans:
            scope = {plan.unit.source: flow}
            if any("targets" in step.reads for step in plan.unit.forward):
                scope["targets"] = compiler.load(plan.unit, plan.number, "targets")
            shards.begin(plan.number)
            if plan.shared:
                compiler.share(plan, scope)
            compiler.steps(plan, plan.unit.forward, scope)
            shards.end(plan.number)
            for name in plan.kept:
                builder.give(f"{plan.number}.{name}", scope[name])
            flow = scope[plan.unit.output]
        if not self.last(chunk):
            self.edges.depart(compiler, "F", plans[-1].number, flow)
        shards.leave()
        builder.give("tail", None, builder.last_of("compute"))
        return builder.finish()

    def _gathers(self, builder: BlockBuilder, chunk: int, phase: Phase) -> dict[int, int]:
        """In-ports of the all-gathers of weights that a chunk's first forward waits for, by bucket; or its first
        backward, for what no forward of it has read (a head whose loss is computed in chunks)."""
        if not sharded_optimizer(self.plan) or gathers_at_once(self.plan):
            return {}
        forward = self._buckets_read(chunk, "F")
        used = forward if phase == "F" else [b for b in self._buckets_read(chunk, "B") if b not in forward]
        return {b: builder.take(f"weights.{b}", "dp", None) for b in used}

    def _buckets_read(self, chunk: int, phase: Phase) -> list[int]:
        """Buckets of the whole parameters that a chunk's forward (or backward) reads, in order."""
        units = [plan.unit for plan in self.chunks[chunk]]
        steps = [step for unit in units for step in (unit.forward if phase == "F" else unit.backward)]
        params = [n[2:] for step in steps for n in step.reads if n.startswith("w:")]
        return list(dict.fromkeys(self.names.bucket_of[p] for p in params if p in self.names.weights))

    def _backward(self, chunk: int, pending: dict[int, int] | None) -> Block:
        """`pending`: gradients still missing in each bucket, when this is the last micro-batch's form."""
        builder = BlockBuilder(f"B{chunk}" if pending is None else f"B{chunk}.last")
        compiler = ChunkCompiler(builder, self.names, self.rings, self._gathers(builder, chunk, "B"), self.e.serial)
        builder.follow("previous")
        if not self.first(chunk):
            compiler.free_on_entry("sent", "send_bwd", self.edges.carried())
        order = [plan.number for plan in reversed(self.chunks[chunk])]
        scopes: dict[int, dict[str, int]] = {}
        for plan in self.chunks[chunk]:
            scopes[plan.number] = {n: self._take_saved(builder, chunk, plan, n) for n in plan.kept}
        sent = None if self.last(chunk) or not self.edges.kept else self.edges.take_sent(compiler, order[0])
        gradient = None if self.last(chunk) else self.edges.arrive(compiler, "B", order[0], self._arrival(True))
        arrived = gradient
        if pending is not None:
            compiler.after_grad = lambda name: self._count_down(builder, pending, name)
        compiler.shards = shards = BlockShards(self.shards, builder, "B", order, last=pending is not None)
        for plan in reversed(self.chunks[chunk]):
            scope = scopes[plan.number]
            shards.begin(plan.number)
            if plan.shared:
                compiler.unshare(plan, scope)
            compiler.steps(plan, plan.repeated, scope, recompute=True)
            if "targets" not in scope and any("targets" in step.reads for step in plan.unit.backward):
                scope["targets"] = compiler.load(plan.unit, plan.number, "targets")
            if gradient is not None:
                scope["d2"] = gradient
            compiler.steps(plan, plan.unit.backward, scope)
            shards.end(plan.number)
            gradient = scope.get("d0")
        shards.leave()
        if gradient_way(self.plan) == "apart":
            for number in order:
                params = unit_params(self.model, self.plan, number, self._tied_here())
                add_fresh(builder, self.plan, self.parameters, number, params)
        if not self.first(chunk):
            self.edges.depart(compiler, "B", order[-1], gradient)
        if not self.edges.partitioned:
            if not self.first(chunk):
                source = scopes[order[-1]][self.chunks[chunk][0].unit.source]
                builder.give("x_done", None, builder.last_access(source))
            if arrived is not None:
                builder.give("d_done", None, builder.last_access(arrived))
            if sent is not None:
                builder.discard(sent, builder.last_of("compute"))
        builder.give("tail", None, builder.last_of("compute"))
        return builder.finish()

    def _take_saved(self, builder: BlockBuilder, chunk: int, plan: UnitPlan, name: str) -> int:
        spec = plan.unit.tensors[name]
        first = plan is self.chunks[chunk][0] and name == plan.unit.source and not self.first(chunk)
        received = first and not self.edges.partitioned  # else the slot's contents were joined into a buffer
        buffer = Buffer(spec.shape, spec.dtype, spec.pool, name)
        return builder.take(f"{plan.number}.{name}", "compute", buffer, consume=not received)

    def _count_down(self, builder: BlockBuilder, pending: dict[int, int], name: str) -> None:
        bucket = self.names.bucket_of[name]
        if self.parameters.buckets[bucket].gradients_sharded:
            return
        pending[bucket] -= 1
        if pending[bucket] == 0:
            self._complete(builder, self.parameters.buckets[bucket])

    def _complete(self, builder: BlockBuilder, bucket: Bucket) -> None:
        """A bucket's last gradient was just made: reduce it, and copy it to the host, beside what follows."""
        index = len(builder.instructions) - 1
        if self.plan.data_parallel > 1 and overlaps_gradients(self.plan):
            index = reduce_bucket(builder, self.plan, bucket, index)
            builder.give(f"bucket.{bucket.index}", None, index)
        if copied_early(self.plan, bucket):
            builder.give(f"{COPIED}{bucket.index}", None, copy_gradient(builder, bucket, (index,)))

    def _writers(self) -> dict[int, int]:
        """How many instructions of one micro-batch add to each bucket's gradients, counted by parameter."""
        counts: dict[int, int] = {}
        for plans in self.chunks:
            for plan in plans:
                for step in plan.unit.backward:
                    for name in dict.fromkeys(n for n in step.writes if n.startswith("g:")):
                        bucket = self.names.bucket_of[name[2:]]
                        counts[bucket] = counts.get(bucket, 0) + 1
        return counts

    def compile(self) -> None:
        """Make every block but transfers and `close`, which `plan.compile.calls` asks for as it places calls."""
        self._block("open", open_block(self.plan, self.parameters, self.scalars))
        for chunk in range(len(self.units)):
            self._block(f"F{chunk}", self._forward(chunk))
            if self.plan.microbatches > 1:
                self._block(f"B{chunk}", self._backward(chunk, None), f"F{chunk}")
        pending = self._writers()
        for chunk in self._last_backwards():
            self._block(f"B{chunk}.last", self._backward(chunk, pending), f"F{chunk}")

    # --- transfers and the end of the step ----------------------------------------------------------------------------

    def _arrival(self, backward: bool) -> Stream:
        """The stream on which an input arrives. Batched transfers share one stream for each neighbour."""
        if self.batched:
            return "send_fwd" if backward else "send_bwd"
        return "recv_bwd" if backward else "recv_fwd"

    def receive(self, backward: bool, chunk: int, slot: int) -> int:
        """The block that receives a chunk's input (or the gradient of its output) into a ring slot."""
        name = f"recv.{'bwd' if backward else 'fwd'}.{chunk}.{slot}"
        if name not in self.index:
            role: Role = "pp_next" if backward else "pp_prev"
            unit = self.units[chunk][-1 if backward else 0]
            phase: Phase = "B" if backward else "F"
            comm = self._transfer("recv", role, backward)
            stream = self._arrival(backward)
            spec = self._slot_buffer(name)
            self._block(name, transfer_block(name, "RECV", unit, phase, stream, comm, spec, self.blocking))
        return self.index[name]

    def send(self, backward: bool, chunk: int) -> int:
        """The block that sends a chunk's output (or the gradient of its input)."""
        name = f"send.{'bwd' if backward else 'fwd'}.{chunk}"
        if name not in self.index:
            role: Role = "pp_prev" if backward else "pp_next"
            unit = self.units[chunk][0 if backward else -1]
            phase: Phase = "B" if backward else "F"
            comm = self._transfer("send", role, backward)
            stream: Stream = "send_bwd" if backward else "send_fwd"
            self._block(
                name, transfer_block(name, "SEND", unit, phase, stream, comm, self.edges.carried(), self.blocking)
            )
        return self.index[name]

    def exchange(self, backward: bool, slot: int) -> int:
        """The block of a batched pair: sends out (forward: the output) and receives the opposite from the same
        neighbour.
        """
        name = f"exchange.{'bwd' if backward else 'fwd'}.{slot}"
        if name not in self.index:
            ring = f"recv.{'fwd' if backward else 'bwd'}.0.{slot}"
            role: Role = "pp_prev" if backward else "pp_next"
            phase: Phase = "B" if backward else "F"
            comm = self._transfer("exchange", role, backward)
            stream: Stream = "send_bwd" if backward else "send_fwd"
            unit = self.units[0][0 if backward else -1]
            block = exchange_block(name, unit, phase, stream, comm, self.edges.carried(), self._slot_buffer(ring))
            self._block(name, block)
        return self.index[name]

    def _slot_buffer(self, name: str) -> Buffer:
        edge = self.edges.carried()
        self.rings.claim(name, TensorSpec(edge.shape, edge.dtype, "comm"))
        return Buffer(edge.shape, edge.dtype, "comm", "edge", name)

    def _transfer(self, op: CommOp, role: Role, backward: bool) -> Comm:
        edge = self.edges.carried()
        channel = "pair" if self.batched else "bwd" if backward else "fwd"
        return Comm(op, role, edge.bytes, edge.dtype, channel)

    def close(self, reduced: list[str], sends: list[Stream]) -> int:
        """The block that ends the step."""
        has_head = self.model.layers + 1 in self.here
        block = close_block(self.plan, self.parameters, self.scalars, has_head, reduced, sends, self.edges.carried())
        return self._block("close", block)

    def buffers(self) -> tuple[Buffer, ...]:
        """Rank-wide buffers: flats and views, loss and stats, fixed slots."""
        scalars = (Buffer((1,), self.e.stat, "work", "loss"), Buffer((2,), self.e.stat, "work", "stats"))
        hosted = self.plan.offload.optimizer != "none"
        host = (Buffer((2,), self.e.stat, "host", "stats on the host"),) if hosted else ()
        return (*self.parameters.buffers, *scalars, *host, *self.rings.buffers())
