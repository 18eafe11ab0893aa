"""Compiles one pipeline stage: its blocks, and the calls that place them in the order of the schedule.

Calls of a stage, in host order: `open` (zero gradients; ZeRO's weight all-gathers), then for every slot of the schedule its
receives, the forward or backward block and its send, then `close` (last reductions, norm, optimizer, loss). A backward block has
a second form for the last micro-batch, in which each gradient bucket is reduced right after its last gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from plan.builder import BlockBuilder
from plan.compile_blocks import ChunkCompiler, Rings, StageNames, UnitPlan, transfer_block, unit_plan
from plan.compile_step import Ports, close_block, open_block, reduce_bucket
from plan.model import Model
from plan.parallel import Plan
from plan.parameters import HEAD, TABLE, Parameters, lay_out, sharded_optimizer, unit_params
from plan.pieces import TensorSpec, embedding, head, layer
from plan.program import Block, Buffer, Call, Comm, Phase, RankProgram, Role, Stream
from plan.schedules import Placement, Slot, Transfer
from plan.shapes import Extents

_UNBOUND = (-1, -1)

Units = tuple[tuple[int, ...], ...]  # units of each chunk


@dataclass(slots=True)
class _Ring:
    """Fixed receive slots of one (direction, chunk): which are free, oldest first."""

    made: int
    free: list[tuple[int, tuple[int, int]]]  # (slot, (call, port) of the last reader)

    def claim(self) -> tuple[int, tuple[int, int]]:
        """A slot and what must have finished with it; two at least, so that a transfer can run beside its predecessor's use."""
        if self.free and self.made >= 2:
            return self.free.pop(0)
        self.made += 1
        return self.made - 1, _UNBOUND


