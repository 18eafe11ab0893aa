"""What units share: norms, sums over tensor-parallel ranks, gathers of sequence parallelism, weight gradients."""

from __future__ import annotations

from collections.abc import Callable

from compiler.units.builder import ROWS, UnitBuilder
from program.kinds import Phase
from program.lines import Apply, apply

SITE_EMBED, SITE_ATTENTION, SITE_MLP, SITE_PROBABILITIES = range(4)


def norm_weights(builder: UnitBuilder, base: str) -> None:
    """Declare a norm's parameters."""
    for name, init in (("weight", "ones"),) if builder.shape.rms else (("weight", "ones"), ("bias", "zeros")):
        builder.weight(f"{base}.{name}", (builder.shape.hidden,), init=init)


def _norm(builder: UnitBuilder, base: str, suffix: str) -> tuple[str, str, str, str]:
    """(operator's stem, weights, gradients, statistics) of a norm, each by spaces."""
    rms = builder.shape.rms
    words = ("weight",) if rms else ("weight", "bias")
    weights, gradients = (" ".join(f"{kind}:{base}.{word}" for word in words) for kind in "wg")
    stats = f"rstd{suffix}" if rms else f"rstd{suffix} mean{suffix}"
    return "rmsnorm" if rms else "layernorm", weights, gradients, stats


def norm_line(builder: UnitBuilder, base: str, source: str, suffix: str, result: str) -> Apply:
    """A norm of `source`, its statistics declared."""
    stem, weights, _, stats = _norm(builder, base, suffix)
    for name in stats.split():
        builder.stat(name, builder.shape.local_tokens, at=builder.stream)
    return apply(f"{stem}_forward", f"{source} {weights}", f"{result} {stats}", eps=builder.shape.norm_eps)


def norm_forward(builder: UnitBuilder, piece: str, base: str, source: str, suffix: str) -> str:
    """norm, then the all-gather of sequence parallelism; returns the name the core reads."""
    y = builder.rows(f"y{suffix}")
    builder.forward(piece, norm_line(builder, base, source, suffix, y))
    return gather_forward(builder, piece, y, suffix)


def gather_forward(builder: UnitBuilder, piece: str, y: str, suffix: str) -> str:
    """The all-gather of sequence parallelism before a core."""
    if not builder.shape.sequence_parallel:
        return y
    full = builder.gathered(f"y{suffix}f", y, builder.shape.tokens, ())
    builder.move("F", "AG", piece, y, full)
    return full


def norm_backward_line(builder: UnitBuilder, base: str, suffix: str, names: tuple[str, str, str | None, str]) -> Apply:
    """names: gradient of the norm's output, its input, the residual gradient (None: there is none), the result, which
    is declared."""
    dy, x, residual, dx = names
    stem, weights, gradients, stats = _norm(builder, base, suffix)
    args = f"{dy} {x} {stats} {weights.split()[0]} {residual or '-'} {gradients}"
    return apply(f"{stem}_backward", args, builder.rows(dx))


def norm_backward(
    builder: UnitBuilder, piece: str, base: str, suffix: str, names: tuple[str, str, str | None, str]
) -> None:
    """The instruction of `norm_backward_line`."""
    builder.backward("B", piece, norm_backward_line(builder, base, suffix, names))


def reduce_forward(builder: UnitBuilder, piece: str, z: str) -> str:
    """The sum over tensor-parallel ranks that follows a row-parallel product."""
    return _reduce(builder, "F", piece, z)


def reduce_backward(builder: UnitBuilder, piece: str, dy: str) -> str:
    """The sum of the input gradient over tensor-parallel ranks; it runs beside the weight gradients."""
    return _reduce(builder, "B", piece, dy)


def _reduce(builder: UnitBuilder, phase: Phase, piece: str, name: str) -> str:
    """Summed in place, or under sequence parallelism each rank's rows of the sum; returns the name of the sum."""
    shape = builder.shape
    if shape.tp == 1:
        return name
    if not shape.sequence_parallel:
        builder.move(phase, "AR", piece, name, name)
        return name
    reduced = builder.gathered(f"{name}r", name, shape.local_tokens, ROWS)
    builder.move(phase, "RS", piece, name, reduced)
    return reduced


def regather(builder: UnitBuilder, piece: str, suffix: str, source: str = "") -> str:
    """The core's input (`source`; else the norm's result) for its weight gradient: gathered again under sequence
    parallelism, else the saved one."""
    source = source or f"y{suffix}"
    if not builder.shape.sequence_parallel:
        return source
    full = builder.gathered(f"y{suffix}g", source, builder.shape.tokens, ())
    builder.move("W", "AG", piece, source, full)
    return full


def sum_beside(builder: UnitBuilder, piece: str, dy: str, weight_gradients: Callable[[], None]) -> str:
    """The sum of an input gradient is begun before the weight gradients, to run beside them; in autograd's order it
    comes after. Returns the name of the sum."""
    if builder.shape.serial:
        weight_gradients()
        return reduce_backward(builder, piece, dy)
    summed = reduce_backward(builder, piece, dy)
    weight_gradients()
    return summed


def weight_gradient(a: str, b: str, weight: str) -> Apply:
    """A weight gradient aᵀ b, added to the main gradient inside the product."""
    return apply("gemm_add", f"{a} {b} g{weight[1:]}")
