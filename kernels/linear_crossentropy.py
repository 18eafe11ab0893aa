"""The language-model head and its loss without the logits: chunks of rows, gradients formed in the same pass.

For each chunk of rows: logits = x·Wᵀ into one reused buffer; the row kernel turns them into the loss and, in place,
into their gradient; dx = dlogits·W; dW += dlogitsᵀ·x. The weight gradient accumulates in fp32 (a
bf16 accumulator would round at every chunk), straight into the caller's main gradient when it is given; without one,
the first chunk writes a new fp32 tensor instead of adding to zeros.

The chunk is as large as BUFFER_BYTES allows, because thin chunks make thin GEMMs: 2,048 rows for a vocabulary of
128,256 in bf16. Losses are normalised by the caller's `scale`, 1 / (valid tokens of the whole step), so accumulation
and data parallelism need no correction. A row's upstream gradient must be known in the forward (`row_weight`):
applied afterwards it could not reach dW.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.crossentropy import IGNORE_INDEX, cross_entropy
from kernels.direct import Launcher, direct
from kernels.launch import KernelArgumentError, cdiv, check_float, check_tensor

Tensor = torch.Tensor

BUFFER_BYTES = 512 * 2**20
"""Largest logits buffer, unless one tile of ROW_TILE rows is larger."""
ROW_TILE = 128


class LinearCrossEntropy(NamedTuple):
    loss: Tensor  # fp32 (rows,), unscaled; 0 where ignored
    dx: Tensor | None  # gradient of scale·Σ row_weight·loss, like x
    dweight: Tensor | None  # its weight gradient, fp32 (fp64 for fp64): new, or the main gradient with it added


def rows_per_chunk(rows: int, vocab: int, item_bytes: int, buffer_bytes: int = BUFFER_BYTES) -> int:
    """Rows of one chunk: a multiple of ROW_TILE whose logits fit `buffer_bytes`, chunks as equal as tiles allow."""
    most = max(ROW_TILE, buffer_bytes // max(1, vocab * item_bytes) // ROW_TILE * ROW_TILE)
    chunks = max(1, cdiv(rows, most))
    return max(1, min(rows, cdiv(cdiv(rows, chunks), ROW_TILE) * ROW_TILE))


def accumulate_product(into: Tensor, a: Tensor, b: Tensor, *, add: bool) -> Tensor:
    """into (fp32) = a·b, plus itself when `add`: one GEMM with fp32 output on CUDA, the operands widened elsewhere."""
    if into.dtype == a.dtype:
        return torch.addmm(into, a, b, out=into) if add else torch.mm(a, b, out=into)
    if a.is_cuda:
        aten = torch.ops.aten
        return (
            aten.addmm.dtype_out(into, a, b, into.dtype, out=into)
            if add
            else aten.mm.dtype_out(a, b, into.dtype, out=into)
        )
    product = torch.mm(a.to(into.dtype), b.to(into.dtype))
    return into.add_(product) if add else into.copy_(product)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    scale: float = 1.0,
    row_weight: Tensor | None = None,
    z_loss: float = 0.0,
    vocab_size: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    weight_grad: Tensor | None = None,
    gradient: bool = True,
    chunk_rows: int | None = None,
    launcher: Launcher = direct,
) -> LinearCrossEntropy:
    """Loss and gradients of rows x (rows, hidden) against weight (vocab, hidden) and target int64 (rows,).

    weight_grad: fp32 (vocab, hidden) to add into. gradient=False: the loss alone. Peak memory beyond arguments and
    results: one logits buffer of `chunk_rows` × vocab (`rows_per_chunk` when None).
    """
    _check(x, weight, target, weight_grad)
    if chunk_rows is not None and chunk_rows < 1:
        raise KernelArgumentError(f"chunk_rows is {chunk_rows}; accepted: 1 or more, or None")
    x, weight = x.detach(), weight.detach()  # gradients are results here, not autograd's
    rows, vocab = x.shape[0], weight.shape[0]
    chunk = chunk_rows or rows_per_chunk(rows, vocab, x.dtype.itemsize)
    grad_type = torch.float64 if x.dtype == torch.float64 else torch.float32
    loss = torch.empty(rows, dtype=grad_type, device=x.device)
    dx = torch.empty_like(x) if gradient else None
    dweight = weight_grad
    if gradient and dweight is None:
        make = torch.empty if rows else torch.zeros
        dweight = make((vocab, x.shape[1]), dtype=grad_type, device=x.device)
    buffer = torch.empty((min(chunk, rows), vocab), dtype=x.dtype, device=x.device)
    for first in range(0, rows, chunk):
        part = slice(first, min(first + chunk, rows))
        x_part, logits = x[part], buffer[: part.stop - part.start]
        torch.mm(x_part, weight.t(), out=logits)
        loss_part, _ = cross_entropy(
            logits, target[part], scale=scale, z_loss=z_loss,
            row_weight=None if row_weight is None else row_weight[part], vocab_size=vocab_size,
            ignore_index=ignore_index, in_place=True, gradient=gradient, launcher=launcher,
        )  # fmt: skip
        loss[part] = loss_part
        if gradient:
            assert dx is not None
            assert dweight is not None
            torch.mm(logits, weight, out=dx[part])
            accumulate_product(dweight, logits.t(), x_part, add=first > 0 or weight_grad is not None)
    return LinearCrossEntropy(loss, dx, dweight if gradient else None)


def linear_cross_entropy_reference(
    x: Tensor, weight: Tensor, target: Tensor, scale: float, row_weight: Tensor | None, ignore_index: int = IGNORE_INDEX
) -> LinearCrossEntropy:
    """The same by PyTorch's autograd over whole logits, in the inputs' type: the specification."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ weight.t(), target, reduction="none", ignore_index=ignore_index)
    upstream = torch.ones_like(loss) if row_weight is None else row_weight.to(loss.dtype)
    dx, dweight = torch.autograd.grad((loss * upstream).sum() * scale, (x, weight))
    return LinearCrossEntropy(loss.detach(), dx, dweight)


def _check(x: Tensor, weight: Tensor, target: Tensor, weight_grad: Tensor | None) -> None:
    check_float("x", x)
    check_tensor("x", x, shape=(None, None))
    check_tensor("weight", weight, dtypes=(x.dtype,), shape=(None, x.shape[1]), device=x.device)
    check_tensor("target", target, dtypes=(torch.int64, torch.int32), shape=(x.shape[0],), device=x.device)
    if weight_grad is not None:
        check_tensor(
            "weight_grad", weight_grad, dtypes=(torch.float32, torch.float64), shape=weight.shape, device=x.device
        )
        if not weight_grad.is_contiguous():
            raise KernelArgumentError(f"weight_grad has strides {weight_grad.stride()}; accepted: contiguous")
