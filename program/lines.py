"""What an instruction computes: lines of operators over named tensors, declared once for price and for execution.

A unit of the model writes `Apply` lines over `Tensor` declarations; `body_of` turns the lines of one instruction into a
positional `Body`, which the program holds, the simulator prices (`calls`) and the trainer executes (`lines`). Reads,
results and transients of an instruction follow from its lines; nothing else says what it does.

Numbers that differ between ranks stand in a line as what they follow from: where a rank's shard begins (`Offset`), how
much of it lies below a limit (`Inside`), which stretches of it something applies to (`Stretches`). Numbers that differ
between steps are slots the host fills before a step (`Step`), and the key of a random number (`Draw`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from program.declared import At, Values
from program.kinds import DTYPE_BYTES, CommOp, KernelCall, Made, Phase, Pool, Reduce, numel

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offset:
    """Where this rank's shard begins, in elements: its place along `axes`, outer to inner, times `extent`."""

    axes: tuple[str, ...]
    extent: int


@dataclass(frozen=True, slots=True)
class Inside:
    """How many of this rank's `extent` entries lie below `limit` of the whole dimension."""

    begin: Offset
    extent: int
    limit: int


@dataclass(frozen=True, slots=True)
class Stretches:
    """Ranges of a whole flat tensor, cut to this rank's `extent` elements and counted from their first."""

    ranges: tuple[tuple[int, int], ...]
    begin: Offset
    extent: int


@dataclass(frozen=True, slots=True)
class Step:
    """A number that changes from step to step, and that the host fills in before a step: lr | step."""

    name: str


@dataclass(frozen=True, slots=True)
class Draw:
    """Dropout of a local tensor of `dims`: counters are (seed, step, unit, site; token, element).

    Two dims are rows (tokens from `begin` on) by columns; three are matrices (one a sample and head, heads from `begin`
    on) of queries by keys.
    """

    p: float
    site: int
    dims: Dims
    begin: Offset


@dataclass(frozen=True, slots=True)
class Window:
    """A view of another tensor, which owns nothing: strides and offset in elements."""

    of: str
    strides: Dims
    offset: int | Offset = 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor of a unit.

    `at` is its placement when it is made, axis by axis, outer to inner: `S0` sharded along dimension 0, `P+` a sum is
    owed, `Pmax` a maximum; an axis not named: every rank holds the same. `value` names the tensor whose value it holds
    where that is another's (a gathered form). `gathered`: a communication writes it into a slot. `make` is the
    generator of a constant table.
    """

    name: str
    dims: Dims
    dtype: str
    pool: Pool = "act"
    at: At = ()
    value: str = ""
    window: Window | None = None
    make: Made | None = None
    gathered: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return numel(self.dims) * DTYPE_BYTES[self.dtype]

    @property
    def shape(self) -> Dims:
        """Its extents on this rank."""
        return self.dims

    def offset(self, dim: int, extent: int | None = None) -> Offset:
        """Where this rank's shard along `dim` begins, counted in `extent` (default: its own)."""
        axes = tuple(axis for axis, state in self.at if state == f"S{dim}")
        return Offset(axes, self.dims[dim] if extent is None else extent)


@dataclass(frozen=True, slots=True)
class Apply:
    """One operator: tensors by name, everything else `given` by keyword. A result that nobody wants is None."""

    op: str
    args: tuple[str | None, ...]
    results: tuple[str | None, ...] = ()
    given: tuple[tuple[str, object], ...] = ()


def apply(op: str, args: str, results: str = "", /, **given: object) -> Apply:
    """`apply("gemm", "y1 w:qkv -", "qkv", variant="nt")`: names by spaces, `-` for none."""
    return Apply(op, _names(args), _names(results), tuple(given.items()))


def _names(text: str) -> tuple[str | None, ...]:
    return tuple(None if name == "-" else name for name in text.split())


Line = tuple[str, tuple[int, ...], tuple[int, ...], tuple[tuple[str, object], ...]]
View = tuple[int, Dims, Dims, int | Offset]


