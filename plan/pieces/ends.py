"""The two ends of the model as pieces: the vocabulary-parallel embedding, and the head with its cross entropy."""

from __future__ import annotations

from plan.pieces.shapes import Extents
from plan.pieces.sheet import (
    Sheet,
    gemm,
    norm_backward,
    norm_call,
    norm_forward,
    norm_names,
    norm_stats,
    reduce_backward,
    reduce_forward,
    regather,
    sum_beside,
    weight_products,
)
from plan.pieces.unit import TensorSpec, Unit, Work
from plan.program import DTYPE_BYTES, KernelCall


def embedding(e: Extents) -> Unit:
    """Unit 0: vocabulary-parallel lookup, its sum, then positions, embedding norm and dropout where there are any."""
    sheet = Sheet(e)
    sheet.tensors["tokens"] = TensorSpec((e.tokens,), "int64")
    sheet.act("x0", e.tokens, e.hidden)
    sheet.act("d2", e.local_tokens, e.hidden)
    table = "embed.tokens.weight"
    look = (KernelCall("embedding_forward", (e.tokens, e.hidden, e.vocab), e.dtype),)
    sheet.forward.append(Work("F", "F", "embed", ("tokens", f"w:{table}"), ("x0",), look))
    output = reduce_forward(sheet, "embed", "x0")
    gradient = "d2"
    # A gather slot cannot hold the residual stream: under sequence parallelism embed.out copies it out.
    if e.learned or e.embedding_norm or e.dropout or e.sequence_parallel:
        gradient = _embedding_out(sheet, output)
        output = "x2"
    if e.sequence_parallel:
        sheet.gathered("dx0f", e.tokens, e.hidden)
        sheet.move("B", "AG", "embed", gradient, "dx0f")
        gradient = "dx0f"
    scatter: tuple[KernelCall, ...] = (KernelCall("embedding_backward", (e.tokens, e.hidden, e.vocab), e.dtype),)
    transient = 0
    if e.gradients == "added":  # autograd scatters into zeros of the table's size, then adds these
        table_size = e.vocab * e.hidden
        scatter = (KernelCall("fill", (table_size,), e.dtype), *scatter, KernelCall("add", (table_size,), e.dtype))
        transient = table_size * DTYPE_BYTES[e.dtype]
    sheet.backward.append(
        Work("W", "W", "embed", (gradient, "tokens", f"g:{table}"), (f"g:{table}",), scatter, transient)
    )
    return Unit(0, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors, source="tokens", output=output)


def _embedding_out(sheet: Sheet, x0: str) -> str:
    """Positions, embedding norm and dropout; returns the name of the gradient that leaves it backward."""
    e = sheet.e
    sheet.act("x2", e.local_tokens, e.hidden)
    sheet.act("dx0", e.local_tokens, e.hidden)
    weights, gradients = norm_names(e, "embed.norm") if e.embedding_norm else ((), ())
    stats = norm_stats(sheet, "0") if e.embedding_norm else ()
    positions = ("embed.positions.weight",) if e.learned else ()
    shape = (e.local_tokens, e.hidden)
    forward = [KernelCall("position_forward", shape, e.dtype)] if e.learned else []
    backward = [KernelCall("position_backward", shape, e.dtype)] if e.learned else []
    if e.embedding_norm:
        forward.append(norm_call(e, "forward", e.local_tokens))
        backward.append(norm_call(e, "backward", e.local_tokens))
    if e.dropout:
        # A mask and no residual: one read, one write, like the backward of an add with dropout.
        forward.append(KernelCall("add_backward", shape, e.dtype, "dropout"))
        backward.append(KernelCall("add_backward", shape, e.dtype, "dropout"))
    kept = (sheet.act("xn", e.local_tokens, e.hidden),) if e.embedding_norm else ()
    reads = (x0, *(f"w:{p}" for p in positions), *weights)
    calls = tuple(forward) or (KernelCall("copy", (e.local_tokens * e.hidden,), e.dtype),)
    sheet.forward.append(Work("F", "F", "embed.out", reads, ("x2", *stats, *kept), calls))
    gradients = (*gradients, *(f"g:{p}" for p in positions))
    moves = e.embedding_norm or e.dropout
    if not gradients and not moves:
        return "d2"
    saved = (*kept, *stats, weights[0]) if e.embedding_norm else ()
    results = ("dx0",) if moves else ()
    reads, writes = ("d2", *saved, *gradients), (*results, *gradients)
    sheet.backward.append(Work("B", "B", "embed.out", reads, writes, tuple(backward)))
    return "dx0" if moves else "d2"


