"""The pieces a layer is cut into: each one's kernel calls, arguments, results, saved tensors and collectives, listed once.

The compiler walks these lists to emit instructions; the trainer registers one function for each (kind, piece) and is
handed the tensors in the order of `reads`, returning new tensors in the order of `writes`. Names are local to a unit:

* plain names are activations (`x` the unit's input, `x2` its output, `d2` the gradient of the output, `d0` of the input);
* `w:NAME` is a parameter, `g:NAME` its main gradient, `s:loss` the rank's running loss. A name in `writes` that is also in
  `reads` (all `g:` and `s:` names, and tensors updated in place) is updated in place and not returned.

What backward reads of forward's names is what is saved. A name read by backward that forward left in a gather slot is
gathered again (`W AG`), never kept. Optional arguments (a bias, a LayerNorm's mean) are simply absent.

| (kind, piece) | arguments | results |
| --- | --- | --- |
| F embed | tokens, w:table | x0 (T,h): rows outside the local vocabulary are zero |
| F embed.out | x0 [w:positions] [w:norm, b:norm] | x2 [, rstd, mean, xn: the norm's input]; x2 is never x0 itself |
| B embed.out | d2 [xn, rstd, mean, w:norm, g:norm, g:norm bias] [g:positions] | dx0 with norm or dropout, else nothing |
| W embed | dx0, tokens, g:table | |
| F attn.in, mlp.in, head.in | x, w [, b] | y, rstd [, mean] |
| B attn.in, mlp.in | dy, x, rstd [, mean], w, residual gradient, g:w [, g:b] | dx |
| B head.in | dy, x, rstd [, mean], w, g:w [, g:b] | dx |
| F attn.core | y, w:qkv [, b:qkv], w:out | z, qkv, o, lse (or the probabilities when unfused) |
| I attn.core | dz, w:out, w:qkv, qkv, o, lse | dy, dqkv |
| W attn.core | dz, o, y, dqkv, g:out, g:qkv [, g:qkv bias] | |
| F attn.qkv / attn.sdpa / attn.proj | (y, w:qkv [, b]) / (qkv) / (o, w:out) | qkv / o, lse / z |
| I attn.proj / attn.sdpa / attn.qkv | (dz, w:out) / (do, qkv, o, lse) / (dqkv, w:qkv) | do / dqkv / dy |
| W attn.proj / attn.qkv | (dz, o, g:out) / (dqkv, y, g:qkv [, g:b]) | |
| F attn.out, mlp.out | residual, z [, b] | x' |
| B attn.out, mlp.out | d [, g:b] | dz when there is dropout, else nothing |
| F mlp.core | y, w:up [, b:up], w:down | z, u (before the activation, bias added) |
| I mlp.core | dz, w:down, u, w:up | dy, a, du |
| W mlp.core | dz, a, y, du, g:down, g:up [, g:up bias] | |
| F head.logits | y, w:head | logits, rowmax |
| F head.exp | logits, rowmax, targets | sums (2,T): sum of exponentials; target logit, both less the maximum |
| F head.loss | logits, rowmax, sums, targets, s:loss | (logits become their gradient; s:loss += loss) |
| I head.logits | logits, w:head | dy |
| W head.logits | logits, y, g:head | |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from plan.program import DTYPE_BYTES, CommOp, KernelCall, Phase, Pool, Reduce, numel
from plan.shapes import Extents


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype and pool of a named tensor of a unit; `gathered` ones are written by a communication stream into a slot."""

    shape: tuple[int, ...]
    dtype: str
    pool: Pool = "act"
    gathered: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return numel(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Work:
    """A compute instruction of a unit."""

    phase: Phase
    kind: str
    piece: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    body: tuple[KernelCall, ...]
    transient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A tensor-parallel collective of a unit; in place when `reads` == `writes`."""

    phase: Phase
    kind: str
    piece: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    op: CommOp
    bytes: int
    dtype: str
    reduce: Reduce = ""


Step = Work | Move


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit's work, forward and backward, in order, and the tensors it names."""

    number: int
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    tensors: dict[str, TensorSpec] = field(hash=False)
    source: str = "x"
    output: str = "x2"


class _Sheet:
    """Collects the steps and tensors of one unit while it is written down."""

    def __init__(self, e: Extents) -> None:
        self.e = e
        self.tensors: dict[str, TensorSpec] = {}
        self.forward: list[Step] = []
        self.backward: list[Step] = []

    def act(self, name: str, rows: int, columns: int, dtype: str = "", pool: Pool = "act") -> str:
        """Declare an activation."""
        self.tensors[name] = TensorSpec((rows, columns), dtype or self.e.dtype, pool)
        return name

    def stat(self, name: str, *shape: int) -> str:
        """Declare a statistic (fp32, fp64 in fp64 runs)."""
        self.tensors[name] = TensorSpec(shape, self.e.stat)
        return name

    def move(self, phase: Phase, kind: str, piece: str, source: str, target: str, reduce: Reduce = "sum") -> None:
        """A collective from `source` to `target` (the same name: in place)."""
        ops: dict[str, CommOp] = {"AG": "all_gather", "RS": "reduce_scatter", "AR": "all_reduce"}
        spec = self.tensors[target if kind == "AG" else source]
        step = Move(phase, kind, piece, (source,), (target,), ops[kind], spec.bytes, spec.dtype, "" if kind == "AG" else reduce)
        (self.forward if phase == "F" else self.backward).append(step)

    def gathered(self, name: str, rows: int, columns: int) -> str:
        """Declare a tensor that a collective writes into a fixed slot."""
        self.tensors[name] = TensorSpec((rows, columns), self.e.dtype, "gather", gathered=True)
        return name


def _present(*names: str | None) -> tuple[str, ...]:
    return tuple(n for n in names if n)


def _norm_names(e: Extents, base: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Weights and gradients of a norm, in argument order."""
    names = ("weight",) if e.rms else ("weight", "bias")
    return tuple(f"w:{base}.{n}" for n in names), tuple(f"g:{base}.{n}" for n in names)


def _norm_stats(sheet: _Sheet, suffix: str) -> tuple[str, ...]:
    rows = sheet.e.local_tokens
    return (sheet.stat(f"rstd{suffix}", rows), *(() if sheet.e.rms else (sheet.stat(f"mean{suffix}", rows),)))


def _norm_call(e: Extents, way: str, rows: int) -> KernelCall:
    return KernelCall(f"{'rmsnorm' if e.rms else 'layernorm'}_{way}", (rows, e.hidden), e.dtype)


def _norm_forward(sheet: _Sheet, piece: str, base: str, source: str, suffix: str) -> str:
    """norm, then the all-gather of sequence parallelism; returns the name the core reads."""
    e = sheet.e
    weights, _ = _norm_names(e, base)
    y = sheet.act(f"y{suffix}", e.local_tokens, e.hidden)
    stats = _norm_stats(sheet, suffix)
    body = (_norm_call(e, "forward", e.local_tokens),)
    sheet.forward.append(Work("F", "F", piece, (source, *weights), (y, *stats), body))
    if not e.sequence_parallel:
        return y
    full = sheet.gathered(f"y{suffix}f", e.tokens, e.hidden)
    sheet.move("F", "AG", piece, y, full)
    return full


def _norm_backward(sheet: _Sheet, piece: str, base: str, suffix: str, names: tuple[str, str, str | None, str]) -> None:
    """names: gradient of the norm's output, its input, the residual gradient (None at the head), the result."""
    e = sheet.e
    dy, x, residual, dx = names
    weights, gradients = _norm_names(e, base)
    stats = tuple(n for n in (f"rstd{suffix}", f"mean{suffix}") if n in sheet.tensors)
    sheet.act(dx, e.local_tokens, e.hidden)
    reads = (dy, x, *stats, weights[0], *_present(residual), *gradients)
    sheet.backward.append(Work("B", "B", piece, reads, (dx, *gradients), (_norm_call(e, "backward", e.local_tokens),)))


def _reduce_forward(sheet: _Sheet, piece: str, z: str) -> str:
    """The sum over tensor-parallel ranks that follows a row-parallel product."""
    e = sheet.e
    if e.tp == 1:
        return z
    if not e.sequence_parallel:
        sheet.move("F", "AR", piece, z, z)
        return z
    reduced = sheet.gathered(f"{z}r", e.local_tokens, e.hidden)
    sheet.move("F", "RS", piece, z, reduced)
    return reduced


def _reduce_backward(sheet: _Sheet, piece: str, dy: str) -> str:
    """The sum of the input gradient over tensor-parallel ranks; it runs beside the weight gradients."""
    e = sheet.e
    if e.tp == 1:
        return dy
    if not e.sequence_parallel:
        sheet.move("B", "AR", piece, dy, dy)
        return dy
    reduced = sheet.gathered(f"{dy}r", e.local_tokens, e.hidden)
    sheet.move("B", "RS", piece, dy, reduced)
    return reduced


def _out_forward(sheet: _Sheet, piece: str, bias: str, names: tuple[str, str, str]) -> None:
    """Residual add with the row bias and dropout. names: residual, summed product, result."""
    e = sheet.e
    residual, z, out = names
    sheet.act(out, e.local_tokens, e.hidden)
    weight = (f"w:{bias}",) if e.bias else ()
    variant = "+".join(_present("bias" if e.bias else None, "dropout" if e.dropout else None))
    body = (KernelCall("add", (e.local_tokens, e.hidden), e.dtype, variant),)
    sheet.forward.append(Work("F", "F", piece, (residual, z, *weight), (out,), body))


def _out_backward(sheet: _Sheet, piece: str, bias: str, gradient: str, dz: str) -> str:
    """Backward of the residual branch: dropout's mask and the bias gradient, then the gather of sequence parallelism."""
    e = sheet.e
    branch = gradient
    if e.bias or e.dropout:
        grads = (f"g:{bias}",) if e.bias else ()
        results = (sheet.act(dz, e.local_tokens, e.hidden),) if e.dropout else ()
        branch = dz if e.dropout else gradient
        variant = "+".join(_present("bias" if e.bias else None, "dropout" if e.dropout else None))
        body = (KernelCall("add_backward", (e.local_tokens, e.hidden), e.dtype, variant),)
        sheet.backward.append(Work("B", "B", piece, (gradient, *grads), (*results, *grads), body))
    if not e.sequence_parallel:
        return branch
    full = sheet.gathered(f"{dz}f", e.tokens, e.hidden)
    sheet.move("B", "AG", piece, branch, full)
    return full


def _regather(sheet: _Sheet, piece: str, suffix: str) -> str:
    """The core's input for its weight gradient: gathered again under sequence parallelism, else the saved one."""
    e = sheet.e
    if not e.sequence_parallel:
        return f"y{suffix}"
    full = sheet.gathered(f"y{suffix}g", e.tokens, e.hidden)
    sheet.move("W", "AG", piece, f"y{suffix}", full)
    return full


def _gemm(e: Extents, m: int, n: int, k: int, variant: str) -> KernelCall:
    return KernelCall("gemm", (m, n, k), e.dtype, variant)


def _attention_calls(e: Extents) -> tuple[tuple[KernelCall, ...], tuple[KernelCall, ...], int, int]:
    """Kernel calls of the attention itself forward and backward, and their transient bytes."""
    size = DTYPE_BYTES[e.dtype]
    rope = (e.tokens, e.heads + e.kv_heads, e.head_dim)
    forward: list[KernelCall] = [KernelCall("rope_forward", rope, e.dtype)] if e.rotary else []
    tail: list[KernelCall] = [KernelCall("rope_backward", rope, e.dtype)] if e.rotary else []
    if not e.unfused:
        shape = (e.batch, e.heads, e.kv_heads, e.seq, e.head_dim)
        variant = e.attention + ("+alibi" if e.alibi else "")
        forward.append(KernelCall("attention_forward", shape, e.dtype, variant))
        backward = [KernelCall("attention_backward", shape, e.dtype, variant), *tail]
        return tuple(forward), tuple(backward), 0, e.tokens * (e.q + e.qkv) * size
    batch, s, d = e.batch * e.heads, e.seq, e.head_dim
    scores = batch * s * s * size
    variant = "+".join(_present("causal", "dropout" if e.attention_dropout else None, "alibi" if e.alibi else None))
    forward += [
        KernelCall("bmm", (batch, s, s, d), e.dtype, "nt"),
        KernelCall("softmax_forward", (batch * s, s), e.dtype, variant),
        KernelCall("bmm", (batch, s, d, s), e.dtype, "nn"),
    ]
    backward = [
        KernelCall("bmm", (batch, s, d, s), e.dtype, "tn"),
        KernelCall("bmm", (batch, s, s, d), e.dtype, "nt"),
        KernelCall("softmax_backward", (batch * s, s), e.dtype, variant),
        KernelCall("bmm", (batch, s, d, s), e.dtype, "nn"),
        KernelCall("bmm", (batch, s, d, s), e.dtype, "tn"),
        *tail,
    ]
    return tuple(forward), tuple(backward), scores, 2 * scores + e.tokens * (e.q + e.qkv) * size


def _attention_tensors(sheet: _Sheet) -> None:
    e = sheet.e
    sheet.act("qkv", e.tokens, e.qkv)
    sheet.act("o", e.tokens, e.q)
    if e.unfused:
        sheet.tensors["lse"] = TensorSpec((e.batch * e.heads, e.seq, e.seq), e.dtype)
    else:
        sheet.stat("lse", e.batch, e.heads, e.seq)
    sheet.act("z1", e.tokens, e.hidden)
    sheet.act("do", e.tokens, e.q, pool="stash")
    sheet.act("dqkv", e.tokens, e.qkv, pool="stash")
    sheet.act("dy1", e.tokens, e.hidden)


def _attention_forward(sheet: _Sheet, base: str, y: str, cut: bool) -> None:
    e = sheet.e
    calls, _, transient, _ = _attention_calls(e)
    bias = (f"w:{base}.qkv.bias",) if e.qkv_bias else ()
    weights, out = (f"w:{base}.qkv.weight", *bias), f"w:{base}.out.weight"
    project = (_gemm(e, e.tokens, e.qkv, e.hidden, "nt+bias" if e.qkv_bias else "nt"),)
    merge = (_gemm(e, e.tokens, e.hidden, e.q, "nt"),)
    if not cut:
        body = (*project, *calls, *merge)
        sheet.forward.append(Work("F", "F", "attn.core", (y, *weights, out), ("z1", "qkv", "o", "lse"), body, transient))
        return
    rope, core = (calls[:1], calls[1:]) if e.rotary else ((), calls)
    sheet.forward += [
        Work("F", "F", "attn.qkv", (y, *weights), ("qkv",), (*project, *rope)),
        Work("F", "F", "attn.sdpa", ("qkv",), ("o", "lse"), core, transient),
        Work("F", "F", "attn.proj", ("o", out), ("z1",), merge),
    ]


def _attention_input_gradient(sheet: _Sheet, base: str, dz: str, cut: bool) -> None:
    e = sheet.e
    _, calls, _, transient = _attention_calls(e)
    qkv, out = f"w:{base}.qkv.weight", f"w:{base}.out.weight"
    first = (_gemm(e, e.tokens, e.q, e.hidden, "nn"),)
    last = (_gemm(e, e.tokens, e.hidden, e.qkv, "nn"),)
    if not cut:
        body = (*first, *calls, *last)
        reads = (dz, out, qkv, "qkv", "o", "lse")
        sheet.backward.append(Work("B", "I", "attn.core", reads, ("dy1", "dqkv"), body, transient))
        return
    core, rope = (calls[:-1], calls[-1:]) if e.rotary else (calls, ())
    sheet.backward += [
        Work("B", "I", "attn.proj", (dz, out), ("do",), first),
        Work("B", "I", "attn.sdpa", ("do", "qkv", "o", "lse"), ("dqkv",), core, transient),
        Work("B", "I", "attn.qkv", ("dqkv", qkv), ("dy1",), (*rope, *last)),
    ]


def _attention_weight_gradient(sheet: _Sheet, base: str, names: tuple[str, str], cut: bool) -> None:
    """names: gradient of the output product, input of the QKV product."""
    e = sheet.e
    dz, y = names
    grads = (f"g:{base}.qkv.weight", *((f"g:{base}.qkv.bias",) if e.qkv_bias else ()))
    out = f"g:{base}.out.weight"
    merge = (_gemm(e, e.hidden, e.q, e.tokens, "tn+acc32"),)
    project = [_gemm(e, e.qkv, e.hidden, e.tokens, "tn+acc32")]
    if e.qkv_bias:
        project.append(KernelCall("bias_grad", (e.tokens, e.qkv), e.dtype))
    if not cut:
        reads = (dz, "o", y, "dqkv", out, *grads)
        sheet.backward.append(Work("W", "W", "attn.core", reads, (out, *grads), (*merge, *project)))
        return
    sheet.backward += [
        Work("W", "W", "attn.proj", (dz, "o", out), (out,), merge),
        Work("W", "W", "attn.qkv", ("dqkv", y, *grads), grads, tuple(project)),
    ]


def _mlp_core(sheet: _Sheet, base: str, y: str) -> None:
    e = sheet.e
    sheet.act("u", e.tokens, e.up)
    sheet.act("z2", e.tokens, e.hidden)
    act = KernelCall("swiglu_forward" if e.gated else "gelu_forward", (e.tokens, e.ffn), e.dtype)
    bias = (f"w:{base}.up.bias",) if e.bias else ()
    body = (
        _gemm(e, e.tokens, e.up, e.hidden, "nt+bias" if e.bias else "nt"),
        act,
        _gemm(e, e.tokens, e.hidden, e.ffn, "nt"),
    )
    reads = (y, f"w:{base}.up.weight", *bias, f"w:{base}.down.weight")
    transient = e.tokens * e.ffn * DTYPE_BYTES[e.dtype]
    sheet.forward.append(Work("F", "F", "mlp.core", reads, ("z2", "u"), body, transient))


def _mlp_input_gradient(sheet: _Sheet, base: str, dz: str) -> None:
    e = sheet.e
    sheet.act("dy2", e.tokens, e.hidden)
    sheet.act("a", e.tokens, e.ffn, pool="stash")
    sheet.act("du", e.tokens, e.up, pool="stash")
    body = (
        _gemm(e, e.tokens, e.ffn, e.hidden, "nn"),
        KernelCall("swiglu_backward" if e.gated else "gelu_backward", (e.tokens, e.ffn), e.dtype),
        _gemm(e, e.tokens, e.hidden, e.up, "nn"),
    )
    reads = (dz, f"w:{base}.down.weight", "u", f"w:{base}.up.weight")
    transient = e.tokens * e.ffn * DTYPE_BYTES[e.dtype]
    sheet.backward.append(Work("B", "I", "mlp.core", reads, ("dy2", "a", "du"), body, transient))


def _mlp_weight_gradient(sheet: _Sheet, base: str, dz: str, y: str) -> None:
    e = sheet.e
    body = [_gemm(e, e.hidden, e.ffn, e.tokens, "tn+acc32"), _gemm(e, e.up, e.hidden, e.tokens, "tn+acc32")]
    grads = [f"g:{base}.down.weight", f"g:{base}.up.weight"]
    if e.bias:
        grads.append(f"g:{base}.up.bias")
        body.append(KernelCall("bias_grad", (e.tokens, e.up), e.dtype))
    sheet.backward.append(Work("W", "W", "mlp.core", (dz, "a", y, "du", *grads), tuple(grads), tuple(body)))


def layer(e: Extents, number: int, cut: bool = False) -> Unit:
    """A transformer layer as unit `number` (1…L); `cut` splits `attn.core` for selective recompute."""
    sheet, base = _Sheet(e), f"layers.{number - 1}"
    sheet.act("x", e.local_tokens, e.hidden)
    sheet.act("d2", e.local_tokens, e.hidden)
    _attention_tensors(sheet)
    y = _norm_forward(sheet, "attn.in", f"{base}.attn.norm", "x", "1")
    _attention_forward(sheet, f"{base}.attn", y, cut)
    z = _reduce_forward(sheet, "attn.out", "z1")
    _out_forward(sheet, "attn.out", f"{base}.attn.out.bias", ("x", z, "x1"))
    y = _norm_forward(sheet, "mlp.in", f"{base}.mlp.norm", "x1", "2")
    _mlp_core(sheet, f"{base}.mlp", y)
    z = _reduce_forward(sheet, "mlp.out", "z2")
    _out_forward(sheet, "mlp.out", f"{base}.mlp.down.bias", ("x1", z, "x2"))

    dz = _out_backward(sheet, "mlp.out", f"{base}.mlp.down.bias", "d2", "dz2")
    y = _regather(sheet, "mlp.in", "2")
    _mlp_input_gradient(sheet, f"{base}.mlp", dz)
    dy = _reduce_backward(sheet, "mlp.in", "dy2")
    _mlp_weight_gradient(sheet, f"{base}.mlp", dz, y)
    _norm_backward(sheet, "mlp.in", f"{base}.mlp.norm", "2", (dy, "x1", "d2", "d1"))
    dz = _out_backward(sheet, "attn.out", f"{base}.attn.out.bias", "d1", "dz1")
    y = _regather(sheet, "attn.in", "1")
    _attention_input_gradient(sheet, f"{base}.attn", dz, cut)
    dy = _reduce_backward(sheet, "attn.in", "dy1")
    _attention_weight_gradient(sheet, f"{base}.attn", (dz, y), cut)
    _norm_backward(sheet, "attn.in", f"{base}.attn.norm", "1", (dy, "x", "d1", "d0"))
    return Unit(number, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors)


def embedding(e: Extents) -> Unit:
    """Unit 0: vocabulary-parallel lookup, its sum, then positions, embedding norm and dropout where the model has them."""
    sheet = _Sheet(e)
    sheet.tensors["tokens"] = TensorSpec((e.tokens,), "int64")
    sheet.act("x0", e.tokens, e.hidden)
    sheet.act("d2", e.local_tokens, e.hidden)
    table = "embed.tokens.weight"
    look = (KernelCall("embedding_forward", (e.tokens, e.hidden, e.vocab), e.dtype),)
    sheet.forward.append(Work("F", "F", "embed", ("tokens", f"w:{table}"), ("x0",), look))
    output = _reduce_forward(sheet, "embed", "x0")
    gradient = "d2"
    if e.learned or e.embedding_norm or e.dropout or e.sequence_parallel:  # a gather slot cannot hold the residual stream
        gradient = _embedding_out(sheet, output)
        output = "x2"
    if e.sequence_parallel:
        sheet.gathered("dx0f", e.tokens, e.hidden)
        sheet.move("B", "AG", "embed", gradient, "dx0f")
        gradient = "dx0f"
    scatter = (KernelCall("embedding_backward", (e.tokens, e.hidden, e.vocab), e.dtype),)
    sheet.backward.append(Work("W", "W", "embed", (gradient, "tokens", f"g:{table}"), (f"g:{table}",), scatter))
    return Unit(0, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors, source="tokens", output=output)


def _embedding_out(sheet: _Sheet, x0: str) -> str:
    """Positions, embedding norm and dropout; returns the name of the gradient that leaves it backward."""
    e = sheet.e
    sheet.act("x2", e.local_tokens, e.hidden)
    sheet.act("dx0", e.local_tokens, e.hidden)
    weights, gradients = _norm_names(e, "embed.norm") if e.embedding_norm else ((), ())
    stats = _norm_stats(sheet, "0") if e.embedding_norm else ()
    positions = ("embed.positions.weight",) if e.learned else ()
    shape = (e.local_tokens, e.hidden)
    forward = [KernelCall("position_forward", shape, e.dtype)] if e.learned else []
    backward = [KernelCall("position_backward", shape, e.dtype)] if e.learned else []
    if e.embedding_norm:
        forward.append(_norm_call(e, "forward", e.local_tokens))
        backward.append(_norm_call(e, "backward", e.local_tokens))
    if e.dropout:
        forward.append(KernelCall("add_backward", shape, e.dtype, "dropout"))  # a mask, no residual: one read, one write
        backward.append(KernelCall("add_backward", shape, e.dtype, "dropout"))
    kept = (sheet.act("xn", e.local_tokens, e.hidden),) if e.embedding_norm else ()
    reads = (x0, *(f"w:{p}" for p in positions), *weights)
    calls = tuple(forward) or (KernelCall("copy", (e.local_tokens * e.hidden,), e.dtype),)
    sheet.forward.append(Work("F", "F", "embed.out", reads, ("x2", *stats, *kept), calls))
    gradients = (*gradients, *(f"g:{p}" for p in positions))
    moves = e.embedding_norm or e.dropout
    if not gradients and not moves:
        return "d2"
    saved = (*kept, *stats, weights[0]) if e.embedding_norm else ()
    results = ("dx0",) if moves else ()
    sheet.backward.append(Work("B", "B", "embed.out", ("d2", *saved, *gradients), (*results, *gradients), tuple(backward)))
    return "dx0" if moves else "d2"


def head(e: Extents, weight: str) -> Unit:
    """Unit L+1: final norm, vocabulary-parallel logits and cross entropy. `weight` names the (possibly tied) table."""
    sheet = _Sheet(e)
    sheet.act("x", e.local_tokens, e.hidden)
    sheet.tensors["targets"] = TensorSpec((e.tokens,), "int64")
    sheet.act("logits", e.tokens, e.vocab)
    sheet.stat("rowmax", e.tokens)
    sheet.stat("sums", 2, e.tokens)
    sheet.act("dy", e.tokens, e.hidden)
    y = _norm_forward(sheet, "head.in", "head.norm", "x", "")
    shape = (e.tokens, e.vocab)
    product = (_gemm(e, e.tokens, e.vocab, e.hidden, "nt"), KernelCall("ce_max", shape, e.dtype))
    sheet.forward.append(Work("F", "F", "head.logits", (y, f"w:{weight}"), ("logits", "rowmax"), product))
    if e.tp > 1:
        sheet.move("F", "AR", "head.logits", "rowmax", "rowmax", "max")
    exp = (KernelCall("ce_exp", shape, e.dtype),)
    sheet.forward.append(Work("F", "F", "head.exp", ("logits", "rowmax", "targets"), ("sums",), exp))
    if e.tp > 1:
        sheet.move("F", "AR", "head.exp", "sums", "sums")
    loss = (KernelCall("ce_loss", shape, e.dtype),)
    reads = ("logits", "rowmax", "sums", "targets", "s:loss")
    sheet.forward.append(Work("F", "F", "head.loss", reads, ("logits", "s:loss"), loss))

    y = _regather(sheet, "head.in", "")
    back = (_gemm(e, e.tokens, e.hidden, e.vocab, "nn"),)
    sheet.backward.append(Work("B", "I", "head.logits", ("logits", f"w:{weight}"), ("dy",), back))
    dy = _reduce_backward(sheet, "head.in", "dy")
    grad = (_gemm(e, e.vocab, e.hidden, e.tokens, "tn+acc32"),)
    sheet.backward.append(Work("W", "W", "head.logits", ("logits", y, f"g:{weight}"), (f"g:{weight}",), grad))
    _norm_backward(sheet, "head.in", "head.norm", "", (dy, "x", None, "d0"))
    return Unit(-1, tuple(sheet.forward), tuple(sheet.backward), sheet.tensors, output="logits")


def saved_names(unit: Unit) -> tuple[str, ...]:
    """Activations that backward reads and forward made or was given, in order of making: what a unit keeps."""
    made = [unit.source, *(n for s in unit.forward for n in (*s.reads, *s.writes))]
    wanted = set(_plain(n for s in unit.backward for n in s.reads))
    return tuple(dict.fromkeys(n for n in _plain(made) if n in wanted and not unit.tensors[n].gathered))


def _plain(names: Iterable[str]) -> Iterable[str]:
    return (n for n in names if ":" not in n)
