"""Lines that an implementation runs in the stead of a unit's own (`program.rewriting`).

Units are written as our trainer runs them: dropout masks made again from their counters, activations and matrices of
heads made again in the backward, a norm's weight gradients in its own kernel, a cross entropy of three passes over
logits in the computing type, weight gradients added by the product. The functions here say what Megatron-LM's layers
under autograd run instead (`megatron/core/transformer`, `core/fusions/fused_bias_dropout.py`,
`core/tensor_parallel/cross_entropy.py`; in 2022 `megatron/model/transformer.py`, `megatron/mpu/cross_entropy.py`).
"""

from __future__ import annotations

from dataclasses import replace

from plan.implementations.base import GradAccumulation
from program.lines import Apply, Draw, apply
from program.rewriting import Lined, Names, Rewrite

# ---------------------------------------------------------------- autograd keeps what a backward of ours makes again


def _kept(lines: Lined, names: Names) -> Lined:
    """Matrices of heads and dropped probabilities that the forward made are there."""
    return () if lines[0].results[0] in names.made else lines


def _activation_kept(lines: Lined, names: Names) -> Lined:
    (line,) = lines
    gradient, again = line.results
    assert again is not None
    names.same(again, names.tensors[again].value)
    return (replace(line, results=(gradient, None)),)


# ---------------------------------------------------------------- dropout by masks that are stored, a byte an element


def _draw(line: Apply) -> Draw | None:
    found = dict(line.given).get("mask")
    return found if isinstance(found, Draw) else None


def _stored(draw: Draw) -> str:
    return f"mask.{draw.site}"


def _without(line: Apply) -> tuple[tuple[str, object], ...]:
    return tuple((key, value) for key, value in line.given if key != "mask")


def _add_storing(lines: Lined, names: Names) -> Lined:
    (line,) = lines
    draw, out = _draw(line), line.results[0]
    if draw is None:
        return lines
    assert out is not None
    mask = names.like(_stored(draw), out, "uint8")
    return (replace(line, op="add_storing", results=(out, mask)),)


def _add_backward(lines: Lined, names: Names) -> Lined:
    """The stored mask, then the bias's gradient. Where no mask was made yet it is a forward: the embedding's."""
    (line,) = lines
    draw, out = _draw(line), line.results[0]
    if draw is None:
        return lines
    assert out is not None
    mask = _stored(draw)
    if mask not in names.tensors:
        return (Apply("drop_storing", line.args[:1], (out, names.like(mask, out, "uint8")), line.given),)
    masked = apply("drop_stored", f"{line.args[0]} {mask}", out, p=draw.p)
    return (masked, Apply("add_backward", (out, line.args[1]), (None,))) if line.args[1] else (masked,)


def _softmax_forward(lines: Lined, names: Names) -> Lined:
    """Dropout is an operator of its own, and its mask and result are kept."""
    (line,) = lines
    draw, (p, dropped) = _draw(line), line.results
    if draw is None or p is None or dropped is None:
        return lines
    mask = names.like(_stored(draw), p, "uint8")
    return (
        replace(line, results=(p, None), given=_without(line)),
        apply("drop_storing", p, f"{dropped} {mask}", mask=draw),
    )


def _softmax_backward(lines: Lined, names: Names) -> Lined:
    (line,) = lines
    draw, (dp, p) = _draw(line), line.args
    if draw is None or dp is None:
        return lines
    kept = names.like(f"{dp}.kept", dp)
    masked = apply("drop_stored", f"{dp} {_stored(draw)}", kept, p=draw.p)
    return masked, replace(line, args=(kept, p), given=_without(line))


# ---------------------------------------------------------------- norms and the cross entropy in separate passes


def _norm_backward(lines: Lined, names: Names) -> Lined:
    """The kernel reads dy and x again for the weight gradients, and autograd adds the residual apart."""
    (line,) = lines
    stem, dx = line.op.removesuffix("_backward"), line.results[0]
    gradients = 2 if stem == "layernorm" else 1
    *rows, weight, residual = line.args[:-gradients]
    assert dx is not None
    own = names.like(f"{dx}.own", dx) if residual else dx
    apart = (
        Apply(f"{stem}_input_gradient", (*rows, weight), (own,)),
        Apply(f"{stem}_weight_gradient", (*rows, *line.args[-gradients:])),
    )
    return (*apart, Apply("add", (own, residual), (dx,))) if residual else apart


def _maximum(lines: Lined, names: Names) -> Lined:
    """Of logits in the type of statistics."""
    (line,) = lines
    (logits,), (top,) = line.args, line.results
    assert logits is not None
    assert top is not None
    dtype = names.tensors[top].dtype
    wide = names.like(f"{logits}.wide", logits, dtype)
    return apply("cast", logits, wide, dtype=dtype), replace(line, args=(wide,))


def _exponentials(lines: Lined, names: Names) -> Lined:
    (line,) = lines
    (logits, top, targets), (sums,) = line.args, line.results
    assert sums is not None
    wide = f"{logits}.wide"
    target = names.like(f"{sums}.target", sums, dims=names.tensors[sums].dims[1:])
    return (
        apply("shift_rows", f"{wide} {top}"),
        Apply("exponentiate", (wide, targets), (target,), line.given),
        apply("row_sums", f"{wide} {target}", sums),
    )


