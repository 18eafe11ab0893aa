"""The feed-forward of a layer as lines: GELU, or SwiGLU with gate and up in one product."""

from __future__ import annotations

from compiler.units.builder import COLUMNS, PARTIAL, ROWS, UnitBuilder
from compiler.units.common import weight_gradient, weight_gradient_bytes
from program.lines import apply


class Mlp:
    """The feed-forward of one layer; `base` names its parameters."""

    def __init__(self, builder: UnitBuilder, base: str) -> None:
        self.builder = builder
        e = builder.shape
        self.up = builder.weight(f"{base}.up.weight", (e.up, e.hidden), ROWS)
        self.up_bias = builder.weight(f"{base}.up.bias", (e.up,), ROWS) if e.bias else None
        self.down = builder.weight(f"{base}.down.weight", (e.hidden, e.ffn), COLUMNS)
        self.out_bias = builder.weight(f"{base}.down.bias", (e.hidden,)) if e.bias else None
        builder.act("u", e.tokens, e.up, at=COLUMNS)
        # Megatron-LM keeps the activation's output; ours is made again by the activation's backward.
        self.keeps = e.megatron
        builder.act("a", e.tokens, e.ffn, at=COLUMNS, pool="act" if self.keeps else "stash")
        if not self.keeps:
            builder.act("a.first", e.tokens, e.ffn, at=COLUMNS)
        builder.act("da", e.tokens, e.ffn, at=COLUMNS)
        builder.act("du", e.tokens, e.up, at=COLUMNS, pool="stash")
        builder.act("z2", e.tokens, e.hidden, at=PARTIAL)
        builder.act("dy2", e.tokens, e.hidden, at=PARTIAL)
        self.activation = "swiglu" if e.gated else "gelu"

    def forward(self, y: str) -> None:
        """y → z2; u, before the activation, is kept for the backward."""
        a = "a" if self.keeps else "a.first"
        self.builder.forward(
            "mlp.core",
            apply("gemm", f"{y} {self.up} {self.up_bias or ''}", "u", variant="nt"),
            apply(f"{self.activation}_forward", "u", a),
            apply("gemm", f"{a} {self.down}", "z2", variant="nt"),
            transient_bytes=0 if self.keeps else self.builder.tensors[a].bytes,
        )

    def input_gradient(self, dz: str) -> None:
        """dz → dy2, a, du."""
        self.builder.backward(
            "I",
            "mlp.core",
            apply("gemm", f"{dz} {self.down}", "da", variant="nn"),
            apply(f"{self.activation}_backward", "da u", f"du {'-' if self.keeps else 'a'}"),
            apply("gemm", f"du {self.up}", "dy2", variant="nn"),
            transient_bytes=self.builder.tensors["da"].bytes,
        )

    def weight_gradient(self, dz: str, y: str) -> None:
        """dz, a, y, du → gradients of both products and of the bias."""
        builder = self.builder
        bias = (apply("bias_grad", f"du g{self.up_bias[1:]}"),) if self.up_bias else ()
        builder.backward(
            "W",
            "mlp.core",
            *weight_gradient(builder, dz, "a", self.down),
            *weight_gradient(builder, "du", y, self.up),
            *bias,
            transient_bytes=weight_gradient_bytes(builder, self.down, self.up),
        )