class StageCompiler:
    """One use: `compile()` returns the stage's program."""

    def __init__(self, model: Model, plan: Plan, e: Extents, units: Units, placement: Placement, stage: int) -> None:
        self.model, self.plan, self.e = model, plan, e
        self.units, self.placement, self.stage = units, placement, stage
        self.rings = Rings()
        self.blocks: list[Block] = []
        self.index: dict[str, int] = {}
        self._in_ports: list[tuple[tuple[str, int], ...]] = []  # of each block: name, and its out-port in the forward block
        self._out_ports: list[dict[str, int]] = []
        self.calls: list[Call] = []
        self.base = 0
        self.here = {u for chunk in units for u in chunk}
        self.chunks = [[self._unit_plan(u, i) for i, u in enumerate(chunk)] for chunk in units]
        self.parameters = self._parameters()
        self.scalars = len(self.parameters.buffers)  # loss, then stats
        self.names = StageNames(
            self.parameters.weight_ref,
            self.parameters.grad_ref,
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
        return unit_plan(layer(self.e, number, cut=recompute == "selective"), number, recompute)

    def _tied_here(self) -> bool:
        return self.model.tied_embeddings and 0 in self.here

    def _last_backwards(self) -> list[int]:
        """Chunks in the order in which they run their last backward."""
        last = {slot.chunk: i for i, slot in enumerate(self.placement.slots) if slot.phase == "B"}
        return sorted(last, key=lambda c: last[c])

    def _parameters(self) -> Parameters:
        order = []
        tied = self._tied_here()
        for chunk in self._last_backwards():
            for number in reversed(self.units[chunk]):
                order += unit_params(self.model, self.plan, number, tied)
        return lay_out(order, self.model, self.plan, first_stage=0 in self.here)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _block(self, name: str, block: Block, forward: str | None = None) -> int:
        """Add a block; `forward` names the block whose out-ports a backward block's in-ports are called after."""
        saved = {} if forward is None else self._out_ports[self.index[forward]]
        self.blocks.append(block)
        self._in_ports.append(tuple((p.name, saved.get(p.name, -1)) for p in block.ports_in))
        self._out_ports.append({p.name: k for k, p in enumerate(block.ports_out)})
        self.index[name] = len(self.blocks) - 1
        return self.index[name]

    def _edge(self) -> Buffer:
        """What crosses a chunk's boundary: the residual stream, or its gradient."""
        return Buffer((self.e.local_tokens, self.e.hidden), self.e.dtype, "act", "edge")

    def _first(self, chunk: int) -> bool:
        return self.stage == 0 and chunk == 0

    def _last(self, chunk: int) -> bool:
        return self.stage == self.plan.pipeline_parallel - 1 and chunk == self.plan.virtual_pipeline - 1

    def _forward(self, chunk: int) -> Block:
        builder = BlockBuilder(f"F{chunk}")
        used = dict.fromkeys(self.names.bucket_of[p] for p in self._weights(chunk))
        waits = {b: builder.take(f"weights.{b}", "dp", None) for b in used} if sharded_optimizer(self.plan) else {}
        compiler = ChunkCompiler(builder, self.names, self.rings, waits)
        if not self._last(chunk):
            compiler.free_on_entry("sent", "send_fwd", self._edge())
        plans = self.chunks[chunk]
        if self._first(chunk):
            flow = compiler.load(plans[0].unit, 0, "tokens")
        else:
            flow = builder.take("x", "recv_fwd", self._edge())
        for plan in plans:
            scope = {plan.unit.source: flow}
            if plan.number == self.model.layers + 1:
                scope["targets"] = compiler.load(plan.unit, plan.number, "targets")
            compiler.steps(plan, plan.unit.forward, scope)
            for name in plan.kept:
                builder.give(f"{plan.number}.{name}", scope[name])
            flow = scope[plan.unit.output]
        if not self._last(chunk):
            builder.give("out", flow)
        return builder.finish()

    def _weights(self, chunk: int) -> list[str]:
        """Parameters a chunk's forward reads, in order."""
        steps = (step for plan in self.chunks[chunk] for step in plan.unit.forward)
        return [n[2:] for step in steps for n in step.reads if n.startswith("w:")]

    def _backward(self, chunk: int, pending: dict[int, int] | None) -> Block:
        """`pending`: gradients still missing in each bucket, when this is the last micro-batch's form."""
        builder = BlockBuilder(f"B{chunk}" if pending is None else f"B{chunk}.last")
        compiler = ChunkCompiler(builder, self.names, self.rings)
        if not self._first(chunk):
            compiler.free_on_entry("sent", "send_bwd", self._edge())
        scopes: dict[int, dict[str, int]] = {}
        for plan in self.chunks[chunk]:
            scopes[plan.number] = {n: self._take_saved(builder, chunk, plan, n) for n in plan.kept}
        gradient = None if self._last(chunk) else builder.take("d", "recv_bwd", self._edge())
        arrived = gradient
        if pending is not None:
            compiler.after_grad = lambda name: self._count_down(builder, pending, name)
        for plan in reversed(self.chunks[chunk]):
            scope = scopes[plan.number]
            compiler.steps(plan, plan.repeated, scope, recompute=True)
            if gradient is not None:
                scope["d2"] = gradient
            compiler.steps(plan, plan.unit.backward, scope)
            gradient = scope.get("d0")
        if not self._first(chunk):
            builder.give("out", gradient)
            source = scopes[self.chunks[chunk][0].number][self.chunks[chunk][0].unit.source]
            builder.give("x_done", None, builder.last_access(source))
        if arrived is not None:
            builder.give("d_done", None, builder.last_access(arrived))
        if pending is not None:
            builder.give("tail", None, builder.last_of("compute"))
        return builder.finish()

    def _take_saved(self, builder: BlockBuilder, chunk: int, plan: UnitPlan, name: str) -> int:
        spec = plan.unit.tensors[name]
        received = plan is self.chunks[chunk][0] and name == plan.unit.source and not self._first(chunk)
        buffer = Buffer(spec.shape, spec.dtype, spec.pool, name)
        return builder.take(f"{plan.number}.{name}", "compute", buffer, consume=not received)

    def _count_down(self, builder: BlockBuilder, pending: dict[int, int], name: str) -> None:
        bucket = self.names.bucket_of[name]
        pending[bucket] -= 1
        if pending[bucket] == 0 and self.plan.data_parallel > 1 and self.plan.communication.overlap:
            index = len(builder.instructions) - 1
            builder.give(f"bucket.{bucket}", None, reduce_bucket(builder, self.plan, self.parameters.buckets[bucket], index))

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

    def _compile_blocks(self) -> None:
        self._block("open", open_block(self.plan, self.parameters, self.scalars))
        for chunk in range(len(self.units)):
            self._block(f"F{chunk}", self._forward(chunk))
            if self.plan.microbatches > 1:
                self._block(f"B{chunk}", self._backward(chunk, None), f"F{chunk}")
        pending = self._writers()
        for chunk in self._last_backwards():
            self._block(f"B{chunk}.last", self._backward(chunk, pending), f"F{chunk}")

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, block: int, micro: int, bound: Ports, forward: int = -1) -> int:
        """Place a block. `bound` says what stands behind its in-ports; those named like a port of `forward` are that call's."""
        bindings = tuple(
            (forward, k) if k >= 0 else bound.get(name, _UNBOUND) for name, k in self._in_ports[block]
        )
        self.calls.append(Call(block, micro, self.base, bindings))
        self.base += len(self.blocks[block].instructions)
        return len(self.calls) - 1

    def _port(self, call: int, name: str) -> tuple[int, int]:
        """An out-port of a call, ready to be bound."""
        return call, self._out_ports[self.calls[call].block][name]

    def _ports(self, call: int, prefix: str) -> Ports:
        """The out-ports of a call whose names start so."""
        outs = self._out_ports[self.calls[call].block]
        return {name: (call, k) for name, k in outs.items() if name.startswith(prefix)}

    def compile(self) -> RankProgram:
        """Blocks, calls in host order and rank-wide buffers of the stage."""
        self._compile_blocks()
        opened = self._call(self.index["open"], -1, {})
        weights = self._ports(opened, "weights.")
        sent: dict[tuple[str, int], list[int]] = {}
        rings: dict[tuple[bool, int], _Ring] = {}
        received: dict[tuple[Slot, str], int] = {}
        done: dict[Slot, int] = {}
        slot_of: dict[tuple[Slot, str], int] = {}
        reduced: Ports = {}
        fresh = set(range(len(self.units)))  # chunks whose weights have not been waited for
        last = {s.chunk: s for s in self.placement.slots if s.phase == "B"}
        for position, slot in enumerate(self.placement.slots):
            for transfer in self.placement.receives[position]:
                self._receive(transfer, rings, received, slot_of)
            ports: Ports = {}
            self._bind_edges(slot, ports, received, sent)
            if slot.phase == "F":
                if slot.chunk in fresh:
                    fresh.discard(slot.chunk)
                    ports |= weights
                block = f"F{slot.chunk}"
            else:
                block = f"B{slot.chunk}.last" if slot == last[slot.chunk] else f"B{slot.chunk}"
            forward = done[Slot("F", slot.micro, slot.chunk)] if slot.phase == "B" else -1
            call = done[slot] = self._call(self.index[block], slot.micro, ports, forward)
            if slot.phase == "B":
                self._release(slot, call, rings, slot_of)
            if slot == last[slot.chunk]:
                reduced |= self._ports(call, "bucket.")
            for transfer in self.placement.sends[position]:
                self._send(transfer, call, sent)
        self._close(reduced | {"tail": self._port(done[self.placement.slots[-1]], "tail")}, sent)
        buffers = (*self.parameters.buffers, *self._scalar_buffers(), *self.rings.buffers())
        return RankProgram(
            self.stage, tuple(self.blocks), tuple(self.calls), buffers, self.parameters.params, self.parameters.buckets
        )

    def _bind_edges(
        self, slot: Slot, ports: Ports, received: dict[tuple[Slot, str], int], sent: dict[tuple[str, int], list[int]]
    ) -> None:
        forward = slot.phase == "F"
        arrived = received.get((slot, slot.phase))
        if arrived is not None:
            ports["x" if forward else "d"] = (arrived, 0)
        queue = sent.setdefault((slot.phase, slot.chunk), [])
        if len(queue) >= 2:
            ports["sent"] = (queue.pop(0), 0)

    def _receive(
        self,
        transfer: Transfer,
        rings: dict[tuple[bool, int], _Ring],
        received: dict[tuple[Slot, str], int],
        slot_of: dict[tuple[Slot, str], int],
    ) -> None:
        way, chunk = transfer.backward, transfer.target_chunk
        number, free = rings.setdefault((way, chunk), _Ring(0, [])).claim()
        name = f"recv.{'bwd' if way else 'fwd'}.{chunk}.{number}"
        if name not in self.index:
            self._block(name, self._receive_block(name, way, chunk))
        call = self._call(self.index[name], transfer.micro, {"free": free})
        phase = "B" if way else "F"
        consumer = Slot("B" if way else "F", transfer.micro, chunk)
        received[consumer, phase] = call
        slot_of[consumer, phase] = number

    def _receive_block(self, name: str, way: bool, chunk: int) -> Block:
        edge = self._edge()
        spec = Buffer(edge.shape, edge.dtype, "comm", "edge", name)
        self.rings.claim(name, TensorSpec(edge.shape, edge.dtype, "comm"))
        unit = self.units[chunk][-1 if way else 0]
        role: Role = "pp_next" if way else "pp_prev"
        comm = Comm("recv", role, edge.bytes, edge.dtype, "bwd" if way else "fwd")
        phase: Phase = "B" if way else "F"
        return transfer_block(name, "RECV", unit, phase, "recv_bwd" if way else "recv_fwd", comm, spec)

    def _send(self, transfer: Transfer, producer: int, sent: dict[tuple[str, int], list[int]]) -> None:
        way, chunk = transfer.backward, transfer.chunk
        name = f"send.{'bwd' if way else 'fwd'}.{chunk}"
        if name not in self.index:
            edge = self._edge()
            comm = Comm("send", "pp_prev" if way else "pp_next", edge.bytes, edge.dtype, "bwd" if way else "fwd")
            unit = self.units[chunk][0 if way else -1]
            stream: Stream = "send_bwd" if way else "send_fwd"
            self._block(name, transfer_block(name, "SEND", unit, "B" if way else "F", stream, comm, edge))
        call = self._call(self.index[name], transfer.micro, {"payload": self._port(producer, "out")})
        sent.setdefault(("B" if way else "F", chunk), []).append(call)

    def _release(
        self, slot: Slot, call: int, rings: dict[tuple[bool, int], _Ring], slot_of: dict[tuple[Slot, str], int]
    ) -> None:
        """A backward has finished with the slots its input and its gradient arrived in."""
        for way, phase, token in ((False, "F", "x_done"), (True, "B", "d_done")):
            number = slot_of.get((Slot("B" if way else "F", slot.micro, slot.chunk), phase))
            if number is not None:
                rings[way, slot.chunk].free.append((number, self._port(call, token)))

    def _close(self, bound: Ports, sent: dict[tuple[str, int], list[int]]) -> None:
        left = [(phase, call) for (phase, _), queue in sorted(sent.items()) for call in queue]
        streams: list[Stream] = ["send_fwd" if phase == "F" else "send_bwd" for phase, _ in left]
        reduced = [name for name in bound if name != "tail"]
        has_head = self.model.layers + 1 in self.here
        block = close_block(self.plan, self.parameters, self.scalars, has_head, reduced, streams, self._edge())
        bound = bound | {f"sent.{i}": (call, 0) for i, (_, call) in enumerate(left)}
        self._call(self._block("close", block), -1, bound)

    def _scalar_buffers(self) -> tuple[Buffer, Buffer]:
        return (Buffer((1,), self.e.stat, "work", "loss"), Buffer((2,), self.e.stat, "work", "stats"))
