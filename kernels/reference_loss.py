"""Plain torch references of vocabulary-parallel cross entropy and of the AdamW step.

Cross entropy runs in three parts with a reduction over tensor-parallel ranks between them: maximum, sum of exponentials
and target logit, loss. The sum leaves the target's column out: the gradient of a confident row is then −others/total
and not a difference that loses its digits. A rank holds vocabulary `first` … `first + columns − 1`, of which the first
`valid` are real; padding takes no probability, zero gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.reference import compute_type

Tensor = torch.Tensor
LOWEST = -3.0e38  # of a row without a valid column: finite, so that differences stay finite

# ---------------------------------------------------------------- cross entropy


def ce_max(logits: Tensor, valid: int) -> Tensor:
    """(rows,): maximum over the valid columns, in the computing type."""
    if valid == 0:
        return torch.full((logits.shape[0],), LOWEST, dtype=compute_type(logits), device=logits.device)
    return logits[:, :valid].amax(-1).to(compute_type(logits))


def ce_exp(logits: Tensor, row_max: Tensor, targets: Tensor, first: int, valid: int) -> Tensor:
    """(2, rows): Σ exp(x_j − maximum) over valid columns other than the target's; the target's logit (0 where it is
    another rank's)."""
    x = logits[:, :valid].to(row_max.dtype)
    sums = torch.zeros((2, logits.shape[0]), dtype=row_max.dtype, device=logits.device)
    if valid == 0:
        return sums
    inside, column = local_targets(targets, first, valid)
    e = torch.exp(x - row_max[:, None])
    e.scatter_(1, column, torch.where(inside, torch.zeros_like(e[:, :1]), e.gather(1, column)))
    sums[0] = e.sum(-1)
    sums[1] = torch.where(inside, x.gather(1, column), torch.zeros_like(sums[1])[:, None])[:, 0]
    return sums


def ce_loss(
    logits: Tensor,
    row_max: Tensor,
    sums: Tensor,
    targets: Tensor,
    loss: Tensor,
    first: int,
    valid: int,
    scale: float,
    times: Tensor | None = None,
) -> Tensor:
    """Logits become times · scale · their gradient, in place; loss (1,) += scale · Σ over rows of −log p(target).
    Returns the logits."""
    others, target = sums[0], sums[1]
    total = others + torch.exp(target - row_max)
    lse = row_max + torch.log(total)
    share = (targets >= 0).to(lse.dtype) * scale  # of each row; a negative target is ignored: no loss, no gradient
    loss.add_(((lse - target) * share).sum())
    if times is not None:
        share = share * times
    logits[:, valid:] = 0
    if valid:
        inside, column = local_targets(targets, first, valid)
        gradient = torch.exp(logits[:, :valid].to(lse.dtype) - lse[:, None]) * share[:, None]
        at_target = (-others / total * share)[:, None]
        gradient.scatter_(1, column, torch.where(inside, at_target, gradient.gather(1, column)))
        logits[:, :valid] = gradient.to(logits.dtype)
    return logits


def ce_columns(
    logits: Tensor, targets: Tensor, loss: Tensor, valid: int, scale: float, times: Tensor | None = None
) -> Tensor:
    """The three parts in one, of logits of a whole vocabulary that lie transposed, (columns, rows): they become
    times · scale · their gradient, and loss (1,) grows. Returns the logits."""
    rows = logits.t()
    row_max = ce_max(rows, valid)
    sums = ce_exp(rows, row_max, targets, 0, valid)
    ce_loss(rows, row_max, sums, targets, loss, 0, valid, scale, times)
    return logits


def local_targets(targets: Tensor, first: int, valid: int) -> tuple[Tensor, Tensor]:
    """(rows, 1): whether the target is among the valid columns, and its column (0 where not)."""
    local = (targets - first)[:, None]
    inside = (local >= 0) & (local < valid)
    return inside, local.where(inside, torch.zeros_like(local))


# ---------------------------------------------------------------- optimizer


def not_finite(stats: Tensor) -> Tensor:
    """(): 1 where any of some sums is infinite or no number, else 0, fp32; stays on the device."""
    return (stats * 0.0).sum().ne_(0.0).to(torch.float32)  # 0 times either is no number, which is not equal to 0


def clip_coefficient(sum_of_squares: Tensor, max_norm: float, times: Tensor | None = None) -> Tensor:
    """What gradients are multiplied by so that their norm is at most `max_norm` (0: no clipping); stays on the device.
    The gradients are `times` what the sum is of."""
    if max_norm <= 0:
        found = torch.ones_like(sum_of_squares)
    else:
        found = (max_norm / (sum_of_squares.sqrt() + 1e-6)).clamp_(max=1.0)
    return found if times is None else found.div_(times)


def adamw(
    master: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    coefficient: Tensor,
    weight: Tensor | None = None,
    found_inf: Tensor | None = None,
    decayed: Sequence[tuple[int, int]] = (),
    *,
    lr: float | Tensor = 1e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    step: int | Tensor = 1,
) -> None:
    """One AdamW step (Loshchilov and Hutter 2019) of flat tensors (n,), in place, in a single fused pass.

    The gradient is first multiplied by `coefficient` (0-d), in place. `decayed` lists the [start, end) stretches that
    weight decay applies to. `weight` receives a copy in its own type when it is not the master itself. `step` counts
    from 1. Where `found_inf` (0-d, fp32, on the same device) is 1, nothing but the gradient changes.
    """
    scale = None
    if master.dtype == torch.float64:  # the fused pass reads its scale in fp32, which would cost fp64 runs their digits
        grad.mul_(coefficient)
    else:
        scale = coefficient.reciprocal().to(torch.float32)
    kept = complement(decayed, master.numel())
    for stretches, decay in ((decayed, weight_decay), (kept, 0.0)):
        if stretches:
            p, g, m, v = ([t[a:b] for a, b in stretches] for t in (master, grad, exp_avg, exp_avg_sq))
            steps = [torch.full((), float(step), device=master.device) for _ in stretches]
            torch._fused_adamw_(
                p,
                g,
                m,
                v,
                [],
                steps,
                lr=float(lr),
                beta1=betas[0],
                beta2=betas[1],
                weight_decay=decay,
                eps=eps,
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
                found_inf=found_inf,
            )
    if weight is not None and weight.data_ptr() != master.data_ptr():
        weight.copy_(master)


def complement(stretches: Sequence[tuple[int, int]], n: int) -> list[tuple[int, int]]:
    """The stretches of [0, n) between the given ones."""
    edges = [0, *(edge for stretch in stretches for edge in stretch), n]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
