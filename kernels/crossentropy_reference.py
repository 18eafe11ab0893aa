"""Cross entropy in plain torch: the specification of `kernels/crossentropy.py`, which has the formulas, and what runs
without Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch

Tensor = torch.Tensor
LOWEST = -3.0e38
"""Start of the running maximum: finite, so that −inf logits stay exact zeros."""


class RowStatistics(NamedTuple):
    """fp32 (rows,): maximum of the row's valid columns, Σ_{j≠y} exp(x_j − maximum), and x_y (0 where the target is
    not in these columns)."""

    row_max: Tensor
    others: Tensor
    target_logit: Tensor


def compute_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def row_statistics_reference(logits: Tensor, target: Tensor, vocab_first: int, valid: int) -> RowStatistics:
    """`RowStatistics` of (rows, width) logits of which the first `valid` columns are vocabulary.

    They are fp64 for fp64 logits.
    """
    x = logits[:, :valid].to(compute_type(logits))
    row_max = x.max(-1).values if valid else x.new_full((x.shape[0],), LOWEST)
    return RowStatistics(row_max, *exp_target_reference(logits, row_max, target, vocab_first, valid))


def exp_target_reference(
    logits: Tensor, row_max: Tensor, target: Tensor, vocab_first: int, valid: int
) -> tuple[Tensor, Tensor]:
    x = logits[:, :valid].to(compute_type(logits))
    chosen = torch.arange(valid, device=x.device)[None, :] == (target - vocab_first)[:, None]
    others = torch.where(chosen, 0.0, torch.exp(x - row_max[:, None])).sum(-1)
    return others, torch.where(chosen, x, 0.0).sum(-1)


def loss_and_gradient_reference(
    logits: Tensor, stats: RowStatistics, target: Tensor, weight: Tensor | None, scale: float, z_loss: float,
    vocab_first: int, valid: int, vocab_size: int, ignore_index: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(loss (rows,), gradient like logits)."""
    compute = compute_type(logits)
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
