"""A transformer layer: norms, residual additions, and the collectives of tensor and sequence parallelism around its
attention (`compiler.units.attention`) and feed-forward (`compiler.units.mlp`)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from compiler.units.attention import Attention
from compiler.units.builder import UnitBuilder, renamed
from compiler.units.common import (
    SITE_ATTENTION,
    SITE_MLP,
    norm_backward,
    norm_forward,
    norm_weights,
    reduce_forward,
    regather,
    sum_beside,
)
from compiler.units.mlp import Mlp
from compiler.units.shape import UnitShape
from program.lines import Draw, Unit, apply


def layer(shape: UnitShape, number: int, cut: bool = False) -> Unit:
    """A transformer layer as unit `number` (1…L); `cut` splits `attn.core` for selective recompute."""
    unit = _layer(shape, cut)
    forward, backward = (
        tuple(renamed(p, f"layers.{number - 1}") for p in parts) for parts in (unit.forward, unit.backward)
    )
    weights = {name.replace("@", f"layers.{number - 1}"): weight for name, weight in unit.weights.items()}
    return Unit(number, unit.tensors, forward, backward, unit.source, unit.output, weights)


@lru_cache(maxsize=32)
def _layer(shape: UnitShape, cut: bool) -> Unit:
    builder = UnitBuilder(shape)
    for name in ("x", "d2"):
        builder.rows(name)
    attention, mlp = Attention(builder, "@.attn", cut), Mlp(builder, "@.mlp")
    norm_weights(builder, "@.attn.norm")
    norm_weights(builder, "@.mlp.norm")

    attention.forward(norm_forward(builder, "attn.in", "@.attn.norm", "x", "1"))
    _out_forward(builder, "attn.out", attention.out_bias, ("x", reduce_forward(builder, "attn.out", "z1"), "x1"))
    mlp.forward(norm_forward(builder, "mlp.in", "@.mlp.norm", "x1", "2"))
    _out_forward(builder, "mlp.out", mlp.out_bias, ("x1", reduce_forward(builder, "mlp.out", "z2"), "x2"))

    dz = _out_backward(builder, "mlp.out", mlp.out_bias, "d2", "dz2")
    y = regather(builder, "mlp.in", "2")
    mlp.input_gradient(dz)
    dy = sum_beside(builder, "mlp.in", "dy2", partial(mlp.weight_gradient, dz, y))
    norm_backward(builder, "mlp.in", "@.mlp.norm", "2", (dy, "x1", "d2", "d1"))
    dz = _out_backward(builder, "attn.out", attention.out_bias, "d1", "dz1")
    y = regather(builder, "attn.in", "1")
    attention.input_gradient(dz)
    dy = sum_beside(builder, "attn.in", "dy1", partial(attention.weight_gradient, dz, y))
    norm_backward(builder, "attn.in", "@.attn.norm", "1", (dy, "x", "d1", "d0"))
    return builder.unit("x", "x2", ("d0",))


def _site(piece: str) -> int:
    return SITE_ATTENTION if piece == "attn.out" else SITE_MLP


def _draw(builder: UnitBuilder, piece: str) -> dict[str, Any]:
    """Dropout of the residual stream, where there is any."""
    x = builder.tensors["x"]
    dropout = builder.shape.dropout
    return {"mask": Draw(dropout, _site(piece), x.dims, x.offset(0))} if dropout else {}


def _out_forward(builder: UnitBuilder, piece: str, bias: str | None, names: tuple[str, str, str]) -> None:
    """Residual add with the row bias and dropout. names: residual, summed product, result."""
    residual, z, out = names
    line = apply("add", f"{residual} {z} {bias or ''}", builder.rows(out), **_draw(builder, piece))
    builder.forward(piece, line)


def _out_backward(builder: UnitBuilder, piece: str, bias: str | None, gradient: str, dz: str) -> str:
    """Backward of the residual branch: dropout mask and bias gradient, then the gather of sequence parallelism."""
    shape, draw, branch = builder.shape, _draw(builder, piece), gradient
    grad = "-" if bias is None else f"g{bias[1:]}"
    if draw:
        branch = builder.rows(dz)
    if bias or draw:
        result = dz if draw else "-"
        builder.backward("B", piece, apply("add_backward", f"{gradient} {grad}", result, **draw))
    if not shape.sequence_parallel:
        return branch
    full = builder.gathered(f"{dz}f", branch, shape.tokens, ())
    builder.move("B", "AG", piece, branch, full)
    return full
