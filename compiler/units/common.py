"""What units share: norms, sums over tensor-parallel ranks, gathers of sequence parallelism, weight gradients."""

from __future__ import annotations

from compiler.units.builder import ROWS, UnitBuilder
from program.kinds import Phase
from program.lines import Apply, apply

SITE_EMBED, SITE_ATTENTION, SITE_MLP, SITE_PROBABILITIES = range(4)


def norm_weights(builder: UnitBuilder, base: str) -> None:
    """Declare a norm's parameters."""
    for name in ("weight",) if builder.shape.rms else ("weight", "bias"):
        builder.weight(f"{base}.{name}", (builder.shape.hidden,))


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
    builder.forward(piece, norm_line(builder, base, source, suffix, y), transient_bytes=0)
    if not builder.shape.sequence_parallel:
        return y
    full = builder.gathered(f"y{suffix}f", y, builder.shape.tokens, ())
    builder.move("F", "AG", piece, y, full)
    return full


def norm_backward_lines(
    builder: UnitBuilder, base: str, suffix: str, names: tuple[str, str, str | None, str], apart: bool = False
) -> tuple[Apply, ...]:
    """names: gradient of the norm's output, its input, the residual gradient (None: there is none), the result.
    `apart`: the weight gradients and the residual's sum are passes of their own."""
    dy, x, residual, dx = names
    stem, weights, gradients, stats = _norm(builder, base, suffix)
    weight = weights.split()[0]
    if not apart:
        args = f"{dy} {x} {stats} {weight} {residual or '-'} {gradients}"
        return (apply(f"{stem}_backward", args, dx),)
    # Megatron-LM's kernel reads dy and x again for the weight gradients, and autograd adds the residual apart.
    own = builder.rows(f"{dx}.own") if residual else dx
    lines = (
        apply(f"{stem}_input_gradient", f"{dy} {x} {stats} {weight}", own),
        apply(f"{stem}_weight_gradient", f"{dy} {x} {stats} {gradients}"),
    )
    return (*lines, apply("add", f"{own} {residual}", dx)) if residual else lines


def norm_backward(
    builder: UnitBuilder, piece: str, base: str, suffix: str, names: tuple[str, str, str | None, str]
) -> None:
    """The instruction of `norm_backward_lines`; declares its result."""
    builder.rows(names[3])
    lines = norm_backward_lines(builder, base, suffix, names, apart=builder.shape.megatron)
    builder.backward("B", piece, *lines, transient_bytes=0)


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


def regather(builder: UnitBuilder, piece: str, suffix: str) -> str:
    """The core's input for its weight gradient: gathered again under sequence parallelism, else the saved one."""
    if not builder.shape.sequence_parallel:
        return f"y{suffix}"
    full = builder.gathered(f"y{suffix}g", f"y{suffix}", builder.shape.tokens, ())
    builder.move("W", "AG", piece, f"y{suffix}", full)
    return full


def weight_gradient(builder: UnitBuilder, a: str, b: str, weight: str) -> tuple[Apply, ...]:
    """A weight gradient aᵀ b on its way to the main gradient: added inside the product, made afresh, or made and then
    added."""
    grad = f"g{weight[1:]}"
    if builder.shape.gradients == "in_gemm":
        return (apply("gemm_add", f"{a} {b} {grad}"),)
    if builder.shape.gradients == "separate_buffer":
        return (apply("gemm_out", f"{a} {b} {grad}", variant="tn"),)
    made = builder.tensors[weight]
    fresh = builder.tensor(f"t{weight[1:]}", made.dims, at=made.at)
    return apply("gemm", f"{a} {b}", fresh, variant="tn"), apply("add_into", f"{grad} {fresh}")


def weight_gradient_bytes(builder: UnitBuilder, *weights: str) -> int:
    """Transient bytes of weight gradients made before they are added."""
    return max(builder.tensors[w].bytes for w in weights) if builder.shape.gradients == "autograd" else 0
