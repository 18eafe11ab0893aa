"""Cross entropy of logits that lie transposed, (vocabulary, rows): one row's logits are a column.

With `kernels: triton` a head in chunks makes logits so, because its weight-gradient product then reads both operands
along their rows. Formulas and treatment of ignored targets are those of `crossentropy.py`. Nothing runs the length of
a column, so every multiprocessor is busy whatever the number of rows:

    take        x_y of each column is kept aside and its place becomes −inf, so that the sums leave the target out
    statistics  a program reads one span of the vocabulary for neighbouring columns: a maximum and a sum for each
    join        the spans' sums become losses, and what the gradient needs of a column: lse and its factor
    gradient    over the logits, span by span
    put         the gradient of each target, −others/d
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.crossentropy import IGNORE_INDEX, loss_and_gradient_reference, row_statistics_reference
from kernels.direct import start
from kernels.launch import KernelArgumentError, cdiv, check_float, check_tensor, next_power_of_2, tl, triton, use_triton
from kernels.written import written

Tensor = torch.Tensor


class Tiles(NamedTuple):
    """What a program takes: `tiles` tiles of `words` × `rows` logits, one after another."""

    rows: int
    words: int
    tiles: int
    warps: int
    stages: int = 1  # tiles in flight


STATISTICS = Tiles(rows=512, words=8, tiles=64, warps=2, stages=3)
GRADIENT = Tiles(rows=512, words=2, tiles=4, warps=4, stages=3)
MOST_SPANS = 65535
"""Programs along the second axis of a grid, at most."""
JOINED_ROWS = 64
"""Columns of a program of the kernels that see each column once."""


@triton.jit(do_not_specialize=["ignore_index"])
def take_targets_kernel(logits_ptr, target_ptr, taken_ptr, stride, rows, vocab, ignore_index, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(target_ptr + row, mask=row < rows, other=-1).to(tl.int64)
    used = (row < rows) & (target != ignore_index) & (target >= 0) & (target < vocab)
    place = logits_ptr + target * stride + row
    tl.store(taken_ptr + row, tl.load(place, mask=used, other=0.0).to(tl.float32), mask=row < rows)
    lowest = tl.full([ROWS], float("-inf"), tl.float32)
    tl.store(place, lowest.to(logits_ptr.dtype.element_ty), mask=used)


@triton.jit
def columns_statistics_kernel(
    logits_ptr, max_ptr, sum_ptr, stride, rows, vocab,
    TILES: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (row block, span): maximum and Σ exp(x − maximum). A column stays in one thread."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    span = tl.program_id(1).to(tl.int64)
    live = row < rows
    m = tl.full([ROWS], -3.0e38, tl.float32)
    d = tl.zeros([ROWS], tl.float32)
    for tile in tl.range(TILES, num_stages=STAGES):
        word = (span * TILES + tile) * WORDS + tl.arange(0, WORDS)[:, None]
        inside = (word < vocab) & live[None, :]
        x = tl.load(logits_ptr + word * stride + row[None, :], mask=inside, other=float("-inf")).to(tl.float32)
        top = tl.maximum(m, tl.max(x, axis=0))
        d = d * tl.exp(m - top) + tl.sum(tl.exp(x - top[None, :]), axis=0)
        m = top
    tl.store(max_ptr + span * rows + row, m, mask=live)
    tl.store(sum_ptr + span * rows + row, d, mask=live)


@triton.jit(do_not_specialize=["ignore_index"])
def join_columns_kernel(
    target_ptr, taken_ptr, max_ptr, sum_ptr, loss_ptr, lse_ptr, factor_ptr, at_target_ptr,
    rows, vocab, spans, ignore_index, scale, ROWS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """A column whose factor is 0 gets no gradient, whatever its logits are."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    target = tl.load(target_ptr + row, mask=live, other=-1).to(tl.int64)
    used = live & (target != ignore_index) & (target >= 0) & (target < vocab)
    x_target = tl.load(taken_ptr + row, mask=live, other=0.0)
    top = tl.full([ROWS], -3.0e38, tl.float32)
    others = tl.zeros([ROWS], tl.float32)
    for first in range(0, spans, SPANS):
        span = (first + tl.arange(0, SPANS))[:, None].to(tl.int64)
        inside = (span < spans) & live[None, :]
        m = tl.load(max_ptr + span * rows + row[None, :], mask=inside, other=-3.0e38)
        d = tl.load(sum_ptr + span * rows + row[None, :], mask=inside, other=0.0)
        higher = tl.maximum(top, tl.max(m, axis=0))
        others = others * tl.exp(top - higher) + tl.sum(d * tl.exp(m - higher[None, :]), axis=0)
        top = higher
    row_max = tl.maximum(top, x_target)
    others = others * tl.exp(top - row_max)
    total = others + tl.exp(x_target - row_max)
    lse = row_max + tl.log(total)
    factor = tl.full([ROWS], 1.0, tl.float32) * tl.cast(scale, tl.float32)
    tl.store(loss_ptr + row, tl.where(used, lse - x_target, 0.0), mask=live)
    tl.store(lse_ptr + row, lse, mask=live)
    tl.store(factor_ptr + row, tl.where(used, factor, 0.0), mask=live)
    tl.store(at_target_ptr + row, -others / total * factor, mask=live)