def _loss(lines: Lined, names: Names) -> Lined:
    """The softmax becomes its gradient, which goes back into the logits in their type."""
    (line,) = lines
    logits, _, sums, targets, loss = line.args
    wide = f"{logits}.wide"
    return (
        Apply("softmax_loss", (wide, sums, targets, loss), (), tuple(n for n in line.given if n[0] != "times")),
        Apply(
            "scale", (wide,), (), (("factor", dict(line.given)["scale"]), *(n for n in line.given if n[0] == "times"))
        ),
        apply("copy", f"{logits} {wide}"),
    )


MEGATRON_LAYERS = (
    Rewrite(("flat_heads",), _kept),
    Rewrite(("drop",), _kept),
    Rewrite(("gelu_backward",), _activation_kept),
    Rewrite(("swiglu_backward",), _activation_kept),
    Rewrite(("geglu_backward",), _activation_kept),
    Rewrite(("relu_backward",), _activation_kept),
    Rewrite(("relu2_backward",), _activation_kept),
    Rewrite(("add",), _add_storing),
    Rewrite(("add_backward",), _add_backward),
    Rewrite(("softmax_forward",), _softmax_forward),
    Rewrite(("softmax_backward",), _softmax_backward),
    Rewrite(("rmsnorm_backward",), _norm_backward),
    Rewrite(("layernorm_backward",), _norm_backward),
    Rewrite(("ce_max",), _maximum),
    Rewrite(("ce_exp",), _exponentials),
    Rewrite(("ce_loss",), _loss),
)
"""Megatron-LM's layers of torch operators under autograd."""


def _bias_in_product(lines: Lined, names: Names) -> Lined:
    product, bias = lines
    (scores, table), (queries, keys) = bias.args, product.args
    assert scores is not None
    assert table is not None
    square = names.tensors[table]
    heads, _, keys_ = square.dims
    assert square.make is not None
    slopes = replace(square, name=f"{table}.rows", dims=(heads, 1, keys_), make=("alibi_rows", square.make[1]))
    names.tensors[slopes.name] = slopes
    rows = apply("alibi_scores", f"{slopes.name} {queries}", scores, batch=names.tensors[scores].dims[0] // heads)
    return rows, Apply("bmm_add", (scores, queries, keys), (), product.given)


ALIBI_IN_PRODUCT = Rewrite(("bmm", "alibi_add"), _bias_in_product)
"""Megatron-DeepSpeed's ALiBi: a baddbmm on the bias, a row a head, which is written over the square first. It leaves
out what is the same all along a row of scores, and so makes no difference to their softmax."""


# ---------------------------------------------------------------- our head by fused kernels


def _by_columns(lines: Lined, names: Names) -> Lined:
    """Logits lie transposed, (vocabulary, rows): the products read and write along their rows, and the cross entropy of
    a whole vocabulary is one operator."""
    product, _, _, loss, gradient, _ = lines
    if len(product.args) > 2:  # a bias, which the products by columns do not add
        return lines
    (rows, table), (logits,) = product.args, product.results
    assert logits is not None
    names.like(logits, logits, dims=names.tensors[logits].dims[::-1])
    numbers = tuple((key, value) for key, value in loss.given if key != "first")
    return (
        apply("gemm", f"{table} {rows}", logits, variant="nt"),
        Apply("ce_columns", (logits, *loss.args[3:]), (), numbers),
        apply("gemm_out", f"{logits} {table} {gradient.args[2]}", variant="tn"),
        apply("gemm_add", f"{logits} {rows} g{str(table)[1:]}", variant="nn"),
    )


HEAD_BY_COLUMNS = Rewrite(("gemm", "ce_max", "ce_exp", "ce_loss", "gemm_out", "gemm_add"), _by_columns)
"""A chunk of the head: logits, loss and both gradients."""


# ---------------------------------------------------------------- how a weight gradient reaches the main gradient


def _overwritten(lines: Lined, names: Names) -> Lined:
    """The first product of a unit writes the gradient, the next ones add to it."""
    (line,) = lines
    grad = line.args[2]
    assert grad is not None
    if grad in names.made:
        return lines
    names.made.add(grad)
    return (Apply("gemm_out", line.args, (), (("variant", "tn"),)),)


def _added(lines: Lined, names: Names) -> Lined:
    (line,) = lines
    a, b, grad = line.args
    assert a is not None
    assert grad is not None
    fresh = names.like(f"t{grad[1:]}", grad, names.tensors[a].dtype)
    return apply("gemm", f"{a} {b}", fresh, variant="tn"), apply("add_into", f"{grad} {fresh}")


def _scattered(lines: Lined, names: Names) -> Lined:
    """Autograd scatters into zeros of the table's size, then adds these."""
    (line,) = lines
    d, tokens, grad = line.args
    assert grad is not None
    fresh = names.like(f"t{grad[1:]}", grad)
    return (
        apply("zeros_like", grad, fresh),
        replace(line, args=(d, tokens, fresh)),
        apply("add_into", f"{grad} {fresh}"),
    )


ACCUMULATION: dict[GradAccumulation, tuple[Rewrite, ...]] = {
    "in_gemm": (),
    "separate_buffer": (Rewrite(("gemm_add",), _overwritten),),
    "autograd": (Rewrite(("gemm_add",), _added), Rewrite(("embedding_backward",), _scattered)),
}
