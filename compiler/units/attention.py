"""Attention as lines: the QKV product with norms of queries and keys and rotary, the attention itself (fused, or
scores, softmax, values), the output product; whole, or cut in three for selective recompute.

`qkv` (T, q + 2·kv) holds queries, keys and values side by side; the attention reads strided windows of it. Rotary turns
queries and keys inside `qkv`, so what is saved is already turned; where they are normed it turns what the norms made,
`qk` (T, q + kv). A window of attention and a part of each head that is turned cost no lines of their own. Unfused it
is Megatron-LM's `CoreAttention`: matrices of heads are copied out of the fused tensor, multiplied, and merged back.
"""

from __future__ import annotations

from typing import Any

from compiler.units.builder import COLUMNS, PARTIAL, ROWS, UnitBuilder
from compiler.units.common import SITE_PROBABILITIES, weight_gradient
from compiler.units.turns import QkNorms, Turns
from program.lines import Apply, Draw, Offset, apply


class Attention:
    """The attention of one layer; `base` names its parameters."""

    def __init__(self, builder: UnitBuilder, base: str, cut: bool) -> None:
        self.builder, self.shape, self.cut = builder, builder.shape, cut
        e = self.shape
        self.qkv = builder.weight(f"{base}.qkv.weight", (e.qkv, e.hidden), ROWS, segments=(e.q, e.kv, e.kv))
        self.qkv_bias = None
        if e.qkv_bias:
            self.qkv_bias = builder.weight(f"{base}.qkv.bias", (e.qkv,), ROWS, "zeros", (e.q, e.kv, e.kv))
        self.out = builder.weight(f"{base}.out.weight", (e.hidden, e.q), COLUMNS, "scaled")
        self.out_bias = builder.weight(f"{base}.out.bias", (e.hidden,), init="zeros") if e.out_bias else None
        builder.act("qkv", e.tokens, e.qkv, at=COLUMNS)
        builder.act("o", e.tokens, e.q, at=COLUMNS)
        builder.act("z1", e.tokens, e.hidden, at=PARTIAL)
        builder.act("do", e.tokens, e.q, at=COLUMNS, pool="stash")
        builder.act("dqkv", e.tokens, e.qkv, at=COLUMNS, pool="stash")
        builder.act("dy1", e.tokens, e.hidden, at=PARTIAL)
        self.norms = QkNorms(builder, base) if e.qk_norm != "none" else None
        turned = self.norms.rows if self.norms is not None else "qkv"
        self._heads("q", turned, e.heads, 0)
        self._heads("k", turned, e.kv_heads, e.q)
        self._heads("v", "qkv", e.kv_heads, e.q + e.kv)
        self._heads("do.h", "do", e.heads, 0)
        self._heads("dq.h", "dqkv", e.heads, 0)
        self._heads("dk.h", "dqkv", e.kv_heads, e.q)
        self._heads("dv.h", "dqkv", e.kv_heads, e.q + e.kv)
        self.core = _Unfused(builder) if e.unfused else _Fused(builder)
        self.turns = Turns(builder, turned) if e.rotary else None

    def _heads(self, name: str, rows: str, heads: int, first: int) -> None:
        """Columns of `rows` (T, …) from `first` on as (b, heads, s, d)."""
        e, width = self.shape, self.builder.tensors[rows].dims[1]
        dims, strides = (e.batch, heads, e.seq, e.head_dim), (width, e.head_dim, e.batch * width, 1)
        self.builder.window(name, rows, dims, strides, first, COLUMNS)

    # --- the instructions

    def forward(self, y: str) -> None:
        """y → z1; qkv and what the attention leaves are kept for the backward."""
        builder = self.builder
        project = (
            apply("gemm", f"{y} {self.qkv} {self.qkv_bias or ''}", "qkv", variant="nt"),
            *(self.norms.forward() if self.norms is not None else ()),
            *(self.turns.forward() if self.turns is not None else ()),
        )
        merge = (apply("gemm", f"o {self.out}", "z1", variant="nt"),)
        if not self.cut:
            builder.forward("attn.core", *project, *self.core.forward(), *merge)
            return
        builder.forward("attn.qkv", *project)
        builder.forward("attn.sdpa", *self.core.forward())
        builder.forward("attn.proj", *merge)

    def input_gradient(self, dz: str, *added: Apply) -> None:
        """dz → dy1, dqkv. Lines `added` end it."""
        builder = self.builder
        first = (apply("gemm", f"{dz} {self.out}", "do", variant="nn"),)
        last = (
            *(self.turns.backward() if self.turns is not None else ()),
            *(self.norms.backward() if self.norms is not None else ()),
            apply("gemm", f"dqkv {self.qkv}", "dy1", variant="nn"),
            *added,
        )
        if not self.cut:
            builder.backward("I", "attn.core", *first, *self.core.backward(), *last)
            return
        builder.backward("I", "attn.proj", *first)
        builder.backward("I", "attn.sdpa", *self.core.backward())
        builder.backward("I", "attn.qkv", *last)

    def weight_gradient(self, dz: str, y: str) -> None:
        """dz, o, y, dqkv → gradients of both products and of the bias."""
        bias = (apply("bias_grad", f"dqkv g{self.qkv_bias[1:]}"),) if self.qkv_bias else ()
        merge, project = (weight_gradient(dz, "o", self.out),), (weight_gradient("dqkv", y, self.qkv), *bias)
        pieces = {"attn.proj": merge, "attn.qkv": project} if self.cut else {"attn.core": (*merge, *project)}
        for piece, lines in pieces.items():
            self.builder.backward("W", piece, *lines)


