"""Cross entropy over a row of logits: the fused row kernel, and its parts for a vocabulary split over ranks.

    m = max_j x_j      others = Σ_{j≠y} exp(x_j − m)      d = others + exp(x_y − m)
    lse = m + log d    loss = lse − x_y + λ·lse²
    gradient_j = scale·(1 + 2λ·lse)·exp(x_j − lse)  for j ≠ y
    gradient_y = scale·(−others/d + 2λ·lse·exp(x_y − lse))

The sum leaves the target out, so that the gradient of a confident row (p_y → 1) is −others/d and not the
difference 1 − 1 that loses every digit. The first pass keeps a running maximum and sum in fp32; the second overwrites
the logits with the gradient (or writes to `out`).

A vocabulary-parallel loss calls `row_statistics` (or `row_max`, then `exp_target` after the all-reduce of the
maximum) on its columns, reduces, and calls `cross_entropy(stats=…)`. Targets are global indices; a rank holds columns
vocab_first … vocab_first + width − 1; columns from `vocab_size` on are padding: they take no probability and get zero
gradient. A row whose target is `ignore_index`, or lies outside 0 … vocab_size − 1, is ignored: loss 0, gradient 0.
`check_targets` raises on the latter where a synchronisation can be afforded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.crossentropy_kernels import cross_entropy_kernel, exp_target_kernel, row_max_kernel, row_statistics_kernel
from kernels.direct import Launcher, direct, start
from kernels.launch import (
    KernelArgumentError,
    as_rows,
    check_float,
    check_output,
    check_tensor,
    next_power_of_2,
    use_triton,
)

Tensor = torch.Tensor
IGNORE_INDEX = -100
LOWEST = -3.0e38
"""Start of the running maximum: finite, so that −inf logits stay exact zeros."""


class RowConfig(NamedTuple):
    block: int
    warps: int


CONFIG = RowConfig(2048, 8)


class RowStatistics(NamedTuple):
    """fp32 (rows,): maximum of the row's valid columns, Σ_{j≠y} exp(x_j − maximum), and x_y (0 where the target is
    not in these columns)."""

    row_max: Tensor
    others: Tensor
    target_logit: Tensor


def check_targets(target: Tensor, vocab_size: int, ignore_index: int = IGNORE_INDEX) -> None:
    """Raises KernelArgumentError naming the first target that is neither `ignore_index` nor inside 0 … vocab_size −
    1. Synchronises."""
    bad = ((target < 0) | (target >= vocab_size)) & (target != ignore_index)
    if bool(bad.any()):
        where = int(bad.reshape(-1).nonzero()[0])
        raise KernelArgumentError(
            f"target[{where}] is {int(target.reshape(-1)[where])}; accepted: 0 … {vocab_size - 1}, "
            f"or {ignore_index} to ignore"
        )


# ---------------------------------------------------------------- reference


def row_statistics_reference(logits: Tensor, target: Tensor, vocab_first: int, valid: int) -> RowStatistics:
    """`RowStatistics` of (rows, width) logits of which the first `valid` columns are vocabulary.

    They are fp64 for fp64 logits.
    """
    x = logits[:, :valid].to(_compute_type(logits))
    row_max = x.max(-1).values if valid else x.new_full((x.shape[0],), LOWEST)
    return RowStatistics(row_max, *exp_target_reference(logits, row_max, target, vocab_first, valid))


def exp_target_reference(
    logits: Tensor, row_max: Tensor, target: Tensor, vocab_first: int, valid: int
) -> tuple[Tensor, Tensor]:
    x = logits[:, :valid].to(_compute_type(logits))
    chosen = torch.arange(valid, device=x.device)[None, :] == (target - vocab_first)[:, None]
    others = torch.where(chosen, 0.0, torch.exp(x - row_max[:, None])).sum(-1)
    return others, torch.where(chosen, x, 0.0).sum(-1)


def loss_and_gradient_reference(
    logits: Tensor, stats: RowStatistics, target: Tensor, weight: Tensor | None, scale: float, z_loss: float,
    vocab_first: int, valid: int, vocab_size: int, ignore_index: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(loss (rows,), gradient like logits)."""
    compute = _compute_type(logits)
    used = (target != ignore_index) & (target >= 0) & (target < vocab_size)
    total = stats.others + torch.exp(stats.target_logit - stats.row_max)
    lse = stats.row_max + torch.log(total)
    loss = torch.where(used, lse - stats.target_logit + z_loss * lse * lse, 0.0)
    p = torch.exp(logits.to(compute) - lse[:, None])
    factor = 1 + 2 * z_loss * lse
    chosen = torch.arange(logits.shape[1], device=logits.device)[None, :] == (target - vocab_first)[:, None]
    p_target = torch.exp(stats.target_logit - lse)
    at_target = 2 * z_loss * lse * p_target - stats.others / total
    gradient = torch.where(chosen, at_target[:, None], p * factor[:, None]) * scale
    if weight is not None:
        gradient = gradient * weight[:, None].to(compute)
    gradient = torch.where(used[:, None], gradient, 0.0)
    gradient[:, valid:] = 0
    return loss, gradient.to(logits.dtype)


