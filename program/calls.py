"""Calls of which a stretch stands for many like it, and columns of numbers for whoever reads all calls of a step.

A pipeline in its steady state does the same for every micro-batch, so a step of thousands is written as a short one and
what is put in at its *seam*: `times` repetitions of the `period` calls behind it. From one repetition to the next the
micro-batch, the ids and the calls that bindings point to move by constants, and blocks that differ only in their
receive slot take each other's place (`turn`). To whoever reads it, it is the same sequence as if each call stood there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, overload

from program.step_program import Block, Call, RankProgram, StepProgram

if TYPE_CHECKING:  # numpy is imported where numbers are made: every command imports this room for its errors
    import numpy as np
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated(Sequence[Call]):
    """`kept` with `times` repetitions put in before call `seam`. A repetition is `period` calls, `micros` micro-batches
    and `ids` instructions; the block `b` of one is `turn[b]` in the next. Bindings of calls from the seam on move with
    them when they point to call `anchor` or a later one."""

    kept: tuple[Call, ...]
    seam: int
    period: int
    times: int
    micros: int
    ids: int
    anchor: int
    turn: tuple[int, ...]
    _turns: tuple[tuple[tuple[int, ...], int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Where each block stands in its round of blocks."""
        object.__setattr__(self, "_turns", _rounds(self.turn))

    def __len__(self) -> int:
        return len(self.kept) + self.times * self.period

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Call, ...]: ...
    def __getitem__(self, index: int | slice) -> Call | tuple[Call, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        index = range(len(self))[index]
        turns = self._turns_before(index)
        return self.moved(self.kept[index - turns * self.period], turns)

    def __iter__(self) -> Iterator[Call]:
        yield from self.kept[: self.seam]
        for turns in range(self.times):
            for call in self.kept[self.seam : self.seam + self.period]:
                yield self.moved(call, turns)
        for call in self.kept[self.seam :]:
            yield self.moved(call, self.times)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Repeated) and len(self.kept) == len(other.kept) and self.seam == other.seam:
            return (self.times, self.kept, self.turn) == (other.times, other.kept, other.turn)
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _turns_before(self, index: int) -> int:
        return max(0, min((index - self.seam) // self.period, self.times))

    def moved(self, call: Call, turns: int) -> Call:
        """A kept call from the seam on, as it stands so many repetitions later."""
        if not turns:
            return call
        blocks, place = self._turns[call.block]
        calls, anchor = turns * self.period, self.anchor
        return Call(
            blocks[(place + turns) % len(blocks)],
            call.micro + turns * self.micros if call.micro >= 0 else call.micro,
            call.base + turns * self.ids,
            tuple([(bound + calls, port) if bound >= anchor else (bound, port) for bound, port in call.bindings]),
        )

    def blocks_after(self, turns: int) -> Numbers:
        """The block that stands in each block's place after 0 … turns - 1 turns: rows of turns."""
        import numpy as np

        found = np.empty((turns, len(self.turn)), dtype=np.int64)
        for block, (around, place) in enumerate(self._turns):
            found[:, block] = np.array(around)[(place + np.arange(turns)) % len(around)]
        return found


def _rounds(turn: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """For each block its round (the block, what takes its place, and so on until it comes again) and its place there.

    Raises ValueError when two blocks turn into the same one.
    """
    if sorted(turn) != list(range(len(turn))):
        raise ValueError("two blocks take the place of one")
    found: dict[int, tuple[tuple[int, ...], int]] = {}
    for block in range(len(turn)):
        around = [block]
        while block not in found and turn[around[-1]] != block:
            around.append(turn[around[-1]])
        if block not in found:
            found |= {member: (tuple(around), place) for place, member in enumerate(around)}
    return tuple(found[block] for block in range(len(turn)))


class Columns(NamedTuple):
    """The fields of all calls: `bound` and `port` are all their bindings in a row, `counts` how many each has."""

    block: Numbers
    micro: Numbers
    base: Numbers
    counts: Numbers
    bound: NDArray[np.int32]
    port: NDArray[np.int32]


def columns(calls: Sequence[Call]) -> Columns:
    """All calls as numbers; repetitions are multiplied, not stepped through."""
    import numpy as np

    if isinstance(calls, Repeated):
        return _repeated(calls, columns(calls.kept))
    many = len(calls)
    block, micro, base, counts = (
        np.fromiter(values, dtype=np.int64, count=many)
        for values in (
            (call.block for call in calls),
            (call.micro for call in calls),
            (call.base for call in calls),
            (len(call.bindings) for call in calls),
        )
    )
    pairs = chain.from_iterable(chain.from_iterable(call.bindings for call in calls))
    flat = np.fromiter(pairs, dtype=np.int32, count=2 * int(counts.sum())).reshape(-1, 2)
    return Columns(block, micro, base, counts, flat[:, 0], flat[:, 1])


def _repeated(calls: Repeated, kept: Columns) -> Columns:
    import numpy as np

    seam, end, times = calls.seam, calls.seam + calls.period, calls.times
    turns = np.arange(times, dtype=np.int64)
    blocks = calls.blocks_after(times + 1)
    first, until = int(kept.counts[:seam].sum()), int(kept.counts[:end].sum())

    def grown(values: NDArray[np.int64], step: int, floor: int, cuts: tuple[int, int]) -> NDArray[np.int64]:
        step_of = np.where(values >= floor, step, 0)
        rows = values[cuts[0] : cuts[1]] + turns[:, None] * step_of[cuts[0] : cuts[1]]
        tail = values[cuts[0] :] + times * step_of[cuts[0] :]
        return np.concatenate([values[: cuts[0]], rows.ravel(), tail])

    bound = grown(kept.bound.astype(np.int64), calls.period, calls.anchor, (first, until))
    return Columns(
        np.concatenate([kept.block[:seam], blocks[:-1, kept.block[seam:end]].ravel(), blocks[-1, kept.block[seam:]]]),
        grown(kept.micro, calls.micros, 0, (seam, end)),
        grown(kept.base, calls.ids, 0, (seam, end)),
        np.concatenate([kept.counts[:seam], np.tile(kept.counts[seam:end], times), kept.counts[seam:]]),
        bound.astype(np.int32),
        np.concatenate([kept.port[:first], np.tile(kept.port[first:until], times), kept.port[first:]]),
    )


def block_uses(program: RankProgram) -> list[int]:
    """How often each block is called in a step."""
    import numpy as np

    found: list[int] = np.bincount(columns(program.calls).block, minlength=len(program.blocks)).tolist()
    return found


def repetitions(program: StepProgram) -> int:
    """How many repetitions of a steady state every class of a program writes as one; 0 when some class does not, or
    when blocks that take each other's place differ in more than their receive slot."""
    found = {(c.calls.times, c.calls.micros) if isinstance(c.calls, Repeated) else (0, 0) for c in program.classes}
    times, _ = next(iter(found))
    return times if len(found) == 1 and times and all(map(_alike, program.classes)) else 0


def with_repetitions(program: StepProgram, times: int) -> StepProgram:
    """The program of a step with so many of its `repetitions`: as many micro-batches fewer (it keeps its hash)."""
    classes = []
    fewer = 0
    for stage in program.classes:
        assert isinstance(stage.calls, Repeated)
        fewer = (stage.calls.times - times) * stage.calls.micros
        classes.append(replace(stage, calls=replace(stage.calls, times=times)))
    degrees = program.degrees | {"microbatches": program.degrees["microbatches"] - fewer}
    return replace(program, classes=tuple(classes), degrees=degrees)


def written_out(program: StepProgram) -> StepProgram:
    """The program with every call for itself."""
    return replace(program, classes=tuple(replace(stage, calls=tuple(stage.calls)) for stage in program.classes))


def _alike(program: RankProgram) -> bool:
    assert isinstance(program.calls, Repeated)
    turned = ((b, t) for b, t in enumerate(program.calls.turn) if b != t)
    return all(_without_slots(program.blocks[b]) == _without_slots(program.blocks[t]) for b, t in turned)


def _without_slots(block: Block) -> Block:
    return replace(block, name="", buffers=tuple(replace(b, slot=b.slot and "slot") for b in block.buffers))
