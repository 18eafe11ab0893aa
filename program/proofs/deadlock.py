"""Whether a step really cannot finish: the happens-before graph of the whole job, instruction by instruction.

An instruction starts after its predecessor on its stream, after what it waits for, and after the compute instruction
and the `host_sync` issued last before it (a host that compute blocks, as on CPU, is the strictest one there is).
Communications that meet are one node. The step can finish exactly when this graph has no circle. It has one node an
instruction, so it is built only when `program.proofs.order` has already found the host orders in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from program import StepProgram, expand
from program.proofs.error import Named, name


class Crossing(Protocol):
    """A communication that spans classes."""

    @property
    def call(self) -> int: ...
    @property
    def local(self) -> int: ...


def stuck(program: StepProgram, meetings: list[list[int]], crossings: Sequence[Sequence[Crossing]]) -> list[Named]:
    """The instructions of one circle, or nothing when the step can finish. `meetings[class][k]` numbers
    `crossings[class][k]`.
    """
    graph = _Graph(program)
    for class_ in range(len(program.classes)):
        graph.add(class_, {(e.call, e.local): m for e, m in zip(crossings[class_], meetings[class_], strict=True)})
    return graph.circle()


class _Graph:
    """Nodes are numbers; a meeting is one node of all its classes."""

    def __init__(self, program: StepProgram) -> None:
        self.program = program
        self.names: list[Named] = []
        self.sources: list[set[int]] = []
        self.meeting: dict[int, int] = {}

    def _node(self, named: Named) -> int:
        self.names.append(named)
        self.sources.append(set())
        return len(self.names) - 1

    def add(self, class_: int, met: dict[tuple[int, int], int]) -> None:
        """Every instruction of a class, and what it starts after."""
        stage = self.program.classes[class_]
        nodes: dict[int, int] = {}
        tails: dict[str, int] = {}
        host: int | None = None
        for placed in expand(stage):
            instruction = placed.instruction
            number = met.get((placed.call, placed.local))
            node = None if number is None else self.meeting.get(number)
            if node is None:
                node = self._node(name(stage, class_, placed.call, placed.local))
            if number is not None:
                self.meeting[number] = node
            nodes[placed.id] = node
            before = {nodes[w] for w in placed.waits if w in nodes}
            before |= {n for n in (tails.get(instruction.stream), host) if n is not None}
            self.sources[node] |= before - {node}
            tails[instruction.stream] = node
            if instruction.stream == "compute" or instruction.host_sync:
                host = node

    def circle(self) -> list[Named]:
        """One circle, if there is one."""
        left = self._unfinished()
        if not left:
            return []
        node = min(left)
        path: list[int] = []
        while node not in path:
            path.append(node)
            node = min(self.sources[node] & left)
        return [self.names[n] for n in path[path.index(node) :]]

    def _unfinished(self) -> set[int]:
        targets: dict[int, list[int]] = defaultdict(list)
        missing = [len(sources) for sources in self.sources]
        for node, sources in enumerate(self.sources):
            for source in sources:
                targets[source].append(node)
        ready = [node for node, count in enumerate(missing) if count == 0]
        finished = set(ready)
        while ready:
            for node in targets[ready.pop()]:
                missing[node] -= 1
                if missing[node] == 0:
                    ready.append(node)
                    finished.add(node)
        return set(range(len(self.sources))) - finished
