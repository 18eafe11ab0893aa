"""Unit 0 as lines: vocabulary-parallel lookup and its sum, then its scale, positions, embedding norm and dropout where
there are any."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from compiler.units.builder import PARTIAL, ROWS, UnitBuilder
from compiler.units.common import SITE_EMBED, norm_backward_line, norm_line, norm_weights, reduce_forward
from compiler.units.shape import UnitShape
from program.lines import Draw, Unit, apply

TABLE, POSITIONS, NORM = "embed.tokens.weight", "embed.positions.weight", "embed.norm"


@lru_cache(maxsize=32)
def embedding(shape: UnitShape) -> Unit:
    """The embedding. Rows of tokens outside the local vocabulary are zero; the sum over ranks fills them."""
    builder = UnitBuilder(shape)
    builder.tensor("tokens", (shape.tokens,), "int64")
    builder.act("x0", shape.tokens, shape.hidden, at=PARTIAL)
    builder.rows("d2")
    table = builder.weight(TABLE, (shape.vocab, shape.hidden), ROWS, used=shape.whole_vocab)
    first = builder.tensors[table].offset(0)
    builder.forward("embed", apply("embedding_forward", f"tokens {table}", "x0", first=first))
    output, gradient = reduce_forward(builder, "embed", "x0"), "d2"
    # A gather slot cannot hold the residual stream: under sequence parallelism embed.out copies it out.
    if shape.learned or shape.embedding_norm or shape.dropout or shape.sequence_parallel or shape.embedding_scale != 1:
        normed = _out_forward(builder, output)
        output, gradient = "x2", _out_backward(builder, normed)
    if shape.sequence_parallel:
        full = builder.gathered("dx0f", gradient, shape.tokens, ())
        builder.move("B", "AG", "embed", gradient, full)
        gradient = full
    builder.backward("W", "embed", apply("embedding_backward", f"{gradient} tokens g:{TABLE}", first=first))
    return builder.unit("tokens", output)


def _draw(builder: UnitBuilder) -> dict[str, Any]:
    d2, dropout = builder.tensors["d2"], builder.shape.dropout
    return {"mask": Draw(dropout, SITE_EMBED, d2.dims, d2.offset(0))} if dropout else {}


def _out_forward(builder: UnitBuilder, x0: str) -> str:
    """x0 → x2, which is never x0 itself [, the norm's statistics]; returns the name of the norm's input."""
    shape, draw = builder.shape, _draw(builder)
    steps = ["scale"] * (shape.embedding_scale != 1) + ["position"] * shape.learned
    steps += ["norm"] * shape.embedding_norm + ["dropout"] * bool(draw)
    names = {"scale": "xs", "position": "xn" if shape.embedding_norm else "xp", "norm": "xm", "dropout": "x2"}
    if steps:
        names[steps[-1]] = "x2"
    lines, x, normed = [], x0, ""
    for step in steps:
        name = builder.rows(names[step])
        if step == "scale":
            lines.append(apply("scaled", x, name, factor=shape.embedding_scale))
        elif step == "position":
            table = builder.weight(POSITIONS, (shape.max_positions, shape.hidden))
            first = builder.tensors["d2"].offset(0)
            lines.append(apply("position_forward", f"{x} {table}", name, first=first, batch=shape.batch))
        elif step == "norm":
            norm_weights(builder, NORM)
            if builder.tensors[x].gathered:  # a slot cannot keep it for the backward
                lines.append(apply("clone", x, builder.rows("xn")))
                x = "xn"
            normed = x
            lines.append(norm_line(builder, NORM, x, "0", name))
        else:  # a mask and no residual: one read, one write, like the backward of an add with dropout
            lines.append(apply("add_backward", f"{x} -", name, **draw))
        x = name
    if not steps:
        lines.append(apply("clone", x0, builder.rows("x2")))
    builder.forward("embed.out", *lines)
    return normed


def _out_backward(builder: UnitBuilder, normed: str) -> str:
    """Returns the name of the gradient that leaves it."""
    shape, draw, d, lines = builder.shape, _draw(builder), "d2", []
    if draw:
        name = builder.rows("d2.kept" if shape.embedding_norm else "dx0")
        lines.append(apply("add_backward", f"{d} -", name, **draw))
        d = name
    if shape.embedding_norm:
        lines.append(norm_backward_line(builder, NORM, "0", (d, normed, None, "dx0")))
        d = "dx0"
    if shape.learned:
        first = builder.tensors["d2"].offset(0)
        lines.append(apply("position_backward", f"{d} g:{POSITIONS}", first=first, batch=shape.batch))
    if shape.embedding_scale != 1:
        lines.append(apply("scaled", d, builder.rows("ds"), factor=shape.embedding_scale))
        d = "ds"
    if lines:
        builder.backward("B", "embed.out", *lines)
    return d
