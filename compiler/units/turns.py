"""What happens to queries and keys between their product and the attention, as lines: their norms (of each head, or of
the whole projection), and rotary turns of the first columns of each head."""

from __future__ import annotations

from compiler.units.builder import COLUMNS, UnitBuilder
from plan.model import RopeScaling
from program.lines import Apply, apply


class QkNorms:
    """Norms of the queries and keys in `qkv`; `rows` (T, q + kv) is what they make. `base` names their weights."""

    def __init__(self, builder: UnitBuilder, base: str) -> None:
        self.builder, e = builder, builder.shape
        self.rows = builder.act("qk", e.tokens, e.q + e.kv, at=COLUMNS)
        for name, width, first in (("q", e.q, 0), ("k", e.kv, e.q)):
            each = e.head_dim if e.qk_norm == "head" else width
            dims = (e.tokens, width // each, each)
            builder.weight(f"{base}.{name}_norm.weight", (each,), init="ones")
            builder.stat(f"rstd.{name}", *dims[:2], at=COLUMNS)
            for rows in ("qkv", "qk", "dqkv"):
                builder.window(f"{rows}.{name}", rows, dims, (builder.tensors[rows].dims[1], each, 1), first, COLUMNS)
        self.weights = {name: f"{base}.{name}_norm.weight" for name in "qk"}

    def forward(self) -> tuple[Apply, ...]:
        """qkv → qk, its statistics."""
        made = apply("empty", "qkv", "qk", size=self.builder.tensors["qk"].dims)
        eps = self.builder.shape.norm_eps
        return made, *(
            apply("rmsnorm_heads_forward", f"qkv.{n} w:{weight} qk.{n}", f"rstd.{n}", eps=eps)
            for n, weight in self.weights.items()
        )

    def backward(self) -> tuple[Apply, ...]:
        """The gradients of queries and keys in dqkv become those before the norms."""
        return tuple(
            apply("rmsnorm_heads_backward", f"dqkv.{n} qkv.{n} rstd.{n} w:{weight} g:{weight}")
            for n, weight in self.weights.items()
        )


class Turns:
    """Rotary positions: queries and keys of `rows` as (s, b, heads, turned columns), and the tables of angles."""

    def __init__(self, builder: UnitBuilder, rows: str) -> None:
        e = builder.shape
        self.rows = rows
        dims = (e.seq, e.batch, e.heads + e.kv_heads, e.rope_width)
        for name in (rows, "dqkv"):
            width = builder.tensors[name].dims[1]
            builder.window(f"{name}.turned", name, dims, (e.batch * width, width, e.head_dim, 1), 0, (("tp", "S2"),))
        local = "" if e.rope_local_theta is None else ".local"  # two kinds of layers have two tables
        self.tables = {name: f"c:{name}{local}" for name in ("cos", "sin")}
        given: tuple[tuple[str, object], ...] = (("theta", e.rope_theta),)
        if e.rope_scaling is not None:
            given += (("scaling", _numbers(e.rope_scaling, e.seq)),)
        for name, table in self.tables.items():
            builder.tensor(table, (e.seq, e.rope_width // 2), e.stat, pool="work", make=(f"rope_{name}", given))

    def forward(self) -> tuple[Apply, ...]:
        """Queries and keys are turned in place."""
        return (apply("rope_forward", f"{self.rows}.turned {' '.join(self.tables.values())}"),)

    def backward(self) -> tuple[Apply, ...]:
        """Their gradients are turned back."""
        return (apply("rope_backward", f"dqkv.turned {' '.join(self.tables.values())}"),)


def _numbers(scaling: RopeScaling, seq: int) -> tuple[object, ...]:
    """A scaling as `kernels.tables` takes it: its kind, factor, and what the kind asks for."""
    original = scaling.original_max_positions
    if scaling.kind == "yarn":
        return "yarn", scaling.factor, scaling.beta_fast, scaling.beta_slow, original, scaling.attention_factor
    if scaling.kind == "longrope":
        factors = scaling.long_factor if seq > original else scaling.short_factor
        return "longrope", scaling.factor, factors, original, scaling.attention_factor
    return scaling.kind, scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, original
