"""The feed-forward of a layer as lines: GELU, ReLU, its square, or SwiGLU and GeGLU with gate and up in one product."""

from __future__ import annotations

from compiler.units.builder import COLUMNS, PARTIAL, ROWS, UnitBuilder
from compiler.units.common import weight_gradient
from program.lines import Apply, apply


class Mlp:
    """The feed-forward of one layer; `base` names its parameters."""

    def __init__(self, builder: UnitBuilder, base: str) -> None:
        self.builder = builder
        e = builder.shape
        self.up = builder.weight(f"{base}.up.weight", (e.up, e.hidden), ROWS, segments=(e.ffn,) * (e.up // e.ffn))
        self.up_bias = None
        if e.mlp_bias:
            self.up_bias = builder.weight(f"{base}.up.bias", (e.up,), ROWS, "zeros", (e.ffn,) * (e.up // e.ffn))
        self.down = builder.weight(f"{base}.down.weight", (e.hidden, e.ffn), COLUMNS, "scaled")
        self.out_bias = builder.weight(f"{base}.down.bias", (e.hidden,), init="zeros") if e.mlp_bias else None
        builder.act("u", e.tokens, e.up, at=COLUMNS)
        builder.act("a.first", e.tokens, e.ffn, at=COLUMNS)
        builder.act("a", e.tokens, e.ffn, at=COLUMNS, pool="stash", value="a.first")  # made again, not kept
        builder.act("da", e.tokens, e.ffn, at=COLUMNS)
        builder.act("du", e.tokens, e.up, at=COLUMNS, pool="stash")
        builder.act("z2", e.tokens, e.hidden, at=PARTIAL)
        builder.act("dy2", e.tokens, e.hidden, at=PARTIAL)
        self.activation = e.activation

    def forward(self, y: str, *added: Apply) -> None:
        """y → z2; u, before the activation, is kept for the backward. Lines `added` end it."""
        self.builder.forward(
            "mlp.core",
            apply("gemm", f"{y} {self.up} {self.up_bias or ''}", "u", variant="nt"),
            apply(f"{self.activation}_forward", "u", "a.first"),
            apply("gemm", f"a.first {self.down}", "z2", variant="nt"),
            *added,
        )

    def input_gradient(self, dz: str, *added: Apply) -> None:
        """dz → dy2, a, du."""
        self.builder.backward(
            "I",
            "mlp.core",
            apply("gemm", f"{dz} {self.down}", "da", variant="nn"),
            apply(f"{self.activation}_backward", "da u", "du a"),
            apply("gemm", f"du {self.up}", "dy2", variant="nn"),
            *added,
        )

    def weight_gradient(self, dz: str, y: str) -> None:
        """dz, a, y, du → gradients of both products and of the bias."""
        builder = self.builder
        bias = (apply("bias_grad", f"du g{self.up_bias[1:]}"),) if self.up_bias else ()
        builder.backward(
            "W",
            "mlp.core",
            weight_gradient(dz, "a", self.down),
            weight_gradient("du", y, self.up),
            *bias,
        )
