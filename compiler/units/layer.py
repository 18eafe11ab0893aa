"""A transformer layer: norms, residual additions, and the collectives of tensor and sequence parallelism around its
attention (`compiler.units.attention`) and feed-forward (`compiler.units.mlp`)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from compiler.units.attention import Attention
from compiler.units.builder import UnitBuilder, renamed
from compiler.units.common import (
    SITE_ATTENTION,
    SITE_MLP,
    norm_backward,
    norm_forward,
    norm_weights,
    reduce_backward,
    reduce_forward,
    regather,
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
    return Unit(number, unit.tensors, forward, backward, unit.source, unit.output)


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
    dy = _sum_beside(builder, "mlp.in", "dy2", mlp, dz, y)
    norm_backward(builder, "mlp.in", "@.mlp.norm", "2", (dy, "x1", "d2", "d1"))
    dz = _out_backward(builder, "attn.out", attention.out_bias, "d1", "dz1")
    y = regather(builder, "attn.in", "1")
    attention.input_gradient(dz)
    dy = _sum_beside(builder, "attn.in", "dy1", attention, dz, y)
    norm_backward(builder, "attn.in", "@.attn.norm", "1", (dy, "x", "d1", "d0"))
    return builder.unit("x", "x2", ("d0",))


def _sum_beside(builder: UnitBuilder, piece: str, dy: str, core: Attention | Mlp, dz: str, y: str) -> str:
    """The sum of an input gradient is begun before the weight gradients, to run beside them; in autograd's order it
    comes after."""
    if builder.shape.serial:
        core.weight_gradient(dz, y)
        return reduce_backward(builder, piece, dy)
    summed = reduce_backward(builder, piece, dy)
    core.weight_gradient(dz, y)
    return summed


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
    shape, draw = builder.shape, _draw(builder, piece)
    builder.rows(out)
    lines = [apply("add", f"{residual} {z} {bias or ''}", out, **draw)]
    if shape.megatron and draw:  # Megatron-LM stores the mask, a byte an element; ours is made again from its counter
        builder.act(f"mask.{out}", shape.local_tokens, shape.hidden, at=builder.stream, dtype="uint8")
        lines.append(apply("store_mask", out, f"mask.{out}", priced=False, **draw))
    builder.forward(piece, *lines, transient_bytes=0)


def _out_backward(builder: UnitBuilder, piece: str, bias: str | None, gradient: str, dz: str) -> str:
    """Backward of the residual branch: dropout mask and bias gradient, then the gather of sequence parallelism."""
    shape, draw, branch = builder.shape, _draw(builder, piece), gradient
    grad = "-" if bias is None else f"g{bias[1:]}"
    if draw:
        branch = builder.rows(dz)
    if draw and shape.megatron:
        priced = "bias+dropout" if bias else "dropout"
        stored = apply("drop_stored", f"{gradient} mask.x{dz[-1]}", dz, priced=False, p=shape.dropout)
        builder.backward(
            "B", piece, stored, apply("add_backward", f"{dz} {grad}", "-", stand_in=priced), transient_bytes=0
        )
    elif bias or draw:
        result = dz if draw else "-"
        builder.backward("B", piece, apply("add_backward", f"{gradient} {grad}", result, **draw), transient_bytes=0)
    if not shape.sequence_parallel:
        return branch
    full = builder.gathered(f"{dz}f", branch, shape.tokens, ())
    builder.move("B", "AG", piece, branch, full)
    return full
