"""What a piece function knows beside its tensors: extents, this rank's coordinates, the micro-batch, and the step of
the moment.

A `PieceContext` is made once for each (micro-batch, unit) of a rank's program and lives as long as the executor; only
the shared `StepState` changes from step to step. Nothing here is a tensor of the program: tables (rotary, token
coordinates) are small constants cached by shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TypeVar, cast

import torch

from kernels.reference_layer import Mask
from kernels.reference_loss import clip_coefficient, not_finite
from plan.compile import coordinates as compiled_coordinates
from plan.model import Model, RopeScaling
from plan.pieces.shapes import Extents, extents
from plan.program import RankProgram
from plan.run import Run
from trainer.feed import Batches, Feed

Tensor = torch.Tensor
T = TypeVar("T")
SITE_EMBED, SITE_ATTENTION, SITE_MLP, SITE_PROBABILITIES = range(4)


@dataclass(slots=True)
class StepState:
    """What changes from step to step: the 0-based step, its learning rate, how many steps before it the optimizer left
    out, what it takes from the statistics (`trainer.nonfinite`), and the sums the last instruction read."""

    step: int = 0
    lr: float = 0.0
    sum_of_squares: float = math.nan
    loss: float = math.nan
    skipped: int = 0
    scales: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a rank stands: its place along each kind of parallelism."""

    rank: int
    tp: int
    dp: int
    pp: int


def coordinates(rank: int, run: Run) -> Coordinates:
    """Coordinates of a global rank, as the compiler lays ranks out."""
    at = compiled_coordinates(run.plan, rank)
    return Coordinates(rank, at["tp"], at["dp"], at["pp"])


