"""Declares what the buffers of a unit's instructions hold: `program.declared.Values` from its tensors and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from program.declared import At, Value, Values
from program.lines import Move, Part, Tensor, Unit
from program.placement import check

WHOLE = ("AR", "AG")  # collectives that leave every rank the whole


def declared(unit: Unit) -> Unit:
    """The unit, each of its parts with its values. Gradients that owe a sum over `tp` are declared so."""
    sharded = any(tensor.at for tensor in unit.tensors.values())
    walk = _Walk(unit, check(unit, "tp") if sharded else {})
    forward, backward = (tuple(walk.parts(parts)) for parts in (unit.forward, unit.backward))
    return replace(unit, forward=forward, backward=backward)


class _Walk:
    """A unit's tensors as its parts leave them: where each is by now, and how often it was changed in place."""

    def __init__(self, unit: Unit, owed: Mapping[str, str]) -> None:
        self.tensors, self.owed = unit.tensors, owed
        self.now: dict[str, At] = {}
        self.changes: dict[str, int] = {}
        self.crossing = {"d2": "d.out", "d0": "d.in"}
        if unit.source != "tokens":
            self.crossing[unit.source] = "in"
        if unit.output in ("x0", "x2"):
            self.crossing[unit.output] = "out"

    def parts(self, parts: tuple[Part, ...]) -> Iterator[Part]:
        """The parts in order, with their values."""
        for part in parts:
            reads = tuple(self._value(name) for name in part.reads)
            self._pass(part)
            seal = "" if isinstance(part, Move) else part.body.seal
            yield replace(part, values=Values(reads, tuple(self._value(name) for name in part.writes), seal))

    def _pass(self, part: Part) -> None:
        if isinstance(part, Move):
            target = self.tensors[part.target]
            self.now[part.target] = () if part.kind in WHOLE else target.at
            return
        for name in set(part.writes) & set(part.reads):
            if ":" not in name:
                value = self._name(self.tensors[name])
                self.changes[value] = self.changes.get(value, 0) + 1

    def _name(self, tensor: Tensor) -> str:
        held = tensor.value or tensor.name
        return self.crossing.get(held, held)

    def _value(self, name: str) -> Value:
        if ":" in name:
            return Value(name, (("tp", "P+"),) if name in self.owed else self.tensors[name].at)
        value = self._name(self.tensors[name])
        changes = self.changes.get(value, 0)
        return Value(f"{value}'{changes}" if changes else value, self.now.get(name, self.tensors[name].at))
