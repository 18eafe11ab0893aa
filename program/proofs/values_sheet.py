"""What is written down of a block (`program.proofs.values_block`) for whoever follows the calls of a step
(`program.proofs.values_calls`): what it asks of its in-ports, what it leaves, and what outlives it, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from program.declared import At, Identity


class HeldValue(NamedTuple):
    """What a buffer holds."""

    identity: Identity
    at: At

    def __str__(self) -> str:
        name, unit = self.identity
        where = " ".join(f"{state} over {axis}" for axis, state in self.at)
        return f"{name} of unit {unit}" + (f" ({where})" if where else "")


class Part(NamedTuple):
    """What one instruction adds to a parameter's gradient in a micro-batch. `owes`: a sum over `tp` is owed."""

    param: str
    unit: int
    piece: str
    kind: str
    owes: bool


class Event(NamedTuple):
    """Something that outlives the block. `what`: weights | whole | gradients | fresh | loss | shard | send | receive |
    step."""

    what: str
    local: int
    about: Any


class Misheld(Exception):
    """A buffer that holds something else than is asked: reason, and the local id of who asks."""

    def __init__(self, reason: str, local: int) -> None:
        super().__init__(reason, local)
        self.reason, self.local = reason, local


@dataclass(slots=True)
class Sheet:
    """A block's effect on values. `ports`: the in-port of a local buffer; `outs`: local buffers handed out, if any."""

    ports: dict[int, int]
    outs: tuple[int | None, ...]
    asked: list[tuple[int, HeldValue, int]] = field(default_factory=list)  # in-port, what it must hold, who asks
    held: dict[int, HeldValue] = field(
        default_factory=dict
    )  # local buffers of others, or for others, that were written
    events: list[Event] = field(default_factory=list)
