"""The flat instruction list behind blocks and calls: every instruction of a step, waits and buffers resolved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from program.instruction import Instruction
from program.step_program import Call, RankProgram


@dataclass(frozen=True, slots=True)
class Placed:
    """An instruction in its call: what `expand` yields. `id` is global on the rank; `waits` are global ids; `seq`
    counts communications on (role, channel) in host order (-1: not a communication)."""

    id: int
    call: int
    local: int
    micro: int
    instruction: Instruction
    waits: tuple[int, ...]
    seq: int


def expand(program: RankProgram) -> Iterator[Placed]:
    """Every instruction of a rank's step in host issue order, with waits resolved to global ids."""
    counts: dict[tuple[str, str], int] = {}
    for call_index, call in enumerate(program.calls):
        for local, instruction in enumerate(program.blocks[call.block].instructions):
            seq = -1
            if instruction.comm is not None:
                key = (instruction.comm.role, instruction.comm.channel)
                seq = counts.get(key, 0)
                counts[key] = seq + 1
            waits = tuple(w for w in (resolve_wait(program, call, w) for w in instruction.waits) if w >= 0)
            micro = -1 if instruction.phase == "step" else call.micro
            yield Placed(call.base + local, call_index, local, micro, instruction, waits, seq)


def resolve_wait(program: RankProgram, call: Call, wait: int) -> int:
    """Global id behind a wait of `call`, or -1 when its port is unbound."""
    if wait >= 0:
        return call.base + wait
    bound, port = call.bindings[-1 - wait]
    if bound < 0:
        return -1
    source = program.calls[bound]
    return source.base + program.blocks[source.block].ports_out[port].instruction


def resolve_buffer(program: RankProgram, call_index: int, ref: int) -> tuple[int, int]:
    """(call, local buffer) that owns the storage behind `ref` in a call, followed through ports; (-1, i) if rank-wide.

    Raises KeyError when the port is unbound (a block must not touch a buffer that is not there).
    """
    while ref >= 0:
        call = program.calls[call_index]
        block = program.blocks[call.block]
        port = next((k for k, p in enumerate(block.ports_in) if p.buffer == ref), None)
        if port is None:
            return call_index, ref
        bound, out = call.bindings[port]
        if bound < 0:
            raise KeyError(f"{block.name}: in-port {block.ports_in[port].name} is unbound but its buffer is used")
        source = program.calls[bound]
        handed = program.blocks[source.block].ports_out[out].buffer
        if handed is None:
            raise KeyError(f"{block.name}: in-port {block.ports_in[port].name} is bound to a token without a buffer")
        call_index, ref = bound, handed
    return -1, -1 - ref