@triton.jit
def columns_gradient_kernel(
    logits_ptr, lse_ptr, factor_ptr, stride, rows, vocab, width,
    TILES: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (row block, span): exp(x − lse)·factor over its logits; words from vocab on become 0."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    lse = tl.load(lse_ptr + row, mask=live, other=0.0)[None, :]
    factor = tl.load(factor_ptr + row, mask=live, other=0.0)[None, :]
    for tile in tl.range(TILES, num_stages=STAGES):
        word = (tl.program_id(1).to(tl.int64) * TILES + tile) * WORDS + tl.arange(0, WORDS)[:, None]
        place = logits_ptr + word * stride + row[None, :]
        inside = live[None, :] & (word < width)
        x = tl.load(place, mask=inside & (word < vocab), other=float("-inf")).to(tl.float32)
        g = tl.where(factor == 0.0, 0.0, tl.exp(x - lse) * factor)
        tl.store(place, g.to(logits_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["ignore_index"])
def put_targets_kernel(logits_ptr, target_ptr, at_target_ptr, stride, rows, vocab, ignore_index, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(target_ptr + row, mask=row < rows, other=-1).to(tl.int64)
    used = (row < rows) & (target != ignore_index) & (target >= 0) & (target < vocab)
    value = tl.load(at_target_ptr + row, mask=used, other=0.0)
    tl.store(logits_ptr + target * stride + row, value.to(logits_ptr.dtype.element_ty), mask=used)


def cross_entropy_columns(
    logits: Tensor,
    target: Tensor,
    *,
    scale: float = 1.0,
    vocab_size: int | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """loss fp32 (rows,), unscaled. The logits (width, rows), unit stride along the rows, become the gradient of
    scale·Σ loss. target: int (rows,); words from vocab_size on are padding."""
    _check(logits, target)
    width, rows = logits.shape
    check_vocabulary(vocab_size, width)
    vocab = width if vocab_size is None else vocab_size
    if not use_triton(logits):
        return _reference(logits, target, scale, vocab, ignore_index)
    tiles = _tiles(STATISTICS, vocab, rows)
    spans = max(1, cdiv(vocab, tiles["TILES"] * tiles["WORDS"]))
    maxima, sums = (torch.empty((spans, rows), dtype=torch.float32, device=logits.device) for _ in range(2))
    taken, loss, lse, factor, at_target = (maxima.new_empty(rows) for _ in range(5))
    if rows == 0:
        return loss
    stride, chosen = logits.stride(0), (logits.stride(0), rows, vocab, ignore_index)
    once, columns = (cdiv(rows, JOINED_ROWS),), {"ROWS": JOINED_ROWS, "num_warps": 2}
    start(take_targets_kernel, once, (logits, target, taken), chosen, columns)
    grid, numbers = (cdiv(rows, tiles["ROWS"]), spans), (stride, rows, vocab)
    start(columns_statistics_kernel, grid, (logits, maxima, sums), numbers, tiles)
    start(
        join_columns_kernel, once,
        (target, taken, maxima, sums, loss, lse, factor, at_target),
        (rows, vocab, spans, ignore_index, float(scale)),
        {"SPANS": 16, **columns},
    )  # fmt: skip
    tiles = _tiles(GRADIENT, width, rows)
    grid, width_too = (cdiv(rows, tiles["ROWS"]), cdiv(width, tiles["TILES"] * tiles["WORDS"])), (*numbers, width)
    start(columns_gradient_kernel, grid, (logits, lse, factor), width_too, tiles)
    start(put_targets_kernel, once, (logits, target, at_target), chosen, columns)
    written(logits)
    return loss


def _tiles(config: Tiles, words: int, rows: int) -> dict[str, int]:
    """Constants of a launch over `rows` columns of `words`."""
    columns = min(config.rows, max(16, next_power_of_2(rows)))
    every = max(1, cdiv(words, config.words))
    shape = {
        "TILES": min(every, max(config.tiles, cdiv(every, MOST_SPANS))),
        "ROWS": columns,
        "WORDS": config.words,
        "STAGES": config.stages,
    }
    return {**shape, "num_warps": config.warps}


def _reference(logits: Tensor, target: Tensor, scale: float, vocab: int, ignore_index: int) -> Tensor:
    x = logits.t()
    stats = row_statistics_reference(x, target, 0, vocab)
    loss, gradient = loss_and_gradient_reference(x, stats, target, None, scale, 0.0, 0, vocab, vocab, ignore_index)
    x.copy_(gradient)
    return loss


def check_vocabulary(vocab_size: int | None, width: int) -> None:
    """Raises KernelArgumentError unless `vocab_size` is some of `width` words, or None."""
    if vocab_size is not None and not 1 <= vocab_size <= width:
        raise KernelArgumentError(f"vocab_size is {vocab_size} of {width} words; accepted: 1 … {width}, or None")


def _check(logits: Tensor, target: Tensor) -> None:
    check_float("logits", logits)
    check_tensor("logits", logits, shape=(None, None))
    if logits.shape[1] > 1 and logits.stride(1) != 1:
        raise KernelArgumentError(f"logits has strides {logits.stride()}; accepted: unit stride along the rows")
    if logits.shape[0] > 1 and logits.stride(0) < max(1, logits.shape[1]):
        raise KernelArgumentError(f"logits has strides {logits.stride()}; accepted: words that do not overlap")
    rows, device = (logits.shape[1],), logits.device
    integers = (torch.int64, torch.int32)
    check_tensor("target", target, dtypes=integers, shape=rows, device=device, contiguous=True)
