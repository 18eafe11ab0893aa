"""Cross entropy over a row of logits: the fused row kernel, and its parts for a vocabulary split over ranks.

    m = max_j x_j      others = Σ_{j≠y} exp(x_j − m)      d = others + exp(x_y − m)
    lse = m + log d    loss = lse − x_y + λ·lse²
    gradient_j = scale·(1 + 2λ·lse)·exp(x_j − lse)  for j ≠ y
    gradient_y = scale·(−others/d + 2λ·lse·exp(x_y − lse))

The sum leaves the target out, so that the gradient of a confident row (p_y → 1) is −others/d and not the
difference 1 − 1 that loses every digit. The first pass keeps a running maximum and sum in fp32; the second overwrites
the logits with the gradient (or writes to `out`).

A vocabulary-parallel loss calls `row_max`, then `exp_target` after the all-reduce of the maximum, on its columns,
reduces, and calls `cross_entropy(stats=…)`. Targets are global indices; a rank holds columns
vocab_first … vocab_first + width − 1; columns from `vocab_size` on are padding: they take no probability and get zero
gradient. A row whose target is `ignore_index`, or lies outside 0 … vocab_size − 1, is ignored: loss 0, gradient 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kernels.crossentropy_kernels import cross_entropy_kernel, exp_target_kernel, row_max_kernel
from kernels.crossentropy_reference import (
    LOWEST,
    RowStatistics,
    compute_type,
    exp_target_reference,
    loss_and_gradient_reference,
    row_statistics_reference,
)
from kernels.direct import Launch, checked_once
from kernels.launch import (
    KernelArgumentError,
    check_apart,
    check_float,
    check_output,
    check_tensor,
    new_like,
    next_power_of_2,
    row_stride,
    use_triton,
)
from kernels.written import written

Tensor = torch.Tensor
IGNORE_INDEX = -100


class RowConfig(NamedTuple):
    block: int
    warps: int


CONFIG = RowConfig(2048, 8)


# ---------------------------------------------------------------- plain functions


def row_max(logits: Tensor, *, vocab_first: int = 0, vocab_size: int | None = None) -> Tensor:
    """fp32 (rows,): maximum over this rank's vocabulary columns."""
    launch, rows, valid, _ = _part((logits, None, None), "maximum", vocab_first, vocab_size)
    if launch is None:
        x = logits[:, :valid].to(compute_type(logits))
        return x.max(-1).values if valid else x.new_full((x.shape[0],), LOWEST)
    out = logits.new_empty(rows, dtype=torch.float32)
    launch((logits, out))
    return out


