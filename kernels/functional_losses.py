"""The losses as differentiable operators (`kernels/glue.py`): cross entropy by rows, and the head with its loss.

The head is opaque to a compiler: traced, its loop would be unrolled into the graph and its one buffer lost.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import crossentropy, linear_crossentropy
from kernels.glue import launcher, operator
from kernels.launch import KernelArgumentError

Tensor = torch.Tensor


@operator("cross_entropy")
def _cross_entropy(logits: Tensor, target: Tensor, z_loss: float, ignore_index: int) -> tuple[Tensor, Tensor]:
    loss, gradient = crossentropy.cross_entropy(
        logits, target, z_loss=z_loss, ignore_index=ignore_index, launcher=launcher()
    )
    assert gradient is not None
    return loss, gradient


def _cross_entropy_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], inputs[1])
    ctx.ignore_index = inputs[3]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # else zeros as large as the logits would stand for the gradient of the gradient


def _cross_entropy_autograd(ctx: Any, kept: tuple[Tensor, ...], dloss: Tensor | None, _: Any) -> tuple[Any, ...]:
    """An ignored row has no gradient, whatever arrives for it (0/0 where all are ignored)."""
    if dloss is None:
        return (None,) * 4
    gradient, target = kept
    used = (target != ctx.ignore_index) & (target >= 0) & (target < gradient.shape[1])
    return (gradient * torch.where(used, dloss, 0.0)[:, None]).to(gradient.dtype), None, None, None


_cross_entropy.differentiable(_cross_entropy_setup, _cross_entropy_autograd)


def cross_entropy(
    logits: Tensor, target: Tensor, *, z_loss: float = 0.0, ignore_index: int = crossentropy.IGNORE_INDEX
) -> Tensor:
    """Loss of each row, fp32 (rows,), 0 where ignored; any upstream gradient. Reduce it with your own token count."""
    return _cross_entropy(logits, target, z_loss, ignore_index)[0]


@operator("linear_cross_entropy", opaque=True)
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, scale: float, z_loss: float, ignore_index: int, chunk_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, dx, dweight). In fp16 the gradients are unscaled: 1 / tokens would push them below its range, where no
    loss scale that arrives later finds them."""
    inner = 1.0 if x.dtype == torch.float16 else scale
    result = linear_crossentropy.linear_cross_entropy(
        x, weight, target, scale=inner, z_loss=z_loss, ignore_index=ignore_index, chunk_rows=chunk_rows or None
    )
    assert result.dx is not None
    assert result.dweight is not None
    return result.loss.sum() * scale, result.dx, result.dweight


@_linear_cross_entropy.registered.register_fake
def _linear_shapes(
    x: Tensor, weight: Tensor, target: Tensor, scale: float, z_loss: float, ignore_index: int, chunk_rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty((), dtype=wide), torch.empty_like(x), weight.new_empty(weight.shape, dtype=wide)


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.weight_type = inputs[1].dtype
    ctx.scale = inputs[3] if inputs[0].dtype == torch.float16 else 1.0
    ctx.save_for_backward(output[1], output[2])
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)  # else zeros as large as the weight would be made for every backward


def _linear_autograd(ctx: Any, kept: tuple[Tensor, ...], dloss: Tensor | None, _dx: Any, _dw: Any) -> tuple[Any, ...]:
    if dloss is None:
        return (None,) * 7
    dx, dweight = kept
    dloss = dloss * ctx.scale
    return (dx * dloss).to(dx.dtype), (dweight * dloss).to(ctx.weight_type), *([None] * 5)


_linear_cross_entropy.differentiable(_linear_setup, _linear_autograd)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    tokens: int,
    reduction: str = "mean",
    z_loss: float = 0.0,
    ignore_index: int = crossentropy.IGNORE_INDEX,
    chunk_rows: int = 0,
) -> Tensor:
    """Scalar loss, differentiable. reduction "mean" divides by `tokens`, the valid tokens of the whole step (0 counts
    as 1); or "sum".

    "none" is refused: a gradient for each row arriving after the forward cannot be applied to the weight gradient any
    more; give it to `linear_crossentropy.linear_cross_entropy(row_weight=…)`.
    """
    if reduction not in ("mean", "sum"):
        raise KernelArgumentError(
            f"reduction is {reduction!r}; accepted: 'mean', 'sum' (per-row upstream gradients go in row_weight)"
        )
    scale = 1.0 / max(1, tokens) if reduction == "mean" else 1.0
    return _linear_cross_entropy(x, weight, target, scale, z_loss, ignore_index, chunk_rows)[0]
