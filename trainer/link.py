"""A body of the program becomes one Python function: its lines in order, calls of the operators by name.

    linked = link(body, functions, coordinates)
    print(linked.source)
    results = linked.function(*tensors, *bound)

The source is straight-line Python, so that an instruction costs the host no more than the calls it is made of, and what
runs can be read. Views are constant `as_strided`; a name is set to None after its last use, so that what a line made
lives no longer than the program says. Numbers that follow from where this rank stands are literals. What differs
between instructions of one body (draws, numbers of the step, the host's own work) is `bound`: arguments after
the tensors, in the order of `linked.bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from program.lines import Body, Draw, Inside, Offset, Step, Stretches

Function = Callable[..., Any]
HOST = frozenset(("load", "read"))
"""Operators that are the host's own work: what they do comes bound, one function for each instruction."""


@dataclass(frozen=True, slots=True)
class Host:
    """An operator of the host with what it is given."""

    op: str
    given: tuple[tuple[str, object], ...]


Bound = Draw | Step | Host


@dataclass(frozen=True, slots=True)
class Linked:
    """A function over tensors and what is bound to it."""

    function: Function
    bound: tuple[Bound, ...]
    source: str


class Standing:
    """Where a rank stands along every axis: turns what follows from it into numbers."""

    def __init__(self, place: Mapping[str, int], ranks: Mapping[str, int]) -> None:
        self.place, self.ranks = place, ranks

    def first(self, offset: int | Offset) -> int:
        """Elements before this rank's shard."""
        if isinstance(offset, int):
            return offset
        index = 0
        for axis in offset.axes:
            index = index * self.ranks[axis] + self.place[axis]
        return index * offset.extent

    def number(self, value: object) -> object:
        """A given value as this rank has it."""
        if isinstance(value, Offset):
            return self.first(value)
        if isinstance(value, Inside):
            return min(max(value.limit - self.first(value.begin), 0), value.extent)
        if isinstance(value, Stretches):
            return stretches(value.ranges, self.first(value.begin), value.extent)
        return value


def stretches(ranges: tuple[tuple[int, int], ...], begin: int, extent: int) -> tuple[tuple[int, int], ...]:
    """Ranges cut to `extent` elements from `begin` on, counted from there, neighbours merged."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        first, last = max(first - begin, 0), min(last - begin, extent)
        if first >= last:
            continue
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)


def link(body: Body, functions: Mapping[str, Function], standing: Standing, name: str = "body") -> Linked:
    """The function of a body on this rank. Raises KeyError for an operator that nobody bound."""
    writer = _Writer(body, standing)
    source = writer.source(name)
    names = {op: functions[op] for op, *_ in body.lines if op not in HOST}
    exec(compile(source, f"<{name}>", "exec"), names)
    return Linked(names[name], tuple(writer.bound), source)


class _Writer:
    """Writes the source of one body."""

    def __init__(self, body: Body, standing: Standing) -> None:
        self.body, self.standing = body, standing
        self.bound: list[Bound] = []
        self.rows: list[str] = []
        self._views = dict(body.views)
        self._named: dict[int, str] = {i: f"t{i}" for i in range(body.arguments)}
        self._last = self._last_uses()

    def _last_uses(self) -> dict[int, int]:
        """The last line that uses a tensor, itself or through a view."""
        last: dict[int, int] = {}
        for index, (_, args, results, _) in enumerate(self.body.lines):
            for tensor in (*args, *results):
                while tensor >= 0:
                    last[tensor] = index
                    tensor = self._views[tensor][0] if tensor in self._views else -1
        return last

    def source(self, name: str) -> str:
        """The whole function."""
        for index, (op, args, results, given) in enumerate(self.body.lines):
            self._line(op, args, results, given)
            self._let_go(index)
        tensors = [f"t{i}" for i in range(self.body.arguments)]
        head = ", ".join((*tensors, *(f"b{i}" for i in range(len(self.bound)))))
        # Results that are given places (slots, flat tensors) were filled, and are not returned.
        made = [self._named[i] for i in self.body.results if i >= self.body.arguments]
        result = f"({', '.join(made)}{',' if len(made) == 1 else ''})"
        return "".join((f"def {name}({head}):\n", *(f"    {row}\n" for row in self.rows), f"    return {result}\n"))

    def _line(self, op: str, args: tuple[int, ...], results: tuple[int, ...], given: Any) -> None:
        words = [self._name(arg) for arg in args]
        while words and words[-1] == "None":
            words.pop()
        function = op
        if op in HOST:
            function, given = self._bind(Host(op, given)), ()
        words += [f"{key}={self._value(value)}" for key, value in given]
        self._named |= {i: f"t{i}" for i in results if i >= 0}
        left = ", ".join(self._named[i] if i >= 0 else "_" for i in results)
        if all(i < 0 for i in results):
            left = ""
        self.rows.append(f"{left} = {function}({', '.join(words)})" if left else f"{function}({', '.join(words)})")
        if left and -1 in results:
            self.rows.append("_ = None")

    def _name(self, tensor: int) -> str:
        if tensor < 0:
            return "None"
        if tensor not in self._named:
            self._named[tensor] = self._view(tensor)
        return self._named[tensor]

    def _view(self, tensor: int) -> str:
        base, dims, strides, offset = self._views[tensor]
        first: object = self.standing.first(offset)
        if base < self.body.arguments:  # it may itself lie somewhere in a flat tensor
            first = f"{self._name(base)}.storage_offset()" + (f" + {first}" if first else "")
        self.rows.append(f"t{tensor} = {self._name(base)}.as_strided({dims}, {strides}, {first})")
        return f"t{tensor}"

    def _bind(self, what: Bound) -> str:
        if what not in self.bound:
            self.bound.append(what)
        return f"b{self.bound.index(what)}"

    def _value(self, value: object) -> str:
        if isinstance(value, (Draw, Step)):
            return self._bind(value)
        return repr(self.standing.number(value))

    def _let_go(self, index: int) -> None:
        """What the line used last is let go, unless it is an argument or handed out."""
        kept = {*range(self.body.arguments), *self.body.results}
        last = index == len(self.body.lines) - 1
        gone = [i for i, line in self._last.items() if line == index and i in self._named and i not in kept]
        if gone and not last:
            self.rows.append(" = ".join([*(self._named[i] for i in sorted(gone)), "None"]))