def _packed(builder: UnitBuilder, gradients: tuple[str, str, str]) -> tuple[Apply, ...]:
    """Gradients of queries, keys and values side by side: each is copied into its heads."""
    copies = (apply("copy", f"{to} {d}") for to, d in zip(("dq.h", "dk.h", "dv.h"), gradients, strict=True))
    return apply("empty", "do", "dqkv", size=builder.tensors["dqkv"].dims), *copies


class _Fused:
    """One kernel for scores, softmax and values."""

    def __init__(self, builder: UnitBuilder) -> None:
        self.builder, e = builder, builder.shape
        heads = (e.batch, e.heads, e.seq, e.head_dim)
        strides = (e.q, e.head_dim, e.batch * e.q, 1)
        builder.stat("lse", e.batch, e.heads, e.seq, at=COLUMNS)
        builder.tensor("oh", heads, at=COLUMNS)
        builder.window("o.h", "o", heads, strides, 0, COLUMNS)
        for name, count in (("dq", e.heads), ("dk", e.kv_heads), ("dv", e.kv_heads)):
            builder.tensor(name, (e.batch, count, e.seq, e.head_dim), at=COLUMNS)
        self.variant = e.attention + ("+alibi" if e.alibi else "") + (f"+window{e.window.size}" if e.window else "")
        self.scale = {} if e.scale == e.head_dim**-0.5 else {"scale": e.scale}

    def forward(self) -> tuple[Apply, ...]:
        """q, k, v → o, lse."""
        return (
            apply("attention_forward", "q k v", "oh lse", variant=self.variant, **self.scale),
            apply("rows_of", "oh", "o"),
        )

    def backward(self) -> tuple[Apply, ...]:
        """do, q, k, v, o, lse → dqkv."""
        return (
            apply("attention_backward", "do.h q k v o.h lse", "dq dk dv", variant=self.variant, **self.scale),
            *_packed(self.builder, ("dq", "dk", "dv")),
        )


