"""What a broken proof says: which proof, why, and the instructions it is about, by rank class, id and label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from program import STREAMS, RankProgram, label
from program.errors import WindtunnelError

Proof = Literal[
    "complete", "transfers", "collectives", "deadlock", "race", "rendezvous", "memory", "close", "form", "values"
]


@dataclass(frozen=True, slots=True)
class Named:
    """An instruction a proof speaks of: class and stage of its ranks, the call it stands in, global id and text
    form.
    """

    class_: int
    stage: int
    call: int
    id: int
    label: str

    def __str__(self) -> str:
        return f"class {self.class_} (stage {self.stage}) instruction {self.id} `{self.label}`"


class ProofError(WindtunnelError):
    """A step program that must not run. `proof` says which property fails, `instructions` whom it is about."""

    def __init__(self, proof: Proof, reason: str, instructions: Iterable[Named] = ()) -> None:
        self.proof: Proof = proof
        self.reason = reason
        self.instructions = tuple(instructions)
        super().__init__(proof, reason, self.instructions)

    def __str__(self) -> str:
        lines = [f"{self.proof} proof failed: {self.reason}", *(f"  {named}" for named in self.instructions)]
        return "\n".join(lines)


def name(program: RankProgram, class_: int, call: int, local: int) -> Named:
    """Instruction `local` of a call, named."""
    placed = program.calls[call]
    instruction = program.blocks[placed.block].instructions[local]
    text = label(instruction.phase, instruction.kind, placed.micro, instruction.unit, instruction.piece)
    return Named(class_, program.stage, call, placed.base + local, text)


def on_stream(program: RankProgram, stream: int, position: int) -> tuple[int, int]:
    """(call, local) of the `position`-th instruction (from 1) of a stream, counted in host order."""
    seen = 0
    for call_index, call in enumerate(program.calls):
        for local, instruction in enumerate(program.blocks[call.block].instructions):
            seen += STREAMS.index(instruction.stream) == stream
            if seen == position and STREAMS.index(instruction.stream) == stream:
                return call_index, local
    raise IndexError(f"stream {stream} has only {seen} instructions, not {position}")
