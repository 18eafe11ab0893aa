"""Unit L + 1 as lines: the final norm, vocabulary-parallel logits and cross entropy, their gradients.

Three forms: the logits whole, overwritten by their gradient; in chunks of tokens, each with its forward and backward,
so that only a chunk's logits are ever alive; and Megatron-LM's, whose cross entropy is separate passes over fp32
logits. A maximum and a sum over the vocabulary's ranks lie between the parts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from compiler.units.builder import COLUMNS, MAXIMUM, PARTIAL, ROWS, UnitBuilder
from compiler.units.common import (
    norm_backward,
    norm_forward,
    norm_weights,
    reduce_backward,
    regather,
    weight_gradient,
    weight_gradient_bytes,
)
from compiler.units.shape import UnitShape
from program.lines import Inside, Unit, apply

HEAD, NORM = "head.weight", "head.norm"


@lru_cache(maxsize=32)
def head(shape: UnitShape, weight: str = HEAD) -> Unit:
    """The head; `weight` names its (possibly tied) table."""
    builder = UnitBuilder(shape)
    builder.rows("x")
    builder.tensor("targets", (shape.tokens,), "int64")
    builder.tensor("s:loss", (1,), shape.stat)
    builder.act("dy", shape.tokens, shape.hidden, at=PARTIAL)
    norm_weights(builder, NORM)
    table = builder.weight(weight, (shape.vocab, shape.hidden), ROWS)
    y = norm_forward(builder, "head.in", NORM, "x", "")
    if shape.loss_chunks > 1:
        _chunked(builder, y, table)
        output, dy = y, "dy"
    else:
        builder.act("logits", shape.tokens, shape.vocab, at=COLUMNS, dtype=shape.stat if shape.megatron else "")
        builder.stat("rowmax", shape.tokens, at=MAXIMUM)
        builder.stat("sums", 2, shape.tokens, at=PARTIAL)
        output, dy = "logits", (_megatron if shape.megatron else _whole)(builder, y, table)
    norm_backward(builder, "head.in", NORM, "", (dy, "x", None, "d0"))
    return builder.unit("x", output, ("d0",))


def _shard(builder: UnitBuilder, table: str) -> dict[str, Any]:
    """This rank's vocabulary: its first entry, and how many are no padding."""
    first = builder.tensors[table].offset(0)
    return {"first": first, "valid": Inside(first, builder.shape.vocab, builder.shape.whole_vocab)}


def _sum(builder: UnitBuilder, piece: str, name: str) -> None:
    """A maximum or a sum over the ranks that share the vocabulary."""
    if builder.shape.tp > 1:
        builder.move("F", "AR", piece, name, name, "max" if name == "rowmax" else "sum")


def _whole(builder: UnitBuilder, y: str, table: str) -> str:
    shape, shard = builder.shape, _shard(builder, table)
    logits = apply("gemm", f"{y} {table}", "logits", variant="nt")
    top = apply("ce_max", "logits", "rowmax", valid=shard["valid"])
    builder.forward("head.logits", logits, top, transient_bytes=0)
    _sum(builder, "head.logits", "rowmax")
    builder.forward("head.exp", apply("ce_exp", "logits rowmax targets", "sums", **shard), transient_bytes=0)
    _sum(builder, "head.exp", "sums")
    loss = apply("ce_loss", "logits rowmax sums targets s:loss", **shard, scale=shape.loss_scale)
    builder.forward("head.loss", loss, transient_bytes=0)
    y = regather(builder, "head.in", "")
    builder.backward("I", "head.logits", apply("gemm", f"logits {table}", "dy", variant="nn"), transient_bytes=0)
    dy = reduce_backward(builder, "head.in", "dy")
    products = weight_gradient(builder, "logits", y, table)
    builder.backward("W", "head.logits", *products, transient_bytes=0)
    return dy


def _chunked(builder: UnitBuilder, y: str, table: str) -> None:
    """It stands in the backward, where its weight gradient belongs; whole vocabulary on every rank."""
    shape, shard = builder.shape, _shard(builder, table)
    rows, width = shape.tokens // shape.loss_chunks, shape.hidden
    lines = [apply("empty_like", y, "dy")]
    for chunk in range(shape.loss_chunks):
        logits, top, sums = f"logits.{chunk}", f"rowmax.{chunk}", f"sums.{chunk}"
        builder.act(logits, rows, shape.vocab, at=COLUMNS)
        builder.stat(top, rows, at=MAXIMUM)
        builder.stat(sums, 2, rows, at=PARTIAL)
        some, dy = (
            builder.window(f"{n}.{chunk}", n, (rows, width), (width, 1), chunk * rows * width) for n in (y, "dy")
        )
        targets = builder.window(f"targets.{chunk}", "targets", (rows,), (1,), chunk * rows)
        lines += [
            apply("gemm", f"{some} {table}", logits, variant="nt"),
            apply("ce_max", logits, top, valid=shard["valid"]),
            apply("ce_exp", f"{logits} {top} {targets}", sums, **shard),
            apply("ce_loss", f"{logits} {top} {sums} {targets} s:loss", **shard, scale=shape.loss_scale),
            apply("gemm_out", f"{logits} {table} {dy}", variant="nn"),
            apply("gemm_add", f"{logits} {some} g{table[1:]}"),
        ]
    builder.backward("B", "head.fused", *lines, transient_bytes=builder.tensors["logits.0"].bytes)


def _megatron(builder: UnitBuilder, y: str, table: str) -> str:
    """Logits cast to fp32, their maximum taken off, exponentiated, divided (Megatron-LM's
    `vocab_parallel_cross_entropy` without the fused kernel), the fp32 softmax kept, its gradient cast back."""
    shape, shard = builder.shape, _shard(builder, table)
    builder.act("logits16", shape.tokens, shape.vocab, at=COLUMNS)
    builder.act("dlogits", shape.tokens, shape.vocab, at=COLUMNS)
    builder.stat("target", shape.tokens, at=PARTIAL)
    builder.forward(
        "head.logits",
        apply("gemm", f"{y} {table}", "logits16", variant="nt"),
        apply("cast", "logits16", "logits", dtype=shape.stat),
        apply("ce_max", "logits", "rowmax", valid=shard["valid"]),
        transient_bytes=0,
    )
    _sum(builder, "head.logits", "rowmax")
    builder.forward(
        "head.exp",
        apply("shift_rows", "logits rowmax"),
        apply("exponentiate", "logits targets", "target", **shard),
        apply("row_sums", "logits target", "sums"),
        transient_bytes=0,
    )
    _sum(builder, "head.exp", "sums")
    builder.forward(
        "head.loss",
        apply("hold", "logits16 rowmax"),
        apply("softmax_loss", "logits sums targets s:loss", **shard, scale=shape.loss_scale),
        transient_bytes=0,
    )
    y = regather(builder, "head.in", "")
    builder.backward(
        "I",
        "head.logits",
        apply("scale", "logits", factor=shape.loss_scale),
        apply("cast", "logits", "dlogits", dtype=shape.dtype),
        apply("gemm", f"dlogits {table}", "dy", variant="nn"),
        transient_bytes=0,
    )
    products, bytes_ = weight_gradient(builder, "dlogits", y, table), weight_gradient_bytes(builder, table)
    dy = "dy" if shape.serial else reduce_backward(builder, "head.in", "dy")
    builder.backward("W", "head.logits", *products, transient_bytes=bytes_)
    return reduce_backward(builder, "head.in", "dy") if shape.serial else dy
