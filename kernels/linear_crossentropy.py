"""The language-model head and its loss without the logits: chunks of rows, gradients formed in the same pass.

For each chunk of rows: logitsᵀ = W·xᵀ; the column kernels turn them into the loss and, in place, into their gradient;
dx = dlogits·W; dW += dlogitsᵀ·x. The weight gradient accumulates in fp32 (a bf16 accumulator would round at every
chunk), straight into the caller's main gradient when it is given. Logits lie transposed, (vocabulary, rows): dW's
product then transposes no operand, and logits and dW have the words for rows alike.

A chunk is as large as BUFFER_BYTES allows, because thin chunks make thin products: 2,048 rows for a vocabulary of
128,256 in bf16. A weight gradient of the call's own is as good as such a buffer until it is written: its row of one
word, 4·hidden bytes of fp32, holds the logits of 2·hidden rows in bf16. So the first chunk may be that large and costs
no buffer but a margin: logits start one block of words below the gradient, and each block of dW is written over logits
that are used up. Every product of that chunk runs once, and dW is written once.

Losses are normalised by the caller's `scale`, 1 / (valid tokens of the whole step), so accumulation and data
parallelism need no correction. The logits' gradients are stored in x's type: in fp16 `scale` has to hold the loss
scale too, or they fall below its range. A row's upstream gradient must be known in the forward (`row_weight`): applied
afterwards it could not reach dW.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kernels.crossentropy import IGNORE_INDEX
from kernels.crossentropy_columns import check_vocabulary, cross_entropy_columns
from kernels.launch import KernelArgumentError, cdiv, check_float, check_tensor, processors

Tensor = torch.Tensor

BUFFER_BYTES = 512 * 2**20
"""Largest logits buffer, unless one tile of ROW_TILE rows is larger."""
ROW_TILE = 128
"""Rows of a product's tile; buffers are a multiple of it wide, so that lines of logits begin at cache lines."""
LINE = 16
"""The column kernels load 16 bytes a thread when their rows are a multiple of this."""
COLUMN_TILE = 256
"""The other side of a product's tile (cuBLAS on Hopper)."""


class LinearCrossEntropy(NamedTuple):
    loss: Tensor  # fp32 (rows,), unscaled; 0 where ignored
    dx: Tensor | None  # gradient of scale·Σ row_weight·loss, like x
    dweight: Tensor | None  # its weight gradient, fp32 (fp64 for fp64): new, or the main gradient with it added