class _Unfused:
    """Scores in memory: a product of queries and keys, a softmax, a product with the values."""

    def __init__(self, builder: UnitBuilder) -> None:
        self.builder, e = builder, builder.shape
        self.shape = e
        matrices = e.batch * e.heads
        square, flat = (matrices, e.seq, e.seq), (matrices, e.seq, e.head_dim)
        for name in ("lse", "dropped", "scores", "dp", "ds"):
            builder.tensor(name, square, at=ROWS)
        for name in ("qf", "kf", "vf", "of", "dof", "dqf", "dkf", "dvf"):
            builder.tensor(name, flat, at=ROWS)
        self._matrices(builder)
        cap = e.attention_softcap
        self.capped: dict[str, Any] = {"cap": cap, "scale": e.scale} if cap else {}
        self.scale = 1.0 if cap else e.scale
        heads = Offset(("tp",) if e.tp > 1 else (), e.heads)
        p = e.attention_dropout
        self.draw: dict[str, Any] = {"mask": Draw(p, SITE_PROBABILITIES, square, heads)} if p else {}
        self.dropped = "dropped" if p else "lse"
        hidden = ("outside", (("size", e.window.size),)) if e.window else ("future", ())
        self.hidden = f"c:{hidden[0]}"  # of two kinds of layers two tables
        builder.tensor(self.hidden, (e.seq, e.seq), "uint8", pool="work", make=hidden)
        if e.alibi:
            given = (("heads", e.whole_heads), ("first", heads), ("scale", self.scale))
            builder.tensor("c:alibi", (e.heads, e.seq, e.seq), e.stat, pool="work", make=("alibi", given))

    def _matrices(self, builder: UnitBuilder) -> None:
        """The gradients' matrices as (b, heads, s, d), of keys and values after their repeated heads are summed."""
        e = self.shape
        kept = e.heads == e.kv_heads
        for name in ("dk", "dv"):
            builder.tensor(name, (e.batch * e.kv_heads, e.seq, e.head_dim), at=ROWS)
        for name, heads in (
            ("dqf", e.heads),
            ("dkf" if kept else "dk", e.kv_heads),
            ("dvf" if kept else "dv", e.kv_heads),
        ):
            strides = (heads * e.seq * e.head_dim, e.seq * e.head_dim, e.head_dim, 1)
            builder.window(f"{name}.s", name, (e.batch, heads, e.seq, e.head_dim), strides, 0, COLUMNS)

    def forward(self) -> tuple[Apply, ...]:
        """q, k, v → o, the probabilities."""
        softmax = f"lse {'dropped' if self.draw else '-'}"
        return (
            *self._heads("qk"),
            *self._scores(),
            apply("softmax_forward", f"scores {self.hidden}", softmax, scale=self.scale, **self.draw),
            *self._heads("v"),
            apply("bmm", f"{self.dropped} vf", "of", variant="nn"),
            apply("merge_heads", "of", "o", batch=self.shape.batch),
        )

    def _heads(self, names: str) -> tuple[Apply, ...]:
        """Matrices of queries, keys or values; those of keys and values are as many as those of queries."""
        repeat = self.shape.heads // self.shape.kv_heads
        repeated: dict[str, Any] = {"repeat": repeat} if repeat > 1 else {}
        return tuple(apply("flat_heads", n, f"{n}f", **({} if n == "q" else repeated)) for n in names)

    def _scores(self) -> tuple[Apply, ...]:
        """Queries by keys, with ALiBi's bias, or scaled and capped."""
        product = apply("bmm", "qf kf", "scores", variant="nt")
        bias = (apply("alibi_add", "scores c:alibi"),) if self.shape.alibi else ()
        return (product, *bias, *((apply("softcap_forward", "scores", **self.capped),) if self.capped else ()))

    def backward(self) -> tuple[Apply, ...]:
        """do, q, k, v, the probabilities → dqkv. The matrices of heads are made again."""
        again = (apply("drop", "lse", "dropped", **self.draw),) if self.draw else ()
        return (
            apply("flat_heads", "do.h", "dof"),
            *again,
            apply("bmm", f"{self.dropped} dof", "dvf", variant="tn"),
            *self._heads("v"),
            apply("bmm", "dof vf", "dp", variant="nt"),
            apply("softmax_backward", "dp lse", "ds", scale=self.scale, **self.draw),
            *((apply("softcap_backward", "ds scores", **self.capped),) if self.capped else ()),
            *self._heads("qk"),
            apply("bmm", "ds kf", "dqf", variant="nn"),
            apply("bmm", "ds qf", "dkf", variant="tn"),
            *self._merged(),
        )

    def _merged(self) -> tuple[Apply, ...]:
        """Gradients of queries, keys and values side by side; those of repeated heads are summed first."""
        repeat, names = self.shape.heads // self.shape.kv_heads, ("dqf", "dkf", "dvf")
        folds: tuple[Apply, ...] = ()
        if repeat > 1:
            folds = tuple(apply("fold_heads", f"{n}f", n, repeat=repeat) for n in ("dk", "dv"))
            names = ("dqf", "dk", "dv")
        return *folds, *_packed(self.builder, (f"{names[0]}.s", f"{names[1]}.s", f"{names[2]}.s"))
