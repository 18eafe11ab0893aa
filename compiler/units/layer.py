"""A transformer layer: norms, residual additions, and the collectives of tensor and sequence parallelism around its
attention (`compiler.units.attention`) and feed-forward (`compiler.units.mlp`).

Two forms: one after the other, each reading what the one before left; and in parallel, both reading the layer's input,
their sum reduced and added once. Norms stand before a branch, on what it leaves, or both.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from compiler.units.attention import Attention
from compiler.units.builder import UnitBuilder, renamed
from compiler.units.common import (
    SITE_ATTENTION,
    SITE_MLP,
    gather_forward,
    norm_backward,
    norm_backward_line,
    norm_forward,
    norm_line,
    norm_weights,
    reduce_forward,
    regather,
    sum_beside,
)
from compiler.units.mlp import Mlp
from compiler.units.shape import UnitShape
from program.lines import Apply, Draw, Unit, apply


def layer(shape: UnitShape, number: int, cut: bool = False) -> Unit:
    """A transformer layer as unit `number` (1…L); `cut` splits `attn.core` for selective recompute."""
    unit = _layer(shape.of_layer(number), cut)
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
    if shape.parallel:
        _in_parallel(builder, attention, mlp)
    else:
        _in_sequence(builder, attention, mlp)
    return builder.unit("x", "x2", ("d0",))


# ---------------------------------------------------------------- one after the other


def _in_sequence(builder: UnitBuilder, attention: Attention, mlp: Mlp) -> None:
    first = _Branch(builder, "attn", "1", attention.out_bias, ("x", "x1"), ("d1", "d0"))
    second = _Branch(builder, "mlp", "2", mlp.out_bias, ("x1", "x2"), ("d2", "d1"))
    for branch in (first, second):
        branch.declare()
    attention.forward(first.enter())
    first.leave()
    mlp.forward(second.enter())
    second.leave()

    for branch, core in ((second, mlp), (first, attention)):
        dz = branch.leave_backward()
        y = branch.again()
        core.input_gradient(dz)
        weights = partial(core.weight_gradient, dz, y)
        branch.enter_backward(sum_beside(builder, branch.inside, f"dy{branch.suffix}", weights))


class _Branch:
    """What stands around attention or MLP: norms, the sum over ranks, and the addition to the residual stream. `rows`
    are the stream before and behind it, `gradients` those behind and before it."""

    def __init__(
        self,
        builder: UnitBuilder,
        kind: str,
        suffix: str,
        bias: str | None,
        rows: tuple[str, str],
        gradients: tuple[str, str],
    ) -> None:
        self.builder, self.shape, self.suffix, self.bias = builder, builder.shape, suffix, bias
        self.inside, self.outside = f"{kind}.in", f"{kind}.out"
        self.norm, self.last_norm = f"@.{kind}.norm", f"@.{kind}.out_norm"
        self.rows, self.gradients = rows, gradients
        self.summed = ""

    def declare(self) -> None:
        """The weights of its norms."""
        for wanted, base in ((self.shape.norm_inputs, self.norm), (self.shape.norm_outputs, self.last_norm)):
            if wanted:
                norm_weights(self.builder, base)

    def enter(self) -> str:
        """The name of what the core reads."""
        if self.shape.norm_inputs:
            return norm_forward(self.builder, self.inside, self.norm, self.rows[0], self.suffix)
        return gather_forward(self.builder, self.inside, self.rows[0], self.suffix)

    def again(self) -> str:
        """The same for the weight gradient."""
        return regather(self.builder, self.inside, self.suffix, "" if self.shape.norm_inputs else self.rows[0])

    def enter_backward(self, dy: str) -> None:
        """Gradient of what the core read, and of the stream behind → of the stream before."""
        (before, _), (behind, result) = self.rows, self.gradients
        if self.shape.norm_inputs:
            norm_backward(self.builder, self.inside, self.norm, self.suffix, (dy, before, behind, result))
            return
        self.builder.backward("B", self.inside, apply("add", f"{behind} {dy}", self.builder.rows(result)))

    def leave(self) -> None:
        """The sum over ranks, its norm, and the addition with bias and dropout."""
        builder, (before, behind) = self.builder, self.rows
        z = reduce_forward(builder, self.outside, f"z{self.suffix}")
        lines: tuple[Apply, ...] = ()
        if self.shape.norm_outputs:
            if builder.tensors[z].gathered:  # a slot cannot keep it for the backward
                lines = (apply("clone", z, builder.rows(f"zn{self.suffix}")),)
                z = f"zn{self.suffix}"
            self.summed = z
            z = builder.rows(f"n{self.suffix}")
            lines += (norm_line(builder, self.last_norm, self.summed, f"{self.suffix}n", z),)
        add = apply("add", f"{before} {z} {self.bias or ''}", builder.rows(behind), **self._draw())
        builder.forward(self.outside, *lines, add)

    def leave_backward(self) -> str:
        """Dropout mask, bias gradient and norm, then the gather of sequence parallelism: the gradient of the core's
        result."""
        builder, draw, dz = self.builder, self._draw(), f"dz{self.suffix}"
        gradient = branch = self.gradients[0]
        lines: tuple[Apply, ...] = ()
        if draw:
            branch = builder.rows(f"dn{self.suffix}" if self.shape.norm_outputs else dz)
        if self.bias or draw:
            grad = "-" if self.bias is None else f"g{self.bias[1:]}"
            lines = (apply("add_backward", f"{gradient} {grad}", branch if draw else "-", **draw),)
        if self.shape.norm_outputs:
            names = (branch, self.summed, None, dz)
            lines += (norm_backward_line(builder, self.last_norm, f"{self.suffix}n", names),)
            branch = dz
        if lines:
            builder.backward("B", self.outside, *lines)
        return _gather_backward(builder, self.outside, branch, dz)

    def _draw(self) -> dict[str, Any]:
        """Dropout of the residual stream, where there is any."""
        x, dropout = self.builder.tensors["x"], self.shape.dropout
        site = SITE_ATTENTION if self.suffix == "1" else SITE_MLP
        return {"mask": Draw(dropout, site, x.dims, x.offset(0))} if dropout else {}


def _gather_backward(builder: UnitBuilder, piece: str, branch: str, dz: str) -> str:
    if not builder.shape.sequence_parallel:
        return branch
    full = builder.gathered(f"{dz}f", branch, builder.shape.tokens, ())
    builder.move("B", "AG", piece, branch, full)
    return full


# ---------------------------------------------------------------- in parallel


def _in_parallel(builder: UnitBuilder, attention: Attention, mlp: Mlp) -> None:
    """x + attention(norm(x)) + mlp(norm(x)): of one norm, or each of its own."""
    shared = builder.shape.shared_norm
    for base in ("@.attn.norm",) if shared else ("@.attn.norm", "@.mlp.norm"):
        norm_weights(builder, base)
    y = norm_forward(builder, "attn.in", "@.attn.norm", "x", "1")
    attention.forward(y)
    y = y if shared else norm_forward(builder, "mlp.in", "@.mlp.norm", "x", "2")
    mlp.forward(y, apply("add_into", "z2 z1"))
    biases = [bias for bias in (attention.out_bias, mlp.out_bias) if bias is not None]
    _add_both(builder, reduce_forward(builder, "mlp.out", "z2"), biases)

    if biases:
        builder.backward("B", "mlp.out", *(apply("add_backward", f"d2 g{bias[1:]}", "-") for bias in biases))
    dz = _gather_backward(builder, "mlp.out", "d2", "dz2")
    if shared:
        y = regather(builder, "attn.in", "1")
        mlp.input_gradient(dz)
        attention.input_gradient(dz, apply("add_into", "dy1 dy2"))

        def weights() -> None:
            mlp.weight_gradient(dz, y)
            attention.weight_gradient(dz, y)

        dy = sum_beside(builder, "attn.in", "dy1", weights)
        norm_backward(builder, "attn.in", "@.attn.norm", "1", (dy, "x", "d2", "d0"))
        return
    y = regather(builder, "mlp.in", "2")
    mlp.input_gradient(dz)
    dy = sum_beside(builder, "mlp.in", "dy2", partial(mlp.weight_gradient, dz, y))
    norm_backward(builder, "mlp.in", "@.mlp.norm", "2", (dy, "x", "d2", "d1"))
    y = regather(builder, "attn.in", "1")
    attention.input_gradient(dz)
    dy = sum_beside(builder, "attn.in", "dy1", partial(attention.weight_gradient, dz, y))
    norm_backward(builder, "attn.in", "@.attn.norm", "1", (dy, "x", "d1", "d0"))


def _add_both(builder: UnitBuilder, z: str, biases: list[str]) -> None:
    """x2 = x + z + the biases of both branches, which are added up first."""
    lines: tuple[Apply, ...] = ()
    bias = biases[0] if biases else ""
    if len(biases) == 2:
        held = builder.tensor("bias", builder.tensors[bias].dims)
        lines, bias = (apply("clone", bias, held), apply("add_into", f"{held} {biases[1]}")), held
    builder.forward("mlp.out", *lines, apply("add", f"x {z} {bias}", builder.rows("x2")))
