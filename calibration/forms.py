"""Physical models of the kernels that are not plain traffic: GEMM and attention. Few parameters, each one something a
microbenchmark can show.

* `RooflineForm` (CPU GEMM): launch + FLOPs / rate + bytes / bandwidth.
* `TileForm` (GPU GEMM): an output tile costs its main loop plus a prologue worth `prologue_k` of depth; tiles run in
  waves over the device's units; a problem with too few tiles may split its depth. The fastest tile of a short list is
  taken, as a GEMM library's heuristic would. Never faster than its bytes.
* `AttentionForm`: launch + FLOPs / rate, slowed for short sequences, narrow heads, and too few blocks to fill the
  units.

All return seconds of one execution. Units: FLOP/s, bytes/s, seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RooflineForm:
    """Additive roofline of a synchronous device."""

    launch_s: float
    flops_per_s: float
    bytes_per_s: float

    def seconds(self, bytes_: float, batch: float, m: float, n: float, k: float) -> float:
        """Time of `batch` products of m x n x k that move `bytes_` in all."""
        return self.launch_s + 2.0 * batch * m * n * k / self.flops_per_s + bytes_ / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Tile:
    """An output tile a kernel may use, and the share of the main-loop rate it reaches (small tiles reuse less)."""

    m: int
    n: int
    share: float


@dataclass(frozen=True, slots=True)
class TileForm:
    """Tiles, waves, prologue and split depth of a GEMM on a device of `units` multiprocessors."""

    launch_s: float
    flops_per_s: float
    bytes_per_s: float
    units: int
    prologue_k: float
    tiles: tuple[Tile, ...]
    splits: tuple[int, ...] = (1, 2, 4, 8)

    def seconds(self, bytes_: float, batch: float, m: float, n: float, k: float) -> float:
        """Time of `batch` products of m x n x k that move `bytes_` in all."""
        unit_rate = self.flops_per_s / self.units
        best = math.inf
        for tile in self.tiles:
            count = batch * math.ceil(m / tile.m) * math.ceil(n / tile.n)
            for split in self.splits:
                if split > 1 and (count >= self.units or k < 256 * split):
                    break
                waves = math.ceil(count * split / self.units)
                loop = waves * 2.0 * tile.m * tile.n * (k / split + self.prologue_k) / (unit_rate * tile.share)
                merge = 8.0 * split * batch * m * n / self.bytes_per_s if split > 1 else 0.0  # fp32 partials out and in
                best = min(best, loop + merge)
        return self.launch_s + max(best, bytes_ / self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class AccumulateForm:
    """A weight gradient in two kernels: a product that leaves it in 16 bits (`form`), and one that takes it on (adds it
    to an fp32 sum, lays it into a flat buffer), moving `bytes_per_element` at `bytes_per_s`. `counted_bytes` an
    element of a call's bytes are the sum that the product itself would have read and written."""

    form: RooflineForm | TileForm
    launch_s: float
    bytes_per_element: float
    bytes_per_s: float
    counted_bytes: float = 6.0

    def seconds(self, bytes_: float, batch: float, m: float, n: float, k: float) -> float:
        """Time of both."""
        product = self.form.seconds(bytes_ - self.counted_bytes * batch * m * n, batch, m, n, k)
        return product + self.launch_s + self.bytes_per_element * batch * m * n / self.bytes_per_s


GemmForm = RooflineForm | TileForm | AccumulateForm


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """Fused causal attention. `short_s`: sequence length at which a query block's start-up costs as much as its work;
    `narrow_d`: head width at which the softmax costs as much as the products; `units` 0: no block quantisation."""

    launch_s: float
    flops_per_s: float
    short_s: float = 0.0
    narrow_d: float = 0.0
    units: int = 0
    block_rows: int = 128

    def seconds(self, flops: float, b: float, heads: float, s: float, d: float) -> float:
        """Time of an execution doing `flops` (causal half already taken)."""
        slow = (1.0 + self.short_s / s) * (1.0 + self.narrow_d / d)
        if self.units:
            blocks = b * heads * math.ceil(s / self.block_rows)
            slow *= math.ceil(blocks / self.units) * self.units / blocks if blocks < 4 * self.units else 1.0
        return self.launch_s + flops / self.flops_per_s * slow
