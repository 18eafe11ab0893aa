"""Which lines replace which: a unit is written once, and whoever runs it otherwise says so in rewrites.

    Rewrite(("softmax_forward",), apart)     every such line becomes the lines that `apart` returns
    Rewrite(("bmm", "alibi_add"), joined)    so do two lines in a row

What replaces lines leaves what they made: the same tensors hold the same values. `UnitBuilder` rewrites the lines of an
instruction before anything is derived from them, so what is priced, counted and executed follows the rewritten ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from program.lines import Apply, Dims, Tensor, Window

Lined = tuple[Apply, ...]


@dataclass(slots=True)
class Names:
    """The tensors of a unit while it is written, and those that its lines have made so far."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def like(self, name: str, of: str, dtype: str = "", dims: Dims = ()) -> str:
        """Declare a tensor placed as `of` is, of its extents and type unless others are given."""
        held = self.tensors[of]
        self.tensors[name] = Tensor(name, dims or held.dims, dtype or held.dtype, at=held.at)
        return name

    def same(self, name: str, as_: str) -> None:
        """`name` is another tensor's bytes from here on: a view of the whole of it (rows, width)."""
        held = self.tensors[as_]
        view = Window(as_, (held.dims[1], 1))
        self.tensors[name] = replace(self.tensors[name], pool=held.pool, value="", window=view)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Lines with the operators `ops`, one directly after another, become those that `into` returns."""

    ops: tuple[str, ...]
    into: Callable[[Lined, Names], Lined]


def rewritten(lines: Sequence[Apply], rewrites: Iterable[Rewrite], names: Names) -> Lined:
    """The lines as an implementation runs them. What a rewrite returned is not rewritten again."""
    found: list[Apply] = []
    position = 0
    while position < len(lines):
        taken: Lined = (lines[position],)
        made = taken
        for rewrite in rewrites:
            some = tuple(lines[position : position + len(rewrite.ops)])
            if tuple(line.op for line in some) == rewrite.ops:
                taken, made = some, rewrite.into(some, names)
                break
        found += made
        names.made.update(n for line in (*taken, *made) for n in line.results if n is not None)
        position += len(taken)
    return tuple(found)