def head(e: Extents, weight: str) -> Unit:
    """Unit L+1: final norm, vocabulary-parallel logits and cross entropy. `weight` names the (possibly tied) table."""
    if e.loss_chunks > 1:
        return _chunked_head(e, weight)
    if e.megatron:
        return _megatron_head(e, weight)
    sheet = Sheet(e)
    sheet.act("x", e.local_tokens, e.hidden)
    sheet.tensors["targets"] = TensorSpec((e.tokens,), "int64")
    sheet.act("logits", e.tokens, e.vocab)
    sheet.stat("rowmax", e.tokens)
    sheet.stat("sums", 2, e.tokens)
    sheet.act("dy", e.tokens, e.hidden)
    y = norm_forward(sheet, "head.in", "head.norm", "x", "")
    shape = (e.tokens, e.vocab)
    product = (gemm(e, e.tokens, e.vocab, e.hidden, "nt"), KernelCall("ce_max", shape, e.dtype))
    sheet.forward.append(Work("F", "F", "head.logits", (y, f"w:{weight}"), ("logits", "rowmax"), product))
    if e.tp > 1:
        sheet.move("F", "AR", "head.logits", "rowmax", "rowmax", "max")
    exp = (KernelCall("ce_exp", shape, e.dtype),)
    sheet.forward.append(Work("F", "F", "head.exp", ("logits", "rowmax", "targets"), ("sums",), exp))
    if e.tp > 1:
        sheet.move("F", "AR", "head.exp", "sums", "sums")
    loss = (KernelCall("ce_loss", shape, e.dtype),)
    reads = ("logits", "rowmax", "sums", "targets", "s:loss")
    sheet.forward.append(Work("F", "F", "head.loss", reads, ("logits", "s:loss"), loss))

    y = regather(sheet, "head.in", "")
    back = (gemm(e, e.tokens, e.hidden, e.vocab, "nn"),)
    sheet.backward.append(Work("B", "I", "head.logits", ("logits", f"w:{weight}"), ("dy",), back))
    dy = reduce_backward(sheet, "head.in", "dy")
    grad = (gemm(e, e.vocab, e.hidden, e.tokens, "tn+acc32"),)
    sheet.backward.append(Work("W", "W", "head.logits", ("logits", y, f"g:{weight}"), (f"g:{weight}",), grad))
    norm_backward(sheet, "head.in", "head.norm", "", (dy, "x", None, "d0"))
    return Unit(-1, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors, output="logits")


def _chunked_head(e: Extents, weight: str) -> Unit:
    """The head with its loss in chunks of tokens: one pass forward and backward a chunk, so that only a chunk's logits
    are ever alive. It stands in the backward, where its weight gradient belongs; whole vocabulary on every rank."""
    sheet, chunks = Sheet(e), e.loss_chunks
    rows = e.tokens // chunks
    sheet.act("x", e.local_tokens, e.hidden)
    sheet.tensors["targets"] = TensorSpec((e.tokens,), "int64")
    sheet.act("dy", e.tokens, e.hidden)
    y = norm_forward(sheet, "head.in", "head.norm", "x", "")
    shape = (rows, e.vocab)
    calls = (
        gemm(e, rows, e.vocab, e.hidden, "nt"),
        *(KernelCall(op, shape, e.dtype) for op in ("ce_max", "ce_exp", "ce_loss")),
        gemm(e, rows, e.hidden, e.vocab, "nn"),
        gemm(e, e.vocab, e.hidden, rows, "tn+acc32"),
    )
    reads = (y, f"w:{weight}", "targets", "s:loss", f"g:{weight}")
    transient = rows * e.vocab * DTYPE_BYTES[e.dtype]
    sheet.backward.append(
        Work("B", "B", "head.fused", reads, ("dy", "s:loss", f"g:{weight}"), calls * chunks, transient)
    )
    norm_backward(sheet, "head.in", "head.norm", "", ("dy", "x", None, "d0"))
    return Unit(-1, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors, output=y)


def _megatron_head(e: Extents, weight: str) -> Unit:
    """Megatron-LM's head: logits cast to fp32, a cross entropy of separate passes (subtract, exponentiate, divide; its
    `vocab_parallel_cross_entropy` without the fused kernel), the fp32 softmax kept, its gradient cast back."""
    sheet = Sheet(e)
    sheet.act("x", e.local_tokens, e.hidden)
    sheet.tensors["targets"] = TensorSpec((e.tokens,), "int64")
    sheet.act("logits16", e.tokens, e.vocab)
    sheet.act("logits", e.tokens, e.vocab, e.stat)
    sheet.act("dlogits", e.tokens, e.vocab)
    sheet.stat("rowmax", e.tokens)
    sheet.stat("sums", 2, e.tokens)
    sheet.act("dy", e.tokens, e.hidden)
    size, shape = (e.tokens * e.vocab,), (e.tokens, e.vocab)
    sweep = KernelCall("copy", size, e.stat)  # one pass in and out over the fp32 logits
    up, down = (KernelCall("copy", size, e.dtype, v) for v in (f"{e.dtype}->{e.stat}", f"{e.stat}->{e.dtype}"))
    top = KernelCall("ce_max", shape, e.stat)
    y = norm_forward(sheet, "head.in", "head.norm", "x", "")
    product = (gemm(e, e.tokens, e.vocab, e.hidden, "nt"), up, top)
    results = ("logits16", "logits", "rowmax")
    sheet.forward.append(Work("F", "F", "head.logits", (y, f"w:{weight}"), results, product))
    if e.tp > 1:
        sheet.move("F", "AR", "head.logits", "rowmax", "rowmax", "max")
    passes = (sweep, sweep, KernelCall("ce_exp", shape, e.stat))
    sheet.forward.append(Work("F", "F", "head.exp", ("logits", "rowmax", "targets"), ("sums",), passes))
    if e.tp > 1:
        sheet.move("F", "AR", "head.exp", "sums", "sums")
    reads = ("logits16", "logits", "rowmax", "sums", "targets", "s:loss")
    sheet.forward.append(Work("F", "F", "head.loss", reads, ("logits", "s:loss"), (sweep,)))

    y = regather(sheet, "head.in", "")
    back = (sweep, down, gemm(e, e.tokens, e.hidden, e.vocab, "nn"))
    sheet.backward.append(Work("B", "I", "head.logits", ("logits", f"w:{weight}"), ("dlogits", "dy"), back))
    grad, transient = weight_products(e, (e.vocab, e.hidden, e.tokens))
    weights = Work("W", "W", "head.logits", ("dlogits", y, f"g:{weight}"), (f"g:{weight}",), grad, transient)
    dy = sum_beside(sheet, ("head.in", "dy"), weights)
    norm_backward(sheet, "head.in", "head.norm", "", (dy, "x", None, "d0"))
    return Unit(-1, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors, output="logits")