def rows_per_chunk(rows: int, vocab: int, item_bytes: int, buffer_bytes: int = BUFFER_BYTES) -> int:
    """Rows of one chunk: a multiple of ROW_TILE whose logits fit `buffer_bytes`, chunks as equal as tiles allow."""
    most = max(ROW_TILE, buffer_bytes // max(1, vocab * item_bytes) // ROW_TILE * ROW_TILE)
    chunks = max(1, cdiv(rows, most))
    return max(1, min(rows, cdiv(cdiv(rows, chunks), ROW_TILE) * ROW_TILE))


def rows_inside(rows: int, chunk: int, hidden: int, dtype: torch.dtype, grad_type: torch.dtype) -> int:
    """Rows whose logits a new weight gradient holds, where that makes a larger chunk than a buffer would, or the only
    one; else 0."""
    held = min(rows, hidden * grad_type.itemsize // dtype.itemsize)
    return held if held == rows or held > chunk else 0


def words_per_block(vocab: int, hidden: int, device: torch.device) -> int:
    """Words of one block of dW, about a sixteenth of them, such that a product's tiles come out in whole waves over
    the multiprocessors, or nearly."""
    wide, every = cdiv(hidden, COLUMN_TILE), processors(device)
    most = max(1, cdiv(vocab, 12 * ROW_TILE))

    def used(tiles: int) -> float:
        return tiles * wide / (cdiv(tiles * wide, every) * every)

    return ROW_TILE * max(range(max(1, cdiv(vocab, 20 * ROW_TILE)), most + 1), key=lambda tiles: (used(tiles), -tiles))


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
    out = torch.empty_like(into)  # an operator that is told its output does not heed autocast
    product = torch.mm(a.to(into.dtype), b.to(into.dtype), out=out)
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
) -> LinearCrossEntropy:
    """Loss and gradients of rows x (rows, hidden) against weight (vocab, hidden) and target int64 (rows,).

    weight_grad: fp32 (vocab, hidden) to add into; without it dweight is new, and its storage a block of words longer
    than it where it held logits. gradient=False: the loss alone; weight_grad is left as it is. Peak memory beyond
    arguments and results: one logits buffer of `chunk_rows` × vocab (`rows_per_chunk` when None), and none where a new
    dweight holds all logits.
    """
    _check(x, weight, target, row_weight, vocab_size, weight_grad)
    if chunk_rows is not None and chunk_rows < 1:
        raise KernelArgumentError(f"chunk_rows is {chunk_rows}; accepted: 1 or more, or None")
    numbers: dict[str, Any] = {"scale": scale, "z_loss": z_loss, "vocab_size": vocab_size, "ignore_index": ignore_index}
    row_weight = None if row_weight is None else row_weight.detach()
    head = _Head(x.detach(), weight.detach(), target.contiguous(), row_weight, gradient, numbers)
    rows, vocab = x.shape[0], weight.shape[0]
    chunk = max(1, min(rows, chunk_rows or rows_per_chunk(rows, vocab, x.dtype.itemsize)))
    done, dweight = 0, weight_grad if gradient else None
    if gradient and weight_grad is None:
        done = 0 if chunk_rows else rows_inside(rows, chunk, x.shape[1], x.dtype, head.loss.dtype)
        dweight = head.new_weight_gradient(done)
    head.chunks(done, chunk, dweight, add=weight_grad is not None)
    return LinearCrossEntropy(head.loss, head.dx, dweight if gradient else None)


class _Head:
    """One call: its arguments, and the results as they fill."""

    __slots__ = ("dx", "gradient", "loss", "numbers", "row_weight", "target", "weight", "x")

    def __init__(
        self, x: Tensor, weight: Tensor, target: Tensor, row_weight: Tensor | None, gradient: bool,
        numbers: dict[str, Any],
    ) -> None:  # fmt: skip
        self.x, self.weight, self.target, self.row_weight = x, weight, target, row_weight
        self.gradient, self.numbers = gradient, numbers
        loss_type = torch.float64 if x.dtype == torch.float64 else torch.float32
        self.loss = torch.empty(x.shape[0], dtype=loss_type, device=x.device)
        self.dx = torch.empty_like(x) if gradient else None

    def chunk(self, part: slice, logits: Tensor) -> None:
        """Losses and dx of rows `part`. `logits` (vocab, rows of part or more) is left as their gradient; what it has
        beyond the part stays free of meaning."""
        rows = part.stop - part.start
        torch.mm(self.weight, self.x[part].t(), out=logits[:, :rows])
        target, row_weight = self.target[part], None if self.row_weight is None else self.row_weight[part].contiguous()
        if logits.shape[1] > rows:  # whole lines of logits, so that a program's loads are wide
            fill = logits.shape[1] - rows
            target = torch.nn.functional.pad(target, (0, fill), value=self.numbers["ignore_index"])
            row_weight = None if row_weight is None else torch.nn.functional.pad(row_weight, (0, fill))
        loss = cross_entropy_columns(logits, target, row_weight=row_weight, gradient=self.gradient, **self.numbers)
        self.loss[part] = loss[:rows]
        if self.dx is not None:
            torch.mm(logits[:, :rows].t(), self.weight, out=self.dx[part])

    def chunks(self, done: int, chunk: int, dweight: Tensor | None, *, add: bool) -> None:
        """Rows from `done` on, through one buffer; dweight is added to when `add` or when it holds the rows before."""
        rows = self.x.shape[0]
        if done == rows:
            return
        lines = cdiv(min(chunk, rows - done), ROW_TILE) * ROW_TILE
        buffer = torch.empty((self.weight.shape[0], lines), dtype=self.x.dtype, device=self.x.device)
        for first in range(done, rows, chunk):
            part = slice(first, min(first + chunk, rows))
            logits = buffer[:, : min(lines, cdiv(part.stop - first, LINE) * LINE)]
            self.chunk(part, logits)
            if dweight is not None:
                used = logits[:, : part.stop - first]
                accumulate_product(dweight, used, self.x[part], add=add or first > 0)

    def new_weight_gradient(self, inside: int) -> Tensor:
        """dW of the first `inside` rows, whose logits its own memory holds; uninitialised for none."""
        (vocab, hidden), rows = self.weight.shape, self.x.shape[0]
        margin = words_per_block(vocab, hidden, self.x.device) if inside else 0
        make = torch.empty if rows else torch.zeros
        memory = make((vocab + margin, hidden), dtype=self.loss.dtype, device=self.x.device)
        dweight = memory[:vocab]
        if inside:
            held = memory.view(self.x.dtype)[margin:]
            logits = held[:, : min(held.shape[1], cdiv(inside, LINE) * LINE)]
            self.chunk(slice(0, inside), logits)
            for word in range(0, vocab, margin):
                block = slice(word, min(word + margin, vocab))
                accumulate_product(dweight[block], logits[block, :inside], self.x[:inside], add=False)
        return dweight


def linear_cross_entropy_reference(
    x: Tensor, weight: Tensor, target: Tensor, scale: float, row_weight: Tensor | None, ignore_index: int = IGNORE_INDEX
) -> LinearCrossEntropy:
    """The same by PyTorch's autograd over whole logits, in the inputs' type: the specification."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ weight.t(), target, reduction="none", ignore_index=ignore_index)
    upstream = torch.ones_like(loss) if row_weight is None else row_weight.to(loss.dtype)
    dx, dweight = torch.autograd.grad((loss * upstream).sum() * scale, (x, weight))
    return LinearCrossEntropy(loss.detach(), dx, dweight)


def _check(
    x: Tensor, weight: Tensor, target: Tensor, row_weight: Tensor | None, vocab_size: int | None,
    weight_grad: Tensor | None,
) -> None:  # fmt: skip
    check_float("x", x)
    check_tensor("x", x, shape=(None, None))
    check_tensor("weight", weight, dtypes=(x.dtype,), shape=(None, x.shape[1]), device=x.device)
    check_tensor("target", target, dtypes=(torch.int64, torch.int32), shape=(x.shape[0],), device=x.device)
    if row_weight is not None:
        check_float("row_weight", row_weight)
        check_tensor("row_weight", row_weight, shape=(x.shape[0],), device=x.device)
    check_vocabulary(vocab_size, weight.shape[0])
    if weight_grad is not None:
        check_tensor(
            "weight_grad", weight_grad, dtypes=(torch.float32, torch.float64), shape=weight.shape, device=x.device
        )
        if not weight_grad.is_contiguous():
            raise KernelArgumentError(f"weight_grad has strides {weight_grad.stride()}; accepted: contiguous")
