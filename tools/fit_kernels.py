"""Fits of GEMM and attention models on published rows: few parameters, each with bounds a microbenchmark would set.

`search` minimises the mean absolute log error (the rows have outliers) from a coarse grid; a parameter that ends
on a bound raises, because then the model explains with it what it should explain otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibration.forms import AttentionForm, Tile, TileForm
from program import DTYPE_BYTES
from tools.fit_search import Bounds, Fit, search
from tools.published_rows import AttentionRow, GemmRow

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
HOPPER_TILES = (*TILES, (192, 192), (128, 192), (192, 128), (320, 128), (128, 320))  # by the names of its kernels


@dataclass(frozen=True, slots=True)
class Chip:
    """What a form needs to know of a card: multiprocessors and dense peak (data sheet), the memory bandwidth measured
    on it, and the output tiles its GEMM library has."""

    units: int
    peak_flops_per_s: float
    memory_bytes_per_s: float
    tiles: tuple[tuple[int, int], ...] = TILES


def tile_form(chip: Chip, efficiency: float, prologue_k: float, reuse: float, launch_s: float) -> TileForm:
    """`efficiency`: main-loop share of the peak with the largest tile. `reuse`: loss of a smaller tile, whose operand
    traffic grows with 1/m + 1/n; relative to 256 x 128."""
    best = 1.0 + reuse * (1 / TILES[0][0] + 1 / TILES[0][1])
    tiles = tuple(Tile(m, n, best / (1.0 + reuse * (1 / m + 1 / n))) for m, n in chip.tiles)
    rate = chip.peak_flops_per_s * efficiency
    return TileForm(launch_s, rate, chip.memory_bytes_per_s, chip.units, prologue_k, tiles)


def row_bytes(row: GemmRow) -> int:
    """Bytes the product must move: operands once, the result once, twice in fp32 when it is accumulated (layout NT
    here)."""
    size = DTYPE_BYTES[row.precision]
    out = 8 if row.layout == "NT" else max(2, size)
    return row.batch * ((row.m * row.k + row.k * row.n) * size + row.m * row.n * out)


def fit_gemm(chip: Chip, rows: Sequence[GemmRow], fixed: dict[str, float], bounds: dict[str, Bounds]) -> Fit:
    """Fit the parameters named in `bounds` among efficiency, prologue_k, reuse, launch_s; `fixed` gives the others."""

    def predicted(values: dict[str, float]) -> list[float]:
        form = tile_form(chip, **(fixed | values))
        return [form.seconds(row_bytes(row), row.batch, row.m, row.n, row.k) for row in rows]

    return search(predicted, [row.seconds for row in rows], bounds)


def attention_form(chip: Chip, rate: float, short_s: float, narrow_d: float, launch_s: float) -> AttentionForm:
    """Attention at `rate` of the peak for long sequences and wide heads."""
    return AttentionForm(launch_s, chip.peak_flops_per_s * rate, short_s, narrow_d, chip.units)


def causal_flops(row: AttentionRow, products: float) -> float:
    """FLOPs of `products` matrix products with the causal half taken."""
    return products * 2.0 * row.b * row.heads * row.s * row.s * row.d / 2.0


def fit_attention(
    chip: Chip, rows: Sequence[AttentionRow], back: float, launch_s: float, bounds: dict[str, Bounds],
    fixed: dict[str, float] | None = None,
) -> Fit:  # fmt: skip
    """Fit the *forward* rate, short_s and narrow_d on causal rows. Rows of forward and backward together are split by
    `back`, the ratio of the backward rate to the forward rate (backward: five products, forward: two)."""
    given = fixed or {}

    def predicted(values: dict[str, float]) -> list[float]:
        forward = attention_form(chip, **(given | values), launch_s=launch_s)
        times = []
        for row in rows:
            one = forward.seconds(causal_flops(row, 2.0), row.b, row.heads, row.s, row.d)
            both = 1.0 + 2.5 / back if row.passes == "forward+backward" else 1.0
            times.append(one * both)
        return times

    def measured(row: AttentionRow) -> float:
        return causal_flops(row, 7.0 if row.passes == "forward+backward" else 2.0) / row.flops_per_s

    return search(predicted, [measured(row) for row in rows], bounds)


def backward_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Geometric mean of backward rate / forward rate over (forward, backward) pairs."""
    return math.exp(sum(math.log(back / forward) for forward, back in pairs) / len(pairs))
