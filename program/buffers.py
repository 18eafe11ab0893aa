"""What a rank holds: parameters, the flat buckets they lie in, and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from program.kinds import DTYPE_BYTES, Made, Pool, numel


@dataclass(frozen=True, slots=True)
class Param:
    """One trained tensor on a rank.

    `segments` are the extents along `shard_dim` of the parts that are sharded separately (a fused QKV weight is three
    parts: each rank holds a slice of each), in the full tensor; empty: one part. `shard_dim` is None when every
    tensor-parallel rank holds all of it; then `tp_replicated` says its gradient must still be summed over `tp`
    (sequence parallelism). `bucket` and `offset` (elements) place it in the flat buffers. `init` is `normal:<std>`,
    `ones` or `zeros`; rows of the full tensor from `used_rows` on are padding and begin as zero. `decay` says whether
    weight decay applies. `tied_to` names the parameter it is a copy of.
    """

    name: str
    full_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    shard_dim: int | None
    dtype: str
    bucket: int
    offset: int
    init: str
    decay: bool = True
    tp_replicated: bool = False
    tied_to: str | None = None
    segments: tuple[int, ...] = ()
    used_rows: int | None = None

    @property
    def local_numel(self) -> int:
        """Elements held by one rank."""
        return numel(self.local_shape)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One flat stretch of parameters: reduced, normed and stepped as one.

    `numel` includes the padding to lcm(dp, 128); `shard_numel` is what one rank steps (numel, or numel / dp under
    ZeRO). The `*_buffer` fields index `RankProgram.buffers`. `master_buffer` equals `weight_buffer` when no copy is
    kept. `norm_weight` is the share with which this bucket's sum of squares enters the global norm on *each* rank, so
    that every parameter counts once (1/tp for replicated parameters, 0 for the second copy of a tied one).
    """

    index: int
    numel: int
    shard_numel: int
    kind: Literal["sharded", "replicated", "tied"]
    norm_weight: float
    weight_buffer: int
    grad_buffer: int
    master_buffer: int
    exp_avg_buffer: int
    exp_avg_sq_buffer: int
    reduced_buffer: int  # where the reduce-scatter of ZeRO puts the shard; equals grad_buffer otherwise
    weights_sharded: bool = False  # ZeRO-3: the weight buffer holds this rank's shard; units gather it into slots
    gradients_sharded: bool = False  # ZeRO-2 and 3: the gradient buffer sums this rank's shard over micro-batches
    host_grad_buffer: int = -1  # offloaded optimizer: where the host finds the reduced gradient
    host_weight_buffer: int = -1  # … and where its STEP leaves the weights for the device (-1: they live on the host)
    whole_buffer: int = -1  # sharded weights that stay gathered from a forward to its backward: where they lie whole

    @property
    def offloaded(self) -> bool:
        """Whether the host steps this bucket."""
        return self.host_grad_buffer >= 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor a rank holds. `slot` names a fixed place shared by successive tenants (None: the caching allocator);
    `base` = (rank-wide buffer, offset in elements) makes it a view; with a slot it is a view of the local buffer
    `base[0]`, the slot's tenant. `make` is the generator of a constant table, which is filled once, before the first
    step."""

    shape: tuple[int, ...]
    dtype: str
    pool: Pool
    what: str
    slot: str | None = None
    base: tuple[int, int] | None = None
    make: Made | None = None

    @property
    def bytes(self) -> int:
        """Bytes of storage (a view has its own extent; the accounting skips views)."""
        return numel(self.shape) * DTYPE_BYTES[self.dtype]


def rank_wide(index: int) -> int:
    """The reference that stands for rank-wide buffer `index` inside an instruction."""
    return -1 - index


def tenant_of(buffers: Sequence[Buffer], ref: int) -> int:
    """The local buffer that holds a slot when `ref` is touched: itself, or the one it is a view of."""
    buffer = buffers[ref]
    return buffer.base[0] if buffer.slot is not None and buffer.base is not None else ref