@dataclass(slots=True)
class RankContext:
    """What all pieces of a rank share."""

    run: Run
    program: RankProgram
    coords: Coordinates
    ops: SimpleNamespace
    data: Batches
    device: torch.device
    state: StepState = field(default_factory=StepState)
    e: Extents = field(init=False)
    feed: Feed = field(init=False)
    _cache: dict[object, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.e = extents(self.run.model, self.run.plan)
        cuda = self.device.type == "cuda"
        self.feed = Feed(self.data, self.samples, self.e.seq, keeps=cuda, pinned=cuda)

    @property
    def model(self) -> Model:
        """The model being trained."""
        return self.run.model

    @property
    def first_row(self) -> int:
        """The micro-batch's row that is row 0 of this rank's residual stream."""
        return self.coords.tp * self.e.local_tokens if self.e.sequence_parallel else 0

    @property
    def vocab_first(self) -> int:
        """First vocabulary entry of this rank's tables."""
        return self.coords.tp * self.e.vocab

    @property
    def vocab_valid(self) -> int:
        """How many of this rank's vocabulary columns are not padding."""
        return min(max(self.model.vocab - self.vocab_first, 0), self.e.vocab)

    @property
    def loss_scale(self) -> float:
        """What makes sums over rows, micro-batches and ranks a mean over the global batch."""
        return 1.0 / (self.run.plan.global_batch_size * self.model.seq_length)

    def samples(self, micro: int) -> tuple[int, ...]:
        """Indices in the global batch of a micro-batch's sequences on this data-parallel rank."""
        plan = self.run.plan
        first = (micro * plan.data_parallel + self.coords.dp) * plan.micro_batch_size
        return tuple(range(first, first + plan.micro_batch_size))

    def kept(self, key: object, make: Callable[[], T]) -> T:
        """What `make` returns, made when it is first asked for."""
        if key not in self._cache:
            self._cache[key] = make()
        return cast("T", self._cache[key])

    def update_scales(self, stats: Tensor) -> tuple[Tensor, Tensor | None]:
        """What STEP takes from the statistics [Σ g², loss], for all buckets of a step alike: what gradients are
        multiplied by, and 1 where the step is left out because a statistic is not finite (None: it never is)."""
        kept = self.state.scales
        if stats.data_ptr() not in kept:
            left_out = None if self.run.train.nonfinite == "continue" else not_finite(stats)
            kept[stats.data_ptr()] = (clip_coefficient(stats[0], self.run.optimizer.clip_norm), left_out)
        return kept[stats.data_ptr()]

    def alibi(self, scale: float) -> Tensor:
        """(heads, seq, seq): this rank's ALiBi bias, slope · (key − query), over `scale`, which the softmax applies."""

        def make() -> Tensor:
            first = self.coords.tp * self.e.heads
            slopes = alibi_slopes(self.model.heads)[first : first + self.e.heads]
            place = torch.arange(self.e.seq, dtype=torch.float64)
            return self._table(slopes[:, None, None] * (place[None, None, :] - place[None, :, None]) / scale)

        return self.kept("alibi", make)

    def rope(self) -> tuple[Tensor, Tensor]:
        """(cos, sin), (seq, head_dim/2), in the computing type."""

        def make() -> tuple[Tensor, Tensor]:
            angles = rope_angles(self.model)
            return self._table(angles.cos()), self._table(angles.sin())

        return self.kept("rope", make)

    def _table(self, values: Tensor) -> Tensor:
        return values.to(torch.float64 if self.e.dtype == "fp64" else torch.float32).to(self.device)

    def tokens_of(self, micro: int) -> Tensor:
        """(T,) int64: the global token (sample · seq + position) of every row of a micro-batch, in (position, sample)
        order."""

        def make() -> Tensor:
            samples = torch.tensor(self.samples(micro), dtype=torch.int64)
            grid = torch.arange(self.e.seq)[:, None] + samples[None, :] * self.e.seq
            return grid.reshape(-1).to(self.device)

        return self.kept(("tokens", micro), make)

    def elements(self, width: int) -> Tensor:
        """(width,) int64: 0, 1, …"""
        return self.kept(("elements", width), lambda: torch.arange(width, device=self.device))


@dataclass(frozen=True, slots=True)
class PieceContext:
    """The context of one unit in one micro-batch."""

    rank: RankContext
    micro: int
    unit: int
    ops: SimpleNamespace = field(init=False)
    """The run's operators, by name."""
    e: Extents = field(init=False)
    """Per-rank extents."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", self.rank.ops)
        object.__setattr__(self, "e", self.rank.e)

    def add_product(self, a: Tensor, b: Tensor, grad: Tensor) -> None:
        """A weight gradient aᵀ b, a (T, m), b (T, n), on its way to the main gradient as the program's extents say:
        added into `grad` inside the product, made afresh in `grad`, or made and then added."""
        if self.e.gradients == "fused":
            self.ops.gemm(a, b, None, grad, "tn+acc32")
        elif self.e.gradients == "apart":
            torch.mm(a.t(), b, out=grad)
        else:
            grad.add_(self.ops.gemm(a, b, variant="tn"))

    def stored(self, mask: Mask, like: Tensor) -> Tensor:
        """A dropout mask as Megatron-LM's layers store it: a byte for each element of `like`, 1 where it is kept."""
        return (mask.apply(torch.ones_like(like)) != 0).to(torch.uint8)

    def drop(self, x: Tensor, stored: Tensor, p: float) -> Tensor:
        """x · mask / (1 − p) by a stored mask."""
        return x * stored * (1.0 / (1.0 - p))

    def mask(self, site: int) -> Mask | None:
        """Dropout of the residual stream at a site of this unit (None: the model has none)."""
        if not self.e.dropout:
            return None
        rank, e = self.rank, self.e
        tokens = rank.tokens_of(self.micro)[rank.first_row : rank.first_row + e.local_tokens]
        dropout = self._dropout(rank.model.dropout, site)
        return Mask(dropout, tokens[:, None], rank.elements(e.hidden), first_element=0)

    def probability_mask(self) -> Mask | None:
        """Dropout of the attention probabilities (batch · heads, query, key): the element is global head · seq +
        key."""
        if not self.e.attention_dropout:
            return None
        rank, e = self.rank, self.e
        tokens = rank.tokens_of(self.micro).view(e.seq, e.batch).t()[:, None, :, None]
        heads = rank.elements(e.heads) + rank.coords.tp * e.heads
        elements = heads[None, :, None, None] * e.seq + rank.elements(e.seq)
        shape = (e.batch, e.heads)
        return Mask(
            self._dropout(rank.model.attention_dropout, SITE_PROBABILITIES),
            tokens.expand(*shape, e.seq, 1).reshape(-1, e.seq, 1),
            elements.expand(*shape, 1, e.seq).reshape(-1, 1, e.seq),
        )

    def _dropout(self, p: float, site: int) -> object:
        from kernels.random import Dropout

        return Dropout.at(p, seed=self.rank.run.train.seed, step=self.rank.state.step, layer=self.unit, site=site)


def alibi_slopes(heads: int) -> Tensor:
    """(heads,) fp64 slopes of Press et al. 2022 (arXiv 2108.12409): 2^(-8i/n) for a power of two n; for other counts
    those of the power below, then every other one of the power above."""
    below = 2 ** (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * i / below) for i in range(1, below + 1)]
    between = [2.0 ** (-4.0 * i / below) for i in range(1, 2 * below, 2)]
    return torch.tensor([*first, *between][:heads], dtype=torch.float64)


def rope_angles(model: Model) -> Tensor:
    """(seq, head_dim/2) fp64 rotary angles, frequencies stretched as `rope_scaling` asks."""
    half = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
    frequency = _scaled(model.rope_theta**-half, model.rope_scaling)
    return torch.arange(model.seq_length, dtype=torch.float64)[:, None] * frequency


def _scaled(frequency: Tensor, scaling: RopeScaling | None) -> Tensor:
    if scaling is None:
        return frequency
    slow = frequency / scaling.factor
    if scaling.kind == "linear":
        return slow
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((scaling.original_max_positions / wavelength - low) / (high - low)).clamp(0, 1)
    return share * frequency + (1 - share) * slow
