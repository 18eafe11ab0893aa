"""The blocks of one pipeline stage: open, forward and backward of each chunk, transfers, close.

`compiler.call_placer` places them in the order of the schedule, and asks for transfers and `close` as it does.
"""

from __future__ import annotations

from compiler.edges import exchange_block, transfer_block
from compiler.fsdp_groups import ROOT_SUMS, root_sums
from compiler.halves import Handed, weight_block
from compiler.open_close import close_block, open_block
from compiler.passes import backward_block, forward_block
from compiler.reduced import Unreduced
from compiler.stage_context import StageContext
from plan.implementations import engine
from plan.pipeline import Slot
from program import Block, Buffer, Comm, CommOp, Phase, Role, Stream
from program.lines import Tensor


class StageBlocks:
    """The blocks of one stage, made on first use; `index` finds them by name.

    `in_ports[block]` lists each in-port's name and, in a backward block, the out-port of its forward block that it
    takes (-1: bound by name); `out_ports[block]` finds out-ports by name.
    """

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self._blocking = engine(context.plan).transfers != "separate"  # transfers block the host
        self.blocks: list[Block] = []
        self.index: dict[str, int] = {}
        self.in_ports: list[tuple[tuple[str, int], ...]] = []
        self.out_ports: list[dict[str, int]] = []
        self._handed: dict[int, Handed] = {}  # by chunk, what its input half hands to its weight half

    def compile(self) -> None:
        """Make every block but transfers and `close`."""
        context = self.context
        self._block("open", open_block(context.plan, context.parameters, context.scalars))
        closing = context.closing(context.slots)
        plain = {
            context.form(s, ""): s for s in context.slots if s not in closing and s.phase != "F" and context.phase(s)
        }
        unreduced = Unreduced(context)
        for chunk in range(len(context.units)):
            self._block(f"F{chunk}", forward_block(context, chunk))
            for name, slot in sorted(plain.items()):
                if slot.chunk == chunk:
                    self._backward(name, slot, "", unreduced)
        for slot, closes in closing.items():
            self._backward(context.form(slot, closes), slot, closes, unreduced)

    def _backward(self, name: str, slot: Slot, closes: str, unreduced: Unreduced) -> None:
        """The block of a backward slot. `closes`: the halves of whose gradients it makes the last."""
        context, chunk = self.context, slot.chunk
        phase = context.phase(slot)
        if phase == "W":
            block = weight_block(context, chunk, name, self._handed[chunk], closes, unreduced)
        else:
            block, handed = backward_block(context, chunk, name, phase == "I", closes, unreduced)
            if phase == "I":
                self._handed[chunk] = handed
        self._block(name, block, f"F{chunk}")

    def _block(self, name: str, block: Block, forward: str | None = None) -> int:
        """Add a block; `forward` names the block whose out-ports a backward block's in-ports are called after."""
        given = {} if forward is None else self.out_ports[self.index[forward]]
        saved = {name: k for name, k in given.items() if not name.startswith("shard.")}  # those follow host order
        self.blocks.append(block)
        self.in_ports.append(tuple((p.name, saved.get(p.name, -1)) for p in block.ports_in))
        self.out_ports.append({p.name: k for k, p in enumerate(block.ports_out)})
        self.index[name] = len(self.blocks) - 1
        return self.index[name]

    # --- transfers and the end of the step

    def receive(self, backward: bool, chunk: int, slot: int) -> int:
        """The block that receives a chunk's input (or the gradient of its output) into a ring slot."""
        name = f"recv.{'bwd' if backward else 'fwd'}.{chunk}.{slot}"
        if name not in self.index:
            role: Role = "pp_next" if backward else "pp_prev"
            unit = self.context.units[chunk][-1 if backward else 0]
            phase: Phase = "B" if backward else "F"
            comm = self._transfer("recv", role, backward)
            stream = self.context.arrival(backward)
            spec = self._slot_buffer(name)
            at = self.context.edges.at
            self._block(name, transfer_block(name, "RECV", unit, phase, stream, comm, spec, at, self._blocking))
        return self.index[name]

    def send(self, backward: bool, chunk: int) -> int:
        """The block that sends a chunk's output (or the gradient of its input)."""
        name = f"send.{'bwd' if backward else 'fwd'}.{chunk}"
        if name not in self.index:
            role: Role = "pp_prev" if backward else "pp_next"
            unit = self.context.units[chunk][0 if backward else -1]
            phase: Phase = "B" if backward else "F"
            comm = self._transfer("send", role, backward)
            stream: Stream = "send_bwd" if backward else "send_fwd"
            spec, at = self.context.edges.carried(), self.context.edges.at
            self._block(name, transfer_block(name, "SEND", unit, phase, stream, comm, spec, at, self._blocking))
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
            unit = self.context.units[0][0 if backward else -1]
            edges = self.context.edges
            block = exchange_block(name, unit, phase, stream, comm, edges.carried(), self._slot_buffer(ring), edges.at)
            self._block(name, block)
        return self.index[name]

    def _slot_buffer(self, name: str) -> Buffer:
        edge = self.context.edges.carried()
        self.context.allocator.claim(name, Tensor(name, edge.shape, edge.dtype, "comm"))
        return Buffer(edge.shape, edge.dtype, "comm", "edge", name)

    def _transfer(self, op: CommOp, role: Role, backward: bool) -> Comm:
        edge = self.context.edges.carried()
        channel = "pair" if self.context.batched else "bwd" if backward else "fwd"
        return Comm(op, role, edge.bytes, edge.dtype, channel)

    def close(self, reduced: list[str], sends: list[Stream]) -> int:
        """The block that ends the step."""
        context = self.context
        block = close_block(
            context.plan,
            context.parameters,
            context.scalars,
            context.has_head(),
            reduced,
            sends,
            context.edges.carried(),
            context.optimizer,
            (ROOT_SUMS, root_sums(context.shards)) if engine(context.plan).flat_copies else None,
        )
        return self._block("close", block)
