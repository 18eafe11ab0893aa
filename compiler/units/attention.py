"""Attention as lines: the QKV product with rotary, the attention itself (fused, or scores, softmax, values), the output
product; whole, or cut in three for selective recompute.

`qkv` (T, q + 2·kv) holds queries, keys and values side by side; the attention reads strided windows of it. Rotary turns
queries and keys inside `qkv`, so what is saved is already turned. Unfused it is Megatron-LM's `CoreAttention`: matrices
of heads are copied out of the fused tensor, multiplied, and merged back.
"""

from __future__ import annotations

from typing import Any

from compiler.units.builder import COLUMNS, PARTIAL, ROWS, UnitBuilder
from compiler.units.common import SITE_PROBABILITIES, weight_gradient, weight_gradient_bytes
from program.kinds import numel
from program.lines import Apply, Draw, Offset, apply


class Attention:
    """The attention of one layer; `base` names its parameters."""

    def __init__(self, builder: UnitBuilder, base: str, cut: bool) -> None:
        self.builder, self.shape, self.cut = builder, builder.shape, cut
        e = self.shape
        self.qkv = builder.weight(f"{base}.qkv.weight", (e.qkv, e.hidden), ROWS)
        self.qkv_bias = builder.weight(f"{base}.qkv.bias", (e.qkv,), ROWS) if e.qkv_bias else None
        self.out = builder.weight(f"{base}.out.weight", (e.hidden, e.q), COLUMNS)
        self.out_bias = builder.weight(f"{base}.out.bias", (e.hidden,)) if e.bias else None
        builder.act("qkv", e.tokens, e.qkv, at=COLUMNS)
        builder.act("o", e.tokens, e.q, at=COLUMNS)
        builder.act("z1", e.tokens, e.hidden, at=PARTIAL)
        builder.act("do", e.tokens, e.q, at=COLUMNS, pool="stash")
        builder.act("dqkv", e.tokens, e.qkv, at=COLUMNS, pool="stash")
        builder.act("dy1", e.tokens, e.hidden, at=PARTIAL)
        self._heads("q", "qkv", e.heads, 0)
        self._heads("k", "qkv", e.kv_heads, e.q)
        self._heads("v", "qkv", e.kv_heads, e.q + e.kv)
        self._heads("do.h", "do", e.heads, 0)
        self._heads("dq.h", "dqkv", e.heads, 0)
        self._heads("dk.h", "dqkv", e.kv_heads, e.q)
        self._heads("dv.h", "dqkv", e.kv_heads, e.q + e.kv)
        self.core = _Unfused(builder) if e.unfused else _Fused(builder)
        if e.rotary:
            self._rotary()

    def _heads(self, name: str, rows: str, heads: int, first: int) -> None:
        """Columns of `rows` (T, …) from `first` on as (b, heads, s, d)."""
        e, width = self.shape, self.builder.tensors[rows].dims[1]
        dims, strides = (e.batch, heads, e.seq, e.head_dim), (width, e.head_dim, e.batch * width, 1)
        self.builder.window(name, rows, dims, strides, first, COLUMNS)

    def _rotary(self) -> None:
        """Queries and keys as (s, b, heads, d), which rotary turns, and its tables."""
        e, builder = self.shape, self.builder
        dims = (e.seq, e.batch, e.heads + e.kv_heads, e.head_dim)
        for rows in ("qkv", "dqkv"):
            builder.window(f"{rows}.turned", rows, dims, (e.batch * e.qkv, e.qkv, e.head_dim, 1), 0, (("tp", "S2"),))
        given: tuple[tuple[str, object], ...] = (("theta", e.rope_theta),)
        if (scaling := e.rope_scaling) is not None:
            given += (("scaling", (scaling.kind, scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor,
                                   scaling.original_max_positions)),)  # fmt: skip
        for name in ("cos", "sin"):
            builder.tensor(f"c:{name}", (e.seq, e.head_dim // 2), e.stat, pool="work", make=(f"rope_{name}", given))

    def _turn(self, way: str, rows: str) -> tuple[Apply, ...]:
        return (apply(f"rope_{way}", f"{rows}.turned c:cos c:sin"),) if self.shape.rotary else ()

    # --- the instructions

    def forward(self, y: str) -> None:
        """y → z1; qkv and what the attention leaves are kept for the backward."""
        builder = self.builder
        project = (
            apply("gemm", f"{y} {self.qkv} {self.qkv_bias or ''}", "qkv", variant="nt"),
            *self._turn("forward", "qkv"),
        )
        merge = (apply("gemm", f"o {self.out}", "z1", variant="nt"),)
        bytes_ = self.core.scores * self.shape_bytes
        if not self.cut:
            builder.forward("attn.core", *project, *self.core.forward(), *merge, transient_bytes=bytes_)
            return
        builder.forward("attn.qkv", *project, transient_bytes=0)
        builder.forward("attn.sdpa", *self.core.forward(), transient_bytes=bytes_)
        builder.forward("attn.proj", *merge, transient_bytes=0)

    @property
    def shape_bytes(self) -> int:
        """Bytes of an element."""
        return self.builder.tensors["o"].bytes // numel(self.builder.tensors["o"].dims)

    def input_gradient(self, dz: str) -> None:
        """dz → dy1, dqkv."""
        e, builder = self.shape, self.builder
        first = (apply("gemm", f"{dz} {self.out}", "do", variant="nn"),)
        last = (*self._turn("backward", "dqkv"), apply("gemm", f"dqkv {self.qkv}", "dy1", variant="nn"))
        bytes_ = (2 * self.core.scores + e.tokens * (e.q + e.qkv)) * self.shape_bytes
        if not self.cut:
            builder.backward("I", "attn.core", *first, *self.core.backward(), *last, transient_bytes=bytes_)
            return
        builder.backward("I", "attn.proj", *first, transient_bytes=0)
        builder.backward("I", "attn.sdpa", *self.core.backward(), transient_bytes=bytes_)
        builder.backward("I", "attn.qkv", *last, transient_bytes=0)

    def weight_gradient(self, dz: str, y: str) -> None:
        """dz, o, y, dqkv → gradients of both products and of the bias."""
        builder = self.builder
        merge, project = weight_gradient(builder, dz, "o", self.out), weight_gradient(builder, "dqkv", y, self.qkv)
        if self.qkv_bias:
            project = (*project, apply("bias_grad", f"dqkv g{self.qkv_bias[1:]}"))
        if not self.cut:
            bytes_ = weight_gradient_bytes(builder, self.out, self.qkv)
            builder.backward("W", "attn.core", *merge, *project, transient_bytes=bytes_)
            return
        for piece, lines, weight in (("attn.proj", merge, self.out), ("attn.qkv", project, self.qkv)):
            builder.backward("W", piece, *lines, transient_bytes=weight_gradient_bytes(builder, weight))


def _packed(gradients: tuple[str, str, str], like: str, priced: bool) -> tuple[Apply, ...]:
    """Gradients of queries, keys and values side by side: each is copied into its heads."""
    copies = (
        apply("copy", f"{to} {d}", priced=priced) for to, d in zip(("dq.h", "dk.h", "dv.h"), gradients, strict=True)
    )
    return apply("empty_like", like, "dqkv"), *copies


class _Fused:
    """One kernel for scores, softmax and values."""

    scores = 0

    def __init__(self, builder: UnitBuilder) -> None:
        e = builder.shape
        heads = (e.batch, e.heads, e.seq, e.head_dim)
        strides = (e.q, e.head_dim, e.batch * e.q, 1)
        builder.stat("lse", e.batch, e.heads, e.seq, at=COLUMNS)
        builder.tensor("oh", heads, at=COLUMNS)
        builder.window("o.h", "o", heads, strides, 0, COLUMNS)
        for name, count in (("dq", e.heads), ("dk", e.kv_heads), ("dv", e.kv_heads)):
            builder.tensor(name, (e.batch, count, e.seq, e.head_dim), at=COLUMNS)
        self.priced = not e.megatron
        self.variant = e.attention + ("+alibi" if e.alibi else "")

    def forward(self) -> tuple[Apply, ...]:
        """q, k, v → o, lse."""
        return (
            apply("attention_forward", "q k v", "oh lse", variant=self.variant),
            apply("rows_of", "oh", "o"),
        )

    def backward(self) -> tuple[Apply, ...]:
        """do, q, k, v, o, lse → dqkv."""
        return (
            apply("attention_backward", "do.h q k v o.h lse", "dq dk dv", variant=self.variant),
            *_packed(("dq", "dk", "dv"), "qkv", self.priced),
        )


class _Unfused:
    """Scores in memory: a product of queries and keys, a softmax, a product with the values."""

    def __init__(self, builder: UnitBuilder) -> None:
        e = self.shape = builder.shape
        matrices = e.batch * e.heads
        square, flat = (matrices, e.seq, e.seq), (matrices, e.seq, e.head_dim)
        for name in ("lse", "dropped", "scores", "dp", "dp.kept", "ds"):
            builder.tensor(name, square, at=ROWS)
        for name in ("qf", "kf", "vf", "of", "dof", "dqf", "dkf", "dvf"):
            builder.tensor(name, flat, at=ROWS)
        builder.tensor("mask.p", square, "uint8", at=ROWS)
        if not e.megatron:
            self._matrices(builder)
        self.scores = numel(square)
        self.scale = e.head_dim**-0.5
        heads = Offset(("tp",) if e.tp > 1 else (), e.heads)
        p = e.attention_dropout
        self.draw: dict[str, Any] = {"mask": Draw(p, SITE_PROBABILITIES, square, heads)} if p else {}
        self.stored = bool(p) and e.megatron  # Megatron-LM keeps the mask and what it left
        self.copied = e.megatron  # its transposes of QKV and context are counted
        self.dropped = "dropped" if p else "lse"
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
        """q, k, v → o, the probabilities [, their mask and what it left]."""
        e = self.shape
        repeat = e.heads // e.kv_heads
        softmax = f"lse {'dropped' if self.draw else '-'}"
        # A mask that is stored is made again by the next line; the copy that Megatron-LM's dropout is.
        store = (apply("store_mask", "dropped", "mask.p", **self.draw),) if self.stored else ()
        first, last = self._split(repeat, self.copied)
        return (
            *first,
            *self._scores(),
            apply("softmax_forward", "scores", softmax, stand_in=self._variant(), scale=self.scale, **self.draw),
            *store,
            *last,
            apply("bmm", f"{self.dropped} vf", "of", variant="nn"),
            apply("merge_heads", "of", "o", batch=e.batch),
        )

    def _split(self, repeat: int, priced: bool) -> tuple[tuple[Apply, ...], tuple[Apply, ...]]:
        """Matrices of queries and keys, then of values where they are wanted; Megatron-LM's transpose is one copy."""
        if self.shape.megatron:
            return (apply("split_heads", "q k v", "qf kf vf", priced=priced, repeat=repeat),), ()
        repeated: dict[str, Any] = {"repeat": repeat} if repeat > 1 else {}
        q = apply("flat_heads", "q", "qf")
        k, v = (apply("flat_heads", n, f"{n}f", **repeated) for n in "kv")
        return (q, k), (v,)

    def _variant(self) -> str | None:
        """Priced of Megatron-LM's softmax: its mask, its dropout and its bias are inside."""
        words = ("causal", "dropout" if self.draw else "", "alibi" if self.shape.alibi else "")
        return "+".join(word for word in words if word) if self.shape.megatron else None

    def _scores(self) -> tuple[Apply, ...]:
        """Queries by keys, with ALiBi's bias: Megatron-DeepSpeed's is a baddbmm on its rows written over the square."""
        product = apply("bmm", "qf kf", "scores", variant="nt")
        if not self.shape.alibi:
            return (product,)
        if not self.shape.serial:
            return (product, apply("alibi_add", "scores c:alibi", priced=not self.copied))
        return (
            apply("alibi_scores", "c:alibi qf", "scores", batch=self.shape.batch),
            apply("bmm_add", "scores qf kf", variant="nt"),
        )

    def backward(self) -> tuple[Apply, ...]:
        """do, q, k, v, the probabilities [, mask, what it left] → dqkv."""
        e, masked = self.shape, {} if self.stored else self.draw
        repeat = e.heads // e.kv_heads
        first, last = self._split(repeat, priced=False)
        if e.megatron:
            first, last = (), first
        again = (apply("drop", "lse", "dropped", **self.draw),) if masked else ()
        kept = (apply("drop_stored", "dp mask.p", "dp.kept", p=e.attention_dropout),) if self.stored else ()
        return (
            apply("flat_heads", "do.h", "dof"),
            *again,
            apply("bmm", f"{self.dropped} dof", "dvf", variant="tn"),
            *last,
            apply("bmm", "dof vf", "dp", variant="nt"),
            *kept,
            apply("softmax_backward", f"{'dp.kept' if kept else 'dp'} lse", "ds", stand_in=self._variant(),
                  scale=self.scale, **masked),
            *first,
            apply("bmm", "ds kf", "dqf", variant="nn"),
            apply("bmm", "ds qf", "dkf", variant="tn"),
            *self._merged(repeat),
        )  # fmt: skip

    def _merged(self, repeat: int) -> tuple[Apply, ...]:
        """Gradients of queries, keys and values side by side; those of repeated heads are summed first."""
        e, names = self.shape, ("dqf", "dkf", "dvf")
        if e.megatron:
            return (apply("merge_qkv", " ".join(names), "dqkv", batch=e.batch, kv_heads=e.kv_heads),)
        folds: tuple[Apply, ...] = ()
        if repeat > 1:
            folds = tuple(apply("fold_heads", f"{n}f", n, repeat=repeat) for n in ("dk", "dv"))
            names = ("dqf", "dk", "dv")
        heads = (f"{names[0]}.s", f"{names[1]}.s", f"{names[2]}.s")
        return *folds, *_packed(heads, "qkv", priced=True)
