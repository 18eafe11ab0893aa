"""Unit L + 1 as lines: the final norm, vocabulary-parallel logits and cross entropy, their gradients.

Two forms: the logits whole, overwritten by their gradient; and in chunks of tokens, each with its forward and backward,
so that only a chunk's logits are ever alive. A maximum and a sum over the vocabulary's ranks lie between the parts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from compiler.units.builder import COLUMNS, MAXIMUM, PARTIAL, ROWS, UnitBuilder
from compiler.units.common import (
    norm_backward,
    norm_forward,
    norm_weights,
    regather,
    sum_beside,
    weight_gradient,
)
from compiler.units.shape import UnitShape
from program.lines import Apply, Inside, Step, Unit, apply

HEAD, BIAS, NORM = "head.weight", "head.bias", "head.norm"


@lru_cache(maxsize=32)
def head(shape: UnitShape, weight: str = HEAD) -> Unit:
    """The head; `weight` names its (possibly tied) table."""
    builder = UnitBuilder(shape)
    builder.rows("x")
    builder.tensor("targets", (shape.tokens,), "int64")
    builder.tensor("s:loss", (1,), shape.stat)
    builder.act("dy", shape.tokens, shape.hidden, at=PARTIAL)
    norm_weights(builder, NORM)
    table = builder.weight(weight, (shape.vocab, shape.hidden), ROWS, used=shape.whole_vocab)
    if shape.head_bias:
        builder.weight(BIAS, (shape.vocab,), ROWS, "zeros", used=shape.whole_vocab)
    y = norm_forward(builder, "head.in", NORM, "x", "")
    if shape.loss_chunks > 1:
        _chunked(builder, y, table)
        output, dy = y, "dy"
    else:
        builder.act("logits", shape.tokens, shape.vocab, at=COLUMNS)
        builder.stat("rowmax", shape.tokens, at=MAXIMUM)
        builder.stat("sums", 2, shape.tokens, at=PARTIAL)
        output, dy = "logits", _whole(builder, y, table)
    norm_backward(builder, "head.in", NORM, "", (dy, "x", None, "d0"))
    return builder.unit("x", output, ("d0",))


def _shard(builder: UnitBuilder, table: str) -> dict[str, Any]:
    """This rank's vocabulary: its first entry, and how many are no padding."""
    first = builder.tensors[table].offset(0)
    return {"first": first, "valid": Inside(first, builder.shape.vocab, builder.shape.whole_vocab)}


class _Cap:
    """Logits that are capped in place, where the model does: what they were is kept over the loss, which overwrites
    them by its gradient."""

    def __init__(self, builder: UnitBuilder, logits: str) -> None:
        self.logits, self.cap = logits, builder.shape.logit_softcap
        self.kept = builder.act(f"{logits}.kept", *builder.tensors[logits].dims, at=COLUMNS) if self.cap else ""

    def forward(self) -> tuple[Apply, ...]:
        """After the product."""
        return (apply("softcap_forward", self.logits, cap=self.cap, scale=1.0),) if self.cap else ()

    def around(self, loss: Apply) -> tuple[Apply, ...]:
        """The loss, then the gradient before the cap."""
        if not self.cap:
            return (loss,)
        back = apply("softcap_backward", f"{self.logits} {self.kept}", cap=self.cap, scale=1.0)
        return apply("clone", self.logits, self.kept), loss, back


def _scales(shape: UnitShape) -> dict[str, object]:
    """What makes the loss a mean, and its gradient one that a narrow type holds."""
    times = {"times": Step("loss_scale")} if shape.scaled else {}
    return {"scale": shape.loss_scale, **times}


def _product(builder: UnitBuilder, y: str, table: str, logits: str) -> Apply:
    bias = f"w:{BIAS}" if builder.shape.head_bias else ""
    return apply("gemm", f"{y} {table} {bias}", logits, variant="nt")


def _weight_gradients(builder: UnitBuilder, logits: str, y: str, table: str) -> tuple[Apply, ...]:
    bias = (apply("bias_grad", f"{logits} g:{BIAS}"),) if builder.shape.head_bias else ()
    return weight_gradient(logits, y, table), *bias


def _sum(builder: UnitBuilder, piece: str, name: str) -> None:
    """A maximum or a sum over the ranks that share the vocabulary."""
    if builder.shape.tp > 1:
        builder.move("F", "AR", piece, name, name, "max" if name == "rowmax" else "sum")


def _whole(builder: UnitBuilder, y: str, table: str) -> str:
    shape, shard = builder.shape, _shard(builder, table)
    logits = _product(builder, y, table, "logits")
    top = apply("ce_max", "logits", "rowmax", valid=shard["valid"])
    capped = _Cap(builder, "logits")
    builder.forward("head.logits", logits, *capped.forward(), top)
    _sum(builder, "head.logits", "rowmax")
    builder.forward("head.exp", apply("ce_exp", "logits rowmax targets", "sums", **shard))
    _sum(builder, "head.exp", "sums")
    loss = apply("ce_loss", "logits rowmax sums targets s:loss", **shard, **_scales(shape))
    builder.forward("head.loss", *capped.around(loss))
    y = regather(builder, "head.in", "")
    builder.backward("I", "head.logits", apply("gemm", f"logits {table}", "dy", variant="nn"))
    products = _weight_gradients(builder, "logits", y, table)
    return sum_beside(builder, "head.in", "dy", lambda: builder.backward("W", "head.logits", *products))


def _chunked(builder: UnitBuilder, y: str, table: str) -> None:
    """It stands in the backward, where its weight gradient belongs; whole vocabulary on every rank."""
    shape, shard = builder.shape, _shard(builder, table)
    rows, width = shape.tokens // shape.loss_chunks, shape.hidden
    lines = [apply("empty", y, "dy", size=builder.tensors["dy"].dims)]
    for chunk in range(shape.loss_chunks):
        logits, top, sums = f"logits.{chunk}", f"rowmax.{chunk}", f"sums.{chunk}"
        builder.act(logits, rows, shape.vocab, at=COLUMNS)
        capped = _Cap(builder, logits)
        builder.stat(top, rows, at=MAXIMUM)
        builder.stat(sums, 2, rows, at=PARTIAL)
        some, dy = (
            builder.window(f"{n}.{chunk}", n, (rows, width), (width, 1), chunk * rows * width) for n in (y, "dy")
        )
        targets = builder.window(f"targets.{chunk}", "targets", (rows,), (1,), chunk * rows)
        lines += [
            _product(builder, some, table, logits),
            *capped.forward(),
            apply("ce_max", logits, top, valid=shard["valid"]),
            apply("ce_exp", f"{logits} {top} {targets}", sums, **shard),
            *capped.around(apply("ce_loss", f"{logits} {top} {sums} {targets} s:loss", **shard, **_scales(shape))),
            apply("gemm_out", f"{logits} {table} {dy}", variant="nn"),
            *_weight_gradients(builder, logits, some, table),
        ]
    builder.backward("B", "head.fused", *lines)
