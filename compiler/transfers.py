"""Blocks of one transfer between stages: a send, a receive, or a batched pair of both."""

from __future__ import annotations

from compiler.block_builder import BlockBuilder
from program import Block, Buffer, Comm, Phase, Stream
from program.declared import At, Value, Values


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