def exp_target(
    logits: Tensor, maximum: Tensor, target: Tensor, *, vocab_first: int = 0, vocab_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """(others, target_logit), fp32 (rows,), against the global row maximum; both are summed over the ranks."""
    launch, _, valid, _ = _part((logits, target, maximum), "exp_target", vocab_first, vocab_size)
    if launch is None:
        return exp_target_reference(logits, maximum, target, vocab_first, valid)
    others, target_logit = torch.empty_like(maximum), torch.empty_like(maximum)
    launch((logits, maximum, target, others, target_logit))
    return others, target_logit


_PARTS = {"maximum": row_max_kernel, "exp_target": exp_target_kernel}


class _Checked(NamedTuple):
    launch: Launch | None  # None: the reference
    rows: int
    valid: int  # vocabulary columns among the logits'
    total: int  # global vocabulary


@checked_once
def _part(
    logits: Tensor, target: Tensor | None, maximum: Any, part: str, vocab_first: int,
    vocab_size: int | None,
) -> _Checked:  # fmt: skip
    """One of _PARTS; its numbers are the logits' stride and valid columns, then vocab_first where there are targets."""
    valid, total = _check(logits, target, vocab_first, vocab_size)
    rows, width = logits.shape
    if not use_triton(logits):
        return _Checked(None, rows, valid, total)
    if part == "exp_target":
        fp32 = (torch.float32,)
        check_tensor("maximum", maximum, dtypes=fp32, shape=(rows,), device=logits.device, contiguous=True)
    block, warps = _config(width)
    numbers = logits.stride(0), valid, *(() if part == "maximum" else (vocab_first,))
    launch = Launch(_PARTS[part], (rows,), numbers, {"BLOCK": block, "num_warps": warps})
    return _Checked(launch, rows, valid, total)


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
    config: RowConfig | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(loss fp32 (rows,), gradient of scale·Σ row_weight·loss with respect to the logits, or None).

    `stats`: reduced over the ranks when the vocabulary is split; formed here when None (then vocab_first must be 0).
    The losses are unscaled: their sum times `scale` (1 / global tokens) is the mean. The gradient goes to `out`, over
    the logits (`in_place`), or to a new tensor. row_weight: (rows,) upstream gradient of each row's loss.
    """
    launch, rows, valid, total = _cross_entropy(
        (logits, target, row_weight, out, *(stats or _NO_STATS)),
        stats is not None, vocab_first, vocab_size, ignore_index, in_place, gradient, config,
    )  # fmt: skip
    if out is not None:
        check_apart("out", out, "logits", logits)
    if launch is None:
        given = stats if stats is not None else row_statistics_reference(logits, target, vocab_first, valid)
        loss, grad = loss_and_gradient_reference(
            logits, given, target, row_weight, scale, z_loss, vocab_first, valid, total, ignore_index
        )
        if not gradient:
            return loss, None
        return loss, out.copy_(grad) if out is not None else logits.copy_(grad) if in_place else grad
    loss = logits.new_empty(rows, dtype=torch.float32)
    if not gradient or in_place:
        out = logits
    elif out is None:
        out = new_like(logits)
    launch((logits, out, target, row_weight, *(stats or _NO_STATS), loss), (float(scale), float(z_loss)))
    if gradient:
        written(out)
    return loss, out if gradient else None


_NO_STATS = None, None, None


@checked_once
def _cross_entropy(
    logits: Tensor, target: Tensor, row_weight: Tensor | None, out: Tensor | None,
    row_max: Any, others: Any, target_logit: Any,
    has_stats: bool, vocab_first: int, vocab_size: int | None, ignore_index: int, in_place: bool, gradient: bool,
    config: RowConfig | None,
) -> _Checked:  # fmt: skip
    valid, total = _check(logits, target, vocab_first, vocab_size)
    stats = RowStatistics(row_max, others, target_logit) if has_stats else None
    _check_rows(logits, row_weight, stats, vocab_first, total, out, in_place)
    rows, width = logits.shape
    if not use_triton(logits):
        return _Checked(None, rows, valid, total)
    block, warps = config or _config(width)
    stride = logits.stride(0)
    out_stride = stride if not gradient or in_place else width if out is None else out.stride(0)
    constants = {
        "GIVEN": has_stats, "GRADIENT": gradient, "HAS_WEIGHT": row_weight is not None, "BLOCK": block,
        "num_warps": warps,
    }  # fmt: skip
    numbers = stride, out_stride, valid, width, vocab_first, total, ignore_index
    return _Checked(Launch(cross_entropy_kernel, (rows,), numbers, constants), rows, valid, total)


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
    if out is not None and in_place:
        raise KernelArgumentError("out is given and in_place is True; accepted: one of them, or neither")
    rows, device = (logits.shape[0],), logits.device
    if row_weight is not None:
        check_float("row_weight", row_weight)
        check_tensor("row_weight", row_weight, shape=rows, device=device, contiguous=True)
    for name, part in zip(RowStatistics._fields, stats or (), strict=False):
        check_tensor(name, part, dtypes=(compute_type(logits),), shape=rows, device=device, contiguous=True)
    if out is not None:
        check_tensor("out", out, dtypes=(logits.dtype,), shape=logits.shape, device=device)
        check_output("out", out)
    if in_place:
        check_output("logits", logits)


def _config(width: int) -> RowConfig:
    block = min(CONFIG.block, next_power_of_2(width))
    return RowConfig(block, CONFIG.warps) if block >= 2048 else RowConfig(block, 4)


def _check(logits: Tensor, target: Tensor | None, vocab_first: int, vocab_size: int | None) -> tuple[int, int]:
    """(vocabulary columns among the logits', global vocabulary)."""
    check_float("logits", logits)
    check_tensor("logits", logits, shape=(None, None))
    rows, width = logits.shape
    if target is not None:
        check_tensor("target", target, dtypes=(torch.int64, torch.int32), shape=(rows,), device=logits.device)
        if target.stride(0) != 1 and rows > 1:
            raise KernelArgumentError(
                f"target has stride {target.stride(0)}; accepted: contiguous (call .contiguous())"
            )
    if row_stride(logits) is None:
        raise KernelArgumentError(
            f"logits has strides {logits.stride()}; accepted: (rows, width) with unit stride along the width"
        )
    if vocab_size is not None and vocab_size < 1:
        raise KernelArgumentError(f"vocab_size is {vocab_size}; accepted: 1 or more, or None")
    total = vocab_size if vocab_size is not None else vocab_first + width
    return max(0, min(width, total - vocab_first)), total