def _compute_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# ---------------------------------------------------------------- plain functions


def row_statistics(
    logits: Tensor, target: Tensor, *, vocab_first: int = 0, vocab_size: int | None = None
) -> RowStatistics:
    """Statistics of this rank's columns in one read. logits (rows, width); target int64 (rows,), global. To combine
    ranks: M = all-reduce max of row_max; others·exp(row_max − M) and target_logit are then summed."""
    logits, valid, _ = _check(logits, target, vocab_first, vocab_size)
    if not use_triton(logits):
        return row_statistics_reference(logits, target, vocab_first, valid)
    rows = logits.shape[0]
    stats = RowStatistics(*(torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3)))
    if rows:
        block, warps = _config(logits.shape[1])
        numbers = logits.stride(0), valid, vocab_first
        constants = {"BLOCK": block, "num_warps": warps}
        start(direct, row_statistics_kernel, (rows,), (logits, target, *stats), numbers, constants)
    return stats


def row_max(logits: Tensor, *, vocab_first: int = 0, vocab_size: int | None = None) -> Tensor:
    """fp32 (rows,): maximum over this rank's vocabulary columns."""
    logits, valid, _ = _check(logits, None, vocab_first, vocab_size)
    if not use_triton(logits):
        x = logits[:, :valid].to(_compute_type(logits))
        return x.max(-1).values if valid else x.new_full((x.shape[0],), LOWEST)
    rows = logits.shape[0]
    out = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        block, warps = _config(logits.shape[1])
        constants = {"BLOCK": block, "num_warps": warps}
        start(direct, row_max_kernel, (rows,), (logits, out), (logits.stride(0), valid), constants)
    return out


