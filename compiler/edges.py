"""What crosses the boundary of two stages (the residual stream, or its gradient, whole or partitioned), and the blocks
of one transfer: a send, a receive, or a batched pair of both.

DeepSpeed's pipeline engine partitions both over the tensor-parallel ranks, which hold the same (`PartitionedTensor` of
`runtime/utils.py`, v0.6.5; `is_pipe_partitioned` of `runtime/pipe/engine.py`): each rank sends its stretch, and the
receivers gather it.

    PART   the rank's stretch, copied out
    AG     the stretches of all ranks, into a slot
    JOIN   what `full()` passes over besides: zeros, the own stretch, the gathered list copied out, a clone

The engine gathers three times a micro-batch: a forward's input, a backward's gradient, and once more the output that it
sent away (it stands at the root of autograd's graph, though nothing reads its values). Until then it keeps the stretch
that it sent. Without tensor parallelism it keeps the whole output.
"""

from __future__ import annotations

from compiler.block_builder import BlockBuilder
from compiler.chunk import ChunkCompiler
from compiler.slot_allocator import SlotAllocator
from compiler.units import UnitShape
from compiler.units import step as around
from compiler.units.builder import ROWS
from plan.implementations import engine
from plan.parallel import Plan
from program import Block, Buffer, Comm, Phase, Stream
from program.declared import At, Value, Values
from program.lines import Tensor

SLOT = "edge.gather"


class Edges:
    """The boundary's tensors. `partitioned`: transfers carry a tensor-parallel rank's stretch; `kept`: a forward's
    output stays until its backward."""

    def __init__(self, e: UnitShape, plan: Plan, allocator: SlotAllocator) -> None:
        self.allocator, self.ranks, self.dtype = allocator, e.tp, e.dtype
        self.shape = (e.local_tokens, e.hidden)
        self.kept = engine(plan).keeps_output
        # A stretch is whole rows here; where the rows do not divide, everything is sent.
        self.partitioned = self.kept and e.tp > 1 and not e.sequence_parallel and e.local_tokens % e.tp == 0
        self.at = ROWS if self.partitioned or (e.tp > 1 and e.sequence_parallel) else ()  # of what a transfer carries

    def carried(self) -> Buffer:
        """What a transfer carries."""
        rows, width = self.shape
        return Buffer((rows // self.ranks if self.partitioned else rows, width), self.dtype, "act", "edge")

    def arrive(self, compiler: ChunkCompiler, phase: Phase, unit: int, stream: Stream) -> int:
        """What a receive on `stream` brought: `x` forward, `d` backward. Once joined, its slot is free (out-ports
        `x_done`, `d_done`)."""
        builder, name = compiler.builder, "d" if phase == "B" else "x"
        part = builder.take(name, stream, self.carried())
        if not self.partitioned:
            return part
        whole = self.join(compiler, phase, unit, f"edge.{name}", part)
        builder.give(f"{name}_done", None, builder.last_of("compute"))
        return whole

    def depart(self, compiler: ChunkCompiler, phase: Phase, unit: int, whole: int | None) -> None:
        """Hand over what is to be sent, as out-port `out`."""
        if self.partitioned and whole is not None:
            whole = self.part(compiler, phase, unit, "edge.d" if phase == "B" else "edge.y", whole)
        compiler.builder.give("out", whole)

    def take_sent(self, compiler: ChunkCompiler, unit: int) -> int:
        """The forward's output, kept until its backward; what was partitioned is gathered again."""
        sent = compiler.builder.take("out", "compute", self.carried(), consume=self.partitioned)
        if self.partitioned:
            self.join(compiler, "B", unit, "edge.y", sent)
        return sent

    def part(self, compiler: ChunkCompiler, phase: Phase, unit: int, piece: str, whole: int) -> int:
        """The rank's stretch of a tensor."""
        part = compiler.builder.buffer(self.carried())
        body = around.part(self.shape, self.ranks, self.dtype)
        name = "d.in" if piece == "edge.d" else "out"
        values = Values((Value(name),), (Value(name, self.at),))
        compiler.compute(phase, "PART", unit, piece, (whole,), (part,), body, values=values)
        return part

    def join(self, compiler: ChunkCompiler, phase: Phase, unit: int, piece: str, part: int) -> int:
        """The tensor from all ranks' stretches."""
        builder, spec = compiler.builder, Tensor(piece, self.shape, self.dtype, "gather")
        slot = builder.buffer(Buffer(self.shape, self.dtype, "gather", piece, self.allocator.claim(SLOT, spec)))
        comm = Comm("all_gather", "tp", spec.bytes, self.dtype, "tp")
        joined = Value({"edge.x": "in", "edge.d": "d.out"}.get(piece, "out"))
        values = Values((Value(joined.name, self.at),), (joined,))
        builder.emit(phase, "AG", unit, piece, "tp", (part,), (slot,), comm=comm, priority=2, values=values)
        whole = builder.buffer(Buffer(self.shape, self.dtype, "act", piece))
        body = around.join(self.shape, self.ranks, self.dtype)
        values = Values((joined,), (joined,))
        compiler.compute(phase, "JOIN", unit, piece, (slot,), (whole,), body, values=values)
        return whole


def _leaves(phase: str, at: At) -> Value:
    """What a stage sends on: its output, or the gradient of its input."""
    return Value("out" if phase == "F" else "d.in", at)


def _arrives(phase: str, at: At) -> Value:
    """What a stage receives: its input, or the gradient of its output."""
    return Value("in" if phase == "F" else "d.out", at)


def transfer_block(
    name: str, kind: str, unit: int, phase: Phase, stream: Stream, comm: Comm, spec: Buffer, at: At,
    host_sync: bool = False,
) -> Block:  # fmt: skip
    """A block of one send or receive. A receive's in-port is the last reader of its slot; a send's is what it sends."""
    builder, piece = BlockBuilder(name), "x" if phase == "F" else "d"
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    if kind == "RECV":
        after = (-1 - builder.take("free", "compute", None),)
        buffer = builder.buffer(spec)
        writes = (buffer,)
    else:
        buffer = builder.take("payload", "compute", spec)
        reads = (buffer,)
    values = Values((), (_arrives(phase, at),)) if kind == "RECV" else Values((_leaves(phase, at),), ())
    builder.emit(
        phase, kind, unit, piece, stream, reads, writes, comm=comm, after=after, priority=1, host_sync=host_sync,
        values=values,
    )  # fmt: skip
    builder.give("received" if kind == "RECV" else "sent", buffer, 0)
    return builder.finish()


def exchange_block(
    name: str, unit: int, phase: Phase, stream: Stream, comm: Comm, payload: Buffer, slot: Buffer, at: At
) -> Block:
    """A block of one batched pair: sends the payload, receives into the slot, and blocks the host until both are
    done.
    """
    builder = BlockBuilder(name)
    free = builder.take("free", "compute", None)
    sent = builder.take("payload", "compute", payload)
    received = builder.buffer(slot)
    piece, back = ("x.d", "B") if phase == "F" else ("d.x", "F")
    values = Values((_leaves(phase, at),), (_arrives(back, at),))
    builder.emit(
        phase, "XCHG", unit, piece, stream, (sent,), (received,),
        comm=comm, after=(-1 - free,), priority=1, host_sync=True, values=values,
    )  # fmt: skip
    builder.give("sent", sent, 0)
    builder.give("received", received, 0)
    return builder.finish()
