"""What an instruction does, bound once: a function without arguments over the rank's table of tensors.

A step repeats the same instructions on the same places of the table, so everything but the tensors is settled before
the first step: the linked function of the instruction's body, and which places it reads, fills and empties. What is
left is one look into the table, one call, and the results put back. On a device, whose allocator counts for itself,
that is all; on a CPU results pass through `Storage.put`, which counts bytes. Communications are bound in
`trainer.collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from kernels import registry
from program import Call, Instruction
from program.lines import Body
from trainer.context import RankContext
from trainer.link import Function, Linked, link
from trainer.storage import Storage

Action = Callable[[], None]


class Bodies:
    """Links every distinct body of a rank's program once, and binds instructions to what it became."""

    def __init__(self, context: RankContext, storage: Storage) -> None:
        self.context, self.storage = context, storage
        self._linked: dict[tuple[int, str], Linked] = {}
        self._distinct: dict[tuple[Body, str], Linked] = {}
        self._constants: dict[int, int] = {}
        for place, buffer in enumerate(storage.program.buffers):
            if buffer.make is not None:
                storage.tensor(place).copy_(context.table(buffer))

    def linked(self, body: Body, device_type: str) -> Linked:
        """The function of a body on a kind of device (what the host steps runs on the host)."""
        key = (id(body), device_type)
        if key not in self._linked:
            if (body, device_type) not in self._distinct:
                functions = vars(registry.bind(self.context.program.execution.kernels, device_type))
                self._distinct[body, device_type] = link(body, functions, self.context.standing)
            self._linked[key] = self._distinct[body, device_type]
        return self._linked[key]

    def action(
        self, call: Call, instruction: Instruction, reads: list[int], writes: list[int], frees: list[int]
    ) -> Action:
        """The instruction on its places. Places it fills stand after those it reads, then what its body is bound to."""
        body = instruction.lines
        assert body is not None, "a computation without lines"
        linked = self.linked(body, "cpu" if instruction.stream == "cpu" else self.context.device.type)
        results = [place for place in writes if place not in reads]
        if body.arguments > len(reads):
            reads, results = [*reads, *results], []
        bound = [self.context.bound(what, call.micro, instruction.unit) for what in linked.bound]
        return computation(self.storage, linked.function, [*reads, *map(self._constant, bound)], results, frees)

    def _constant(self, value: object) -> int:
        """The place in the table of something that is no tensor of the program."""
        if id(value) not in self._constants:
            self._constants[id(value)] = len(self.storage.table)
            self.storage.table.append(value)  # type: ignore[arg-type]
        return self._constants[id(value)]


def computation(
    storage: Storage, function: Function, reads: Sequence[int], results: Sequence[int], frees: Sequence[int]
) -> Action:
    """`function` on what is at `reads`; what it returns goes to `results`, and `frees` are emptied afterwards."""
    table, put, drop, arguments = storage.table, storage.put, storage.drop, _taken(reads)

    def counted() -> None:
        for place, tensor in zip(results, function(*arguments(table)), strict=True):
            put(place, tensor)
        for place in frees:
            drop(place)

    def compute() -> None:
        for place, tensor in zip(results, function(*arguments(table)), strict=True):
            table[place] = tensor
        for place in frees:
            table[place] = None

    return counted if storage.counts else compute


def _taken(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """What takes the values at `places` out of a table, as a sequence."""
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    few = slice(first, first + len(places))
    return lambda table: table[few]