def exp_target(
    logits: Tensor, maximum: Tensor, target: Tensor, *, vocab_first: int = 0, vocab_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """(others, target_logit), fp32 (rows,), against the global row maximum; both are summed over the ranks."""
    logits, valid, _ = _check(logits, target, vocab_first, vocab_size)
    if not use_triton(logits):
        return exp_target_reference(logits, maximum, target, vocab_first, valid)
    check_tensor(
        "maximum", maximum, dtypes=(torch.float32,), shape=(logits.shape[0],), device=logits.device, contiguous=True
    )
    others, target_logit = torch.empty_like(maximum), torch.empty_like(maximum)
    if logits.shape[0]:
        block, warps = _config(logits.shape[1])
        tensors, numbers = (logits, maximum, target, others, target_logit), (logits.stride(0), valid, vocab_first)
        constants = {"BLOCK": block, "num_warps": warps}
        start(direct, exp_target_kernel, (logits.shape[0],), tensors, numbers, constants)
    return others, target_logit


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    scale: float = 1.0,
    row_weight: Tensor | None = None,
    stats: RowStatistics | None = None,
    z_loss: float = 0.0,
    vocab_first: int = 0,
    vocab_size: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    out: Tensor | None = None,
    in_place: bool = False,
    gradient: bool = True,
    launcher: Launcher = direct,
    config: RowConfig | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(loss fp32 (rows,), gradient of scale·Σ row_weight·loss with respect to the logits, or None).

    `stats`: reduced over the ranks when the vocabulary is split; formed here when None (then vocab_first must be 0).
    The losses are unscaled: their sum times `scale` (1 / global tokens) is the mean. The gradient goes to `out`, over
    the logits (`in_place`), or to a new tensor. row_weight: (rows,) upstream gradient of each row's loss.
    """
    logits, valid, total = _check(logits, target, vocab_first, vocab_size)
    _check_rows(logits, row_weight, stats, vocab_first, total, out, in_place)
    if not use_triton(logits):
        given = stats if stats is not None else row_statistics_reference(logits, target, vocab_first, valid)
        loss, grad = loss_and_gradient_reference(
            logits, given, target, row_weight, scale, z_loss, vocab_first, valid, total, ignore_index
        )
        if not gradient:
            return loss, None
        return loss, out.copy_(grad) if out is not None else logits.copy_(grad) if in_place else grad
    rows, width = logits.shape
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if not gradient or in_place:
        out = logits
    elif out is None:
        out = torch.empty((rows, width), dtype=logits.dtype, device=logits.device)
    parts = stats if stats is not None else RowStatistics(loss, loss, loss)
    if rows:
        block, warps = config or _config(width)
        tensors = logits, out, target, row_weight if row_weight is not None else loss, *parts, loss
        numbers = (
            logits.stride(0), out.stride(0), valid, width, vocab_first, total, ignore_index, float(scale),
            float(z_loss),
        )  # fmt: skip
        constants = {
            "GIVEN": stats is not None, "GRADIENT": gradient, "HAS_WEIGHT": row_weight is not None, "BLOCK": block,
            "num_warps": warps,
        }  # fmt: skip
        start(launcher, cross_entropy_kernel, (rows,), tensors, numbers, constants)
        if gradient and launcher is direct and not torch.compiler.is_compiling():
            torch.autograd.graph.increment_version(out)  # autograd must see that a saved tensor was written over
    return loss, out if gradient else None


def _check_rows(
    logits: Tensor, row_weight: Tensor | None, stats: RowStatistics | None, vocab_first: int, total: int,
    out: Tensor | None, in_place: bool,
) -> None:  # fmt: skip
    """What `cross_entropy` is given beside logits and targets."""
    if stats is None and vocab_first:
        raise KernelArgumentError(
            f"vocab_first is {vocab_first} and stats is None; a split vocabulary needs the reduced statistics"
        )
    if stats is None and total > logits.shape[1]:
        raise KernelArgumentError(
            f"vocab_size is {total} and logits have {logits.shape[1]} columns; accepted: no more than the columns, "
            "or stats, the reduced statistics of a split vocabulary"
        )
    rows, device = (logits.shape[0],), logits.device
    if row_weight is not None:
        check_tensor("row_weight", row_weight, shape=rows, device=device, contiguous=True)
    for name, part in zip(RowStatistics._fields, stats or (), strict=False):
        check_tensor(name, part, dtypes=(_compute_type(logits),), shape=rows, device=device, contiguous=True)
    if out is not None:
        check_tensor("out", out, dtypes=(logits.dtype,), shape=logits.shape, device=device)
        check_output("out", out)
    if in_place:
        check_output("logits", logits)


def _config(width: int) -> RowConfig:
    block = min(CONFIG.block, next_power_of_2(width))
    return RowConfig(block, CONFIG.warps) if block >= 2048 else RowConfig(block, 4)


def _check(logits: Tensor, target: Tensor | None, vocab_first: int, vocab_size: int | None) -> tuple[Tensor, int, int]:
    """(logits as rows, vocabulary columns among them, global vocabulary)."""
    check_float("logits", logits)
    check_tensor("logits", logits, shape=(None, None))
    if target is not None:
        check_tensor(
            "target", target, dtypes=(torch.int64, torch.int32), shape=(logits.shape[0],), device=logits.device
        )
        if target.stride(0) != 1 and target.shape[0] > 1:
            raise KernelArgumentError(
                f"target has stride {target.stride(0)}; accepted: contiguous (call .contiguous())"
            )
    rows = as_rows(logits)
    if rows is not logits:
        raise KernelArgumentError(
            f"logits has strides {logits.stride()}; accepted: (rows, width) with unit stride along the width"
        )
    total = vocab_size if vocab_size is not None else vocab_first + rows.shape[1]
    return rows, max(0, min(rows.shape[1], total - vocab_first)), total
