"""The rank class under the storage proof: its program and what was found out about it before, and the state of its
storage where the proof stands.
"""

from __future__ import annotations

from collections.abc import Iterable

from program import RankProgram
from program.proofs.blocks import Shape
from program.proofs.error import Named, Proof, ProofError, name, on_stream
from program.proofs.ports import Ports
from program.proofs.state import Point, State


class StageUnderProof:
    """`shapes[b]`, `shape_of[b]` and `slots[b]` are the shape, its number and the slots of `program.blocks[b]`; `state`
    is what calls before `call` left behind.
    """

    def __init__(
        self,
        program: RankProgram,
        class_: int,
        shapes: list[Shape],
        shape_of: list[int],
        slots: list[tuple[str, ...]],
        ports: Ports,
    ) -> None:
        self.program, self.class_, self.shapes, self.shape_of = program, class_, shapes, shape_of
        self.slots, self.ports = slots, ports
        self.shape_by_number = dict(zip(shape_of, shapes, strict=True))
        self.state = State()
        self.call = 0

    def name(self, local: int, call: int | None = None) -> Named:
        """An instruction of a call (default: the current one)."""
        return name(self.program, self.class_, self.call if call is None else call, local)

    def at(self, point: Point) -> Named:
        """The instruction at a position of a stream."""
        call, local = on_stream(self.program, *point)
        return self.name(local, call)

    def error(self, proof: Proof, reason: str, named: Iterable[Named]) -> ProofError:
        """A ProofError of this class."""
        return ProofError(proof, reason, named)
