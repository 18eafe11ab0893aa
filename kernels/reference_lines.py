"""Torch references of the operators that move, mask, split or sum what others made, and of Megatron-LM's passes.

Signatures are those of `program.operators`: tensors in order, everything else by keyword. Results are fresh tensors of
their own; what an operator updates is an argument. Heads are (b, n, s, d) views of rows in (position, sample) order, or
contiguous (b·n, s, d) matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels import reference
from kernels.reference import compute_type
from kernels.reference_layer import Mask
from kernels.reference_loss import local_targets
from kernels.registry_inputs import DTYPES

Tensor = torch.Tensor

# ---------------------------------------------------------------- products


def gemm_out(a: Tensor, b: Tensor, out: Tensor, variant: str) -> Tensor:
    """A product (tn or nn) that overwrites `out`."""
    return torch.mm(a.t() if variant == "tn" else a, b, out=out)


def bmm_add(c: Tensor, a: Tensor, b: Tensor, variant: str) -> Tensor:
    """c += a bᵀ (nt) or a b for each of a batch."""
    return c.baddbmm_(a, b.transpose(1, 2) if variant == "nt" else b)


# ---------------------------------------------------------------- norms in separate passes


def rmsnorm_input_gradient(dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> Tensor:
    """dx alone."""
    unused = torch.zeros(x.shape[1], dtype=rstd.dtype, device=x.device)
    return reference.rmsnorm_backward(dy, x, rstd, weight, None, unused)


def rmsnorm_weight_gradient(dy: Tensor, x: Tensor, rstd: Tensor, weight_grad: Tensor) -> None:
    """weight_grad += Σ over rows of dy · x̂."""
    weight_grad.add_((dy.to(rstd.dtype) * x.to(rstd.dtype) * rstd[:, None]).sum(0))


def layernorm_input_gradient(dy: Tensor, x: Tensor, rstd: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """dx alone."""
    unused = (torch.zeros(x.shape[1], dtype=rstd.dtype, device=x.device) for _ in range(2))
    return reference.layernorm_backward(dy, x, rstd, mean, weight, None, *unused)


def layernorm_weight_gradient(
    dy: Tensor, x: Tensor, rstd: Tensor, mean: Tensor, weight_grad: Tensor, bias_grad: Tensor
) -> None:
    """weight_grad += Σ over rows of dy · x̂, bias_grad += Σ over rows of dy."""
    g = dy.to(rstd.dtype)
    weight_grad.add_((g * (x.to(rstd.dtype) - mean[:, None]) * rstd[:, None]).sum(0))
    bias_grad.add_(g.sum(0))


# ---------------------------------------------------------------- heads


def _flat(heads: Tensor) -> Tensor:
    return heads.clone(memory_format=torch.contiguous_format).view(-1, *heads.shape[2:])


def flat_heads(heads: Tensor, repeat: int = 1) -> Tensor:
    """Matrices (b·n·repeat, s, d) of (b, n, s, d)."""
    return _flat(heads if repeat == 1 else heads.repeat_interleave(repeat, 1))


def fold_heads(matrices: Tensor, repeat: int) -> Tensor:
    """Matrices of repeated heads (…·repeat, s, d) summed over the repeats."""
    return matrices.unflatten(0, (-1, repeat)).sum(1)


def rows_of(heads: Tensor) -> Tensor:
    """(b, n, s, d) as rows (s·b, n·d), in place where a kernel wrote them in that order."""
    return merge_heads(heads)


def merge_heads(o: Tensor, batch: int | None = None) -> Tensor:
    """(b, n, s, d), or matrices of `batch` samples, to rows (s·b, n·d)."""
    b, n, s, d = o.shape if batch is None else (batch, o.shape[0] // batch, *o.shape[1:])
    return o.view(b, n, s, d).permute(2, 0, 1, 3).contiguous().view(s * b, n * d)


def alibi_scores(table: Tensor, like: Tensor, batch: int) -> Tensor:
    """The bias (n, 1, s) of every sample and row: (b·n, s, s) in the type of `like`."""
    return table.to(like.dtype).expand(-1, table.shape[-1], -1).repeat(batch, 1, 1)


def alibi_add(scores: Tensor, table: Tensor) -> Tensor:
    """scores (b·n, s, s) += the bias (n, s, s)."""
    scores.view(-1, *table.shape).add_(table)
    return scores


# ---------------------------------------------------------------- dropout


def drop(x: Tensor, mask: Mask) -> Tensor:
    """x · mask / (1 − p)."""
    return mask.apply(x)


def drop_storing(x: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """(x · mask / (1 − p), the mask as Megatron-LM's layers keep it: a byte for each element, 1 where it is kept)."""
    return mask.apply(x), (mask.apply(torch.ones_like(x)) != 0).to(torch.uint8)


def add_storing(residual: Tensor, z: Tensor, bias: Tensor | None = None, *, mask: Mask) -> tuple[Tensor, Tensor]:
    """(residual + dropout(z + bias), the stored mask)."""
    wide = z.to(compute_type(z))
    dropped, kept = drop_storing(wide if bias is None else wide + bias.to(wide.dtype), mask)
    return (residual + dropped).to(residual.dtype), kept


def drop_stored(x: Tensor, stored: Tensor, p: float) -> Tensor:
    """x · mask / (1 − p) by a stored mask."""
    return x * stored * (1.0 / (1.0 - p))


# ---------------------------------------------------------------- a cross entropy of separate passes


def shift_rows(logits: Tensor, row_max: Tensor) -> Tensor:
    """logits −= their row's maximum."""
    return logits.sub_(row_max[:, None])


def exponentiate(logits: Tensor, targets: Tensor, first: int, valid: int) -> Tensor:
    """(rows,): the target's logit, 0 where it is another rank's; logits become their exponentials, padding 0."""
    inside, column = local_targets(targets, first, valid)
    target = torch.where(inside, logits.gather(1, column), torch.zeros_like(logits[:, :1]))[:, 0]
    logits.exp_()
    logits[:, valid:] = 0
    return target


def row_sums(logits: Tensor, target: Tensor) -> Tensor:
    """(2, rows): the sum of each row, and `target`."""
    return torch.stack((logits.sum(-1), target))


def softmax_loss(
    logits: Tensor, sums: Tensor, targets: Tensor, loss: Tensor, first: int, valid: int, scale: float
) -> Tensor:
    """Exponentials become softmax minus one at the target, 0 in rows whose target is negative; loss (1,) += scale · Σ
    over rows of −log p(target)."""
    share = (targets >= 0).to(sums.dtype)
    loss.add_(((sums[0].log() - sums[1]) * share).sum() * scale)
    inside, column = local_targets(targets, first, valid)
    logits.div_(sums[0][:, None])
    logits.scatter_add_(1, column, -inside.to(logits.dtype))
    return logits.mul_(share[:, None])


def scale(x: Tensor, factor: float, times: float | Tensor = 1.0) -> Tensor:
    """x *= factor · times."""
    return x.mul_(factor * times)


def scaled(x: Tensor, factor: float) -> Tensor:
    """x · factor."""
    return x * factor


# ---------------------------------------------------------------- flat tensors


def clone(x: Tensor) -> Tensor:
    """A copy of its own."""
    return x.clone(memory_format=torch.contiguous_format)


def cast(x: Tensor, dtype: str) -> Tensor:
    """A copy of its own in another type."""
    return x.to(DTYPES[dtype], copy=True)


def add_into(total: Tensor, x: Tensor) -> Tensor:
    """total += x."""
    return total.add_(x)


def statistics(
    found: Tensor, *reads: Tensor, weights: Sequence[float], share: float, times: Tensor | None = None
) -> Tensor:
    """found (2,) = Σ weight · sum of squares over the buckets, and this rank's share of the loss, which comes last. The
    squares are of `times` the gradient."""
    *sums, loss = reads
    found.zero_()
    for weight, sum_ in zip(weights, sums, strict=True):
        if weight:
            found[0].add_(sum_, alpha=weight)
    if times is not None:
        found[0].div_(times).div_(times)
    found[1].add_(loss[0], alpha=share)
    return found


def transfer(source: Tensor, target: Tensor) -> None:
    """target = source, between host and device; the host does not wait."""
    target.copy_(source, non_blocking=True)
