"""What the bodies of a rank are bound to beside their tensors: where the rank stands, constant tables, dropout masks,
and the numbers that change from step to step.

Everything is made once, when the executor makes its instructions ready. Before a step the host fills the slots: the
learning rate, the step number and the loss scale, which the host's own calls read, and on the device the key of every
dropout mask. So nothing is made, or compiled, anew in a step, and a captured graph sees the numbers of the step it is
replayed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch

from kernels.random import DropoutSlot, stream_key_words
from kernels.reference_layer import Mask
from kernels.tables import table
from program import Buffer, RankProgram, Role, StepProgram
from program.lines import Draw, Step
from trainer.feed import Batches, Feed
from trainer.job import Job
from trainer.link import Bound, Host, Standing

Tensor = torch.Tensor
T = TypeVar("T")


@dataclass(slots=True)
class StepState:
    """What changes from step to step: the 0-based step, its learning rate, how many steps before it the optimizer left
    out, and the sums the last instruction read."""

    step: int = 0
    lr: float = 0.0
    sum_of_squares: float = math.nan
    loss: float = math.nan
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a rank stands: its place along each kind of parallelism."""

    rank: int
    tp: int
    dp: int
    pp: int


def coordinates(program: StepProgram, rank: int) -> Coordinates:
    """Coordinates of a global rank: its places in its groups, and its stage."""
    stage = program.classes[program.class_of[rank]].stage
    return Coordinates(rank, _place(program, "tp", rank), _place(program, "dp", rank), stage)


def _place(program: StepProgram, role: Role, rank: int) -> int:
    return next((g.ranks.index(rank) for g in program.groups.get(role, ()) if rank in g.ranks), 0)


@dataclass(slots=True)
class RankContext:
    """What all instructions of a rank share."""

    program: StepProgram
    job: Job
    rank: int
    data: Batches
    device: torch.device
    state: StepState = field(default_factory=StepState)
    coords: Coordinates = field(init=False)
    feed: Feed = field(init=False)
    numbers: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    keys: Tensor = field(init=False)
    _draws: dict[tuple[int, int], int] = field(default_factory=dict)  # (unit, site) -> row of `keys`
    _cache: dict[object, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coords = coordinates(self.program, self.rank)
        cuda = self.device.type == "cuda"
        self.feed = Feed(self.data, self.samples, self.degrees["seq_length"], keeps=cuda, pinned=cuda)
        masks = {
            (instruction.unit, value.site)
            for block in self.mine.blocks
            for instruction in block.instructions
            for _, _, _, given in (instruction.lines.lines if instruction.lines is not None else ())
            for _, value in given
            if isinstance(value, Draw)
        }
        self._draws = {mask: row for row, mask in enumerate(sorted(masks))}
        self.keys = torch.zeros((len(masks), 2), dtype=torch.int64, device=self.device)

    @property
    def mine(self) -> RankProgram:
        """The program of this rank."""
        return self.program.classes[self.program.class_of[self.rank]]

    @property
    def degrees(self) -> dict[str, int]:
        """The sizes of the program's axes and of its micro-batches."""
        return self.program.degrees

    @property
    def standing(self) -> Standing:
        """This rank's place along the axes that tensors are cut along."""
        ranks = {"tp": self.degrees["tp"], "dp": self.degrees["dp"]}
        return Standing({"tp": self.coords.tp, "dp": self.coords.dp}, ranks)

    def samples(self, micro: int) -> tuple[int, ...]:
        """Indices in the global batch of a micro-batch's sequences on this data-parallel rank."""
        many = self.degrees["micro_batch_size"]
        first = (micro * self.degrees["dp"] + self.coords.dp) * many
        return tuple(range(first, first + many))

    # --- a step

    def begin(self, step: int, lr: float, loss_scale: float) -> StepState:
        """Fill the slots of a step."""
        state = self.state
        state.step, state.lr = step, lr
        self.numbers[0], self.numbers[1], self.numbers[2] = lr, step + 1 - state.skipped, loss_scale
        if self._draws:
            seed = self.job.seed
            words = [stream_key_words(seed, step, unit, site) for unit, site in self._draws]
            self.keys.copy_(torch.tensor(words, dtype=torch.int64))
        return state

    def table(self, buffer: Buffer) -> Tensor:
        """The constant table that a buffer holds, as this rank has it."""
        assert buffer.make is not None
        name, given = buffer.make
        numbers = {key: self.standing.number(value) for key, value in given}
        return table(name, buffer.shape, buffer.dtype, self.device, **numbers)

    # --- what a body is bound to

    def bound(self, what: Bound, micro: int, unit: int) -> object:
        """What stands behind something bound, for an instruction of a micro-batch and unit."""
        if isinstance(what, Step):
            return self._kept(what, lambda: self.numbers[("lr", "step", "loss_scale").index(what.name)])
        if isinstance(what, Draw):
            return self._kept((what, micro, unit), lambda: self._mask(what, micro, unit))
        return self.host(what, micro)

    def host(self, what: Host, micro: int) -> Callable[..., object]:
        """The host's own work: tokens of a micro-batch, or reading what a step ends with."""
        if what.op == "load":
            shift = cast("int", dict(what.given)["shift"])
            return lambda: self._load(micro, shift)
        return self._read

    def _load(self, micro: int, shift: int) -> Tensor:
        """Token ids (T,) of the micro-batch in (position, sample) order, `shift` tokens on."""
        ids = self.feed.ids(self.state.step, micro, shift)
        return ids if self.device.type == "cpu" else ids.to(self.device, non_blocking=True)

    def _read(self, stats: Tensor) -> None:
        """The one place where the host reads from the device: Σ g² of the whole gradient, and the mean loss."""
        self.state.sum_of_squares, self.state.loss = (float(x) for x in stats.tolist())

    def _mask(self, draw: Draw, micro: int, unit: int) -> Mask:
        """A dropout mask by its coordinates: the global token of every row, the global column of every element (of a
        matrix: head · seq + key)."""
        key = DropoutSlot(draw.p, self.keys[self._draws[unit, draw.site]])
        first, tokens = self.standing.first(draw.begin), self._tokens(micro)
        if len(draw.dims) == 2:
            rows, width = draw.dims
            return Mask(key, tokens[first : first + rows, None], self._elements(width), first_element=0)
        matrices, seq, _ = draw.dims
        batch = self.degrees["micro_batch_size"]
        shape = (batch, matrices // batch)
        heads = self._elements(shape[1]) + first
        elements = heads[None, :, None, None] * seq + self._elements(seq)
        of_rows = tokens.view(seq, batch).t()[:, None, :, None]
        return Mask(
            key, of_rows.expand(*shape, seq, 1).reshape(-1, seq, 1), elements.expand(*shape, 1, seq).reshape(-1, 1, seq)
        )

    def _tokens(self, micro: int) -> Tensor:
        """(T,) int64: the global token (sample · seq + position) of every row of a micro-batch, in (position, sample)
        order."""

        def make() -> Tensor:
            samples = torch.tensor(self.samples(micro), dtype=torch.int64)
            seq = self.degrees["seq_length"]
            grid = torch.arange(seq)[:, None] + samples[None, :] * seq
            return grid.reshape(-1).to(self.device)

        return self._kept(("tokens", micro), make)

    def _elements(self, width: int) -> Tensor:
        """(width,) int64: 0, 1, …"""
        return self._kept(("elements", width), lambda: torch.arange(width, device=self.device))

    def _kept(self, key: object, make: Callable[[], T]) -> T:
        """What `make` returns, made when it is first asked for."""
        if key not in self._cache:
            self._cache[key] = make()
        return cast("T", self._cache[key])