@dataclass(frozen=True, slots=True)
class Body:
    """What one instruction computes, by position: tensors 0 … arguments − 1 are given, others are made.

    A line is (operator, arguments, results, given); −1 stands for none. `views[i]` makes tensor i a view (base, dims,
    strides, offset). An instruction that reads fewer tensors than `arguments` fills the rest,
    which are places it writes. `results` are handed out, in order. `calls` is what is priced.
    """

    lines: tuple[Line, ...]
    arguments: int
    results: tuple[int, ...]
    views: tuple[tuple[int, View], ...] = ()
    calls: tuple[KernelCall, ...] = ()
    transient_bytes: int = 0
    seal: str = ""  # of what was declared: a body that was edited since is not that of its unit

    def sealed(self) -> str:
        """What its seal should be."""
        content = (self.lines, self.arguments, self.results, self.views, self.calls, self.transient_bytes)
        return blake2b(repr(content).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Lines:
    """A compute instruction of a unit: its lines, and what follows from them."""

    phase: Phase
    kind: str
    piece: str
    lines: tuple[Apply, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    body: Body
    values: Values | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A collective of a unit over the ranks of `axes`; in place when `source` is `target`."""

    phase: Phase
    kind: str
    piece: str
    source: str
    target: str
    op: CommOp
    bytes: int
    dtype: str
    reduce: Reduce = ""
    axes: tuple[str, ...] = ("tp",)
    values: Values | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.source,)

    @property
    def writes(self) -> tuple[str, ...]:
        """What it writes."""
        return (self.target,)


Part = Lines | Move


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of a unit: what it begins as (normal | scaled: smaller where it leads into the residual stream | ones
    | zeros), this rank's `segments` along the dimension it is sharded along, and how many rows are no padding."""

    dims: Dims
    shard_dim: int | None
    init: str
    segments: Dims = ()
    used_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit's work in order, and the tensors it names. Gradients of input and weights interleave in `backward`.
    `weights` are the parameters behind its `w:` names."""

    number: int
    tensors: Mapping[str, Tensor]
    forward: tuple[Part, ...]
    backward: tuple[Part, ...]
    source: str = "x"
    output: str = "x2"
    weights: Mapping[str, Weight] = field(default_factory=dict)

    def parameters(self) -> tuple[str, ...]:
        """Its parameters in the order in which their last gradient is made; those without one stand first."""
        made = (name[2:] for part in reversed(self.backward) for name in reversed(part.writes) if name[:2] == "g:")
        return tuple(reversed(dict.fromkeys((*made, *self.weights))))


def owner(name: str, tensors: Mapping[str, Tensor]) -> str:
    """The tensor whose bytes a name stands for: itself, or what it is a view of."""
    while (window := tensors[name].window) is not None:
        name = window.of
    return name


def touched(lines: Iterable[Apply], tensors: Mapping[str, Tensor]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names that must be there before, names made), each in order of first use; views count as what they view."""
    made: dict[str, None] = {}
    read: dict[str, None] = {}
    for line in lines:
        for name in (owner(n, tensors) for n in line.args if n is not None):
            if name not in made:
                read[name] = None
        made |= dict.fromkeys(n for n in line.results if n is not None)
    return tuple(read), tuple(made)


def transients(lines: Sequence[Apply], tensors: Mapping[str, Tensor], kept: frozenset[str]) -> int:
    """Most bytes alive at once of what `lines` make and do not hand out (`kept`): a tensor lives to its last use."""
    last: dict[str, int] = {}
    for index, line in enumerate(lines):
        last |= {owner(n, tensors): index for n in (*line.args, *line.results) if n is not None}
    live: dict[str, int] = {}
    peak = 0
    for index, line in enumerate(lines):
        live |= {n: tensors[n].bytes for n in line.results if n is not None and n not in kept}
        peak = max(peak, sum(live.values()))
        live = {n: bytes_ for n, bytes_ in live.items() if last[n] > index}
    return peak


def body_of(
    lines: Sequence[Apply],
    tensors: Mapping[str, Tensor],
    arguments: Sequence[str],
    results: Sequence[str],
    calls: tuple[KernelCall, ...],
    transient_bytes: int,
) -> Body:
    """The lines by position: `arguments` first, then views and what is made, in order of first use."""
    place = {name: index for index, name in enumerate(arguments)}
    views: list[tuple[int, View]] = []

    def index(name: str | None) -> int:
        if name is None:
            return -1
        if name not in place:
            tensor = tensors[name]
            base = -1 if tensor.window is None else index(tensor.window.of)
            place[name] = len(place)
            if tensor.window is not None:
                views.append((place[name], (base, tensor.dims, tensor.window.strides, tensor.window.offset)))
        return place[name]

    rows = tuple((line.op, tuple(map(index, line.args)), tuple(map(index, line.results)), line.given) for line in lines)
    handed = tuple(map(index, results))
    body = Body(rows, len(arguments), handed, tuple(views), calls, transient_bytes)
    return replace(body, seal=body.sealed())
