"""Writes a unit down: its tensors, the lines of its instructions, and the collectives between them.

    builder = UnitBuilder(shape)
    builder.act("u", shape.tokens, shape.up, at=COLUMNS)
    builder.forward("mlp.core", apply("gemm", "y2 w:up -", "u", variant="nt"), …)
    unit = builder.unit(source="x", output="x2", leaves=("d0",))

Names are local to a unit: plain ones are activations, `w:` a parameter, `g:` its gradient, `s:loss` the rank's running
loss, `c:` a constant table. `unit` finds what follows from the lines: what an instruction reads, which of its results
others want, what it updates in place, its kernel calls and its transient bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from compiler.units.declare import declared
from compiler.units.shape import UnitShape
from program.declared import At
from program.kinds import CommOp, Made, Phase, Pool, Reduce
from program.lines import (
    Apply,
    Dims,
    Lines,
    Move,
    Offset,
    Part,
    Tensor,
    Unit,
    Weight,
    Window,
    owner,
    touched,
)
from program.operators import body, updated
from program.rewriting import Names, rewritten

ROWS: At = (("tp", "S0"),)
COLUMNS: At = (("tp", "S1"),)
PARTIAL: At = (("tp", "P+"),)
MAXIMUM: At = (("tp", "Pmax"),)
WHOLE: At = ()
OPS: dict[str, CommOp] = {"AG": "all_gather", "RS": "reduce_scatter", "AR": "all_reduce"}


@dataclass(frozen=True, slots=True)
class _Draft:
    """An instruction before it is known which of its results others want."""

    phase: Phase
    kind: str
    piece: str
    lines: tuple[Apply, ...]


class UnitBuilder:
    """Collects the tensors and instructions of one unit while it is written down."""

    def __init__(self, shape: UnitShape) -> None:
        self.shape = shape
        self.names = Names()
        self.tensors = self.names.tensors
        self.weights: dict[str, Weight] = {}
        self._forward: list[_Draft | Move] = []
        self._backward: list[_Draft | Move] = []

    # --- tensors

    @property
    def stream(self) -> At:
        """Where the residual stream is."""
        return ROWS if self.shape.sequence_parallel else WHOLE

    def tensor(
        self, name: str, dims: Dims, dtype: str = "", *, at: At = WHOLE, pool: Pool = "act", make: Made | None = None
    ) -> str:
        """Declare a tensor, by default in the computing type."""
        at = at if self.shape.tp > 1 else WHOLE
        self.tensors[name] = Tensor(name, dims, dtype or self.shape.dtype, pool, at, make=make)
        return name

    def act(
        self,
        name: str,
        rows: int,
        columns: int,
        *,
        at: At = WHOLE,
        pool: Pool = "act",
        dtype: str = "",
        value: str = "",
    ) -> str:
        """Declare an activation (rows, columns); `value` names the tensor that it is made again."""
        self.tensor(name, (rows, columns), dtype, at=at, pool=pool)
        self.tensors[name] = replace(self.tensors[name], value=value)
        return name

    def rows(self, name: str) -> str:
        """Declare an activation shaped and placed as the residual stream."""
        return self.act(name, self.shape.local_tokens, self.shape.hidden, at=self.stream)

    def stat(self, name: str, *dims: int, at: At = WHOLE) -> str:
        """Declare a statistic (fp32, fp64 in fp64 runs)."""
        return self.tensor(name, dims, self.shape.stat, at=at)

    def weight(
        self, name: str, dims: Dims, at: At = WHOLE, init: str = "normal", segments: Dims = (), used: int | None = None
    ) -> str:
        """Declare a parameter and its gradient (`program.lines.Weight`); the name the lines use."""
        shard_dim = {ROWS: 0, COLUMNS: 1}.get(at)
        self.weights[name] = Weight(dims, shard_dim, init, segments, used)
        self.tensor(f"w:{name}", dims, at=at, pool="weight")
        self.tensor(f"g:{name}", dims, self.shape.made, at=at, pool="grad")
        return f"w:{name}"

    def window(
        self, name: str, of: str, dims: Dims, strides: Dims, offset: int | Offset = 0, at: At | None = None
    ) -> str:
        """Declare a view of a tensor."""
        base = self.tensors[of]
        placed = base.at if at is None else at if self.shape.tp > 1 else WHOLE
        self.tensors[name] = Tensor(name, dims, base.dtype, base.pool, placed, window=Window(of, strides, offset))
        return name

    def gathered(self, name: str, source: str, rows: int, at: At) -> str:
        """Declare a tensor that a collective writes into a fixed slot: the value of `source` in another placement."""
        held = self.tensors[source]
        value = held.value or source
        dims = (rows, held.dims[1])
        self.tensors[name] = Tensor(name, dims, held.dtype, "gather", at, value=value, gathered=True)
        return name

    # --- instructions

    def forward(self, piece: str, *lines: Apply) -> None:
        """A compute instruction of the forward, of these lines as the implementation runs them."""
        self._forward.append(_Draft("F", "F", piece, self._run(lines)))

    def backward(self, kind: str, piece: str, *lines: Apply) -> None:
        """A compute instruction of the backward: I input gradient, W weight gradient, B both."""
        self._backward.append(_Draft("W" if kind == "W" else "B", kind, piece, self._run(lines)))

    def _run(self, lines: tuple[Apply, ...]) -> tuple[Apply, ...]:
        return rewritten(lines, self.shape.rewrites, self.names)

    def move(self, phase: Phase, kind: str, piece: str, source: str, target: str, reduce: Reduce = "sum") -> None:
        """A collective from `source` to `target` (the same name: in place)."""
        held = self.tensors[target if kind == "AG" else source]
        summed: Reduce = "" if kind == "AG" else reduce
        step = Move(phase, kind, piece, source, target, OPS[kind], held.bytes, held.dtype, summed)
        (self._forward if phase == "F" else self._backward).append(step)

    # --- the unit

    def unit(self, source: str, output: str, leaves: Sequence[str] = ()) -> Unit:
        """The unit; `leaves` are names besides `output` that others read."""
        drafts = [*self._forward, *self._backward]
        wanted: dict[str, int] = {}
        for draft in drafts:
            for name in dict.fromkeys(self._needs(draft)):
                wanted[name] = wanted.get(name, 0) + 1
        for name in (output, *leaves):
            wanted[name] = wanted.get(name, 0) + 1
        done = [self._part(draft, wanted) for draft in drafts]
        count = len(self._forward)
        parts = tuple(done[:count]), tuple(done[count:])
        return declared(Unit(0, self.tensors, *parts, source, output, self.weights))

    def _needs(self, draft: _Draft | Move) -> Iterable[str]:
        return draft.reads if isinstance(draft, Move) else touched(draft.lines, self.tensors)[0]

    def _part(self, draft: _Draft | Move, wanted: dict[str, int]) -> Part:
        if isinstance(draft, Move):
            return draft
        reads, found = touched(draft.lines, self.tensors)
        results = tuple(name for name in found if name in wanted)
        changed = dict.fromkeys(owner(name, self.tensors) for line in draft.lines for name in updated(line))
        writes = (*results, *(name for name in changed if name in reads))
        made = body(draft.lines, self.tensors, reads, results)
        return Lines(draft.phase, draft.kind, draft.piece, draft.lines, reads, writes, made)


def saved_names(unit: Unit) -> tuple[str, ...]:
    """Activations that backward reads and forward made or was given, in order of making: what a unit keeps."""
    made = [unit.source, *(n for s in unit.forward for n in (*s.reads, *s.writes))]
    wanted = {n for s in unit.backward for n in s.reads if ":" not in n}
    return tuple(dict.fromkeys(n for n in made if ":" not in n and n in wanted and not unit.tensors[n].gathered))


def renamed(part: Part, base: str) -> Part:
    """The part with parameters called after `base` instead of `@`; its body is the same object."""
    if isinstance(part, Move) or not any("@" in name for name in part.reads):
        return part
    reads, writes = (tuple(n.replace("@", base) for n in names) for names in (part.reads, part.writes))
    return Lines(part.phase, part.kind, part.piece, part.lines, reads, writes, part.body, part.values)
