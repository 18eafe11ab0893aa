"""The sheet a unit is written down on, and the parts every unit shares: norms, tensor-parallel sums, residual adds.

Each helper appends forward or backward steps to the sheet and returns the name the next step reads.
"""

from __future__ import annotations

from plan.pieces.shapes import Extents
from plan.pieces.unit import Move, Step, TensorSpec, Work
from plan.program import DTYPE_BYTES, CommOp, KernelCall, Phase, Pool, Reduce


class Sheet:
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
        summed: Reduce = "" if kind == "AG" else reduce
        step = Move(phase, kind, piece, (source,), (target,), ops[kind], spec.bytes, spec.dtype, summed)
        (self.forward if phase == "F" else self.backward).append(step)

    def gathered(self, name: str, rows: int, columns: int) -> str:
        """Declare a tensor that a collective writes into a fixed slot."""
        self.tensors[name] = TensorSpec((rows, columns), self.e.dtype, "gather", gathered=True)
        return name


def present(*names: str | None) -> tuple[str, ...]:
    return tuple(n for n in names if n)


def norm_names(e: Extents, base: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Weights and gradients of a norm, in argument order."""
    names = ("weight",) if e.rms else ("weight", "bias")
    return tuple(f"w:{base}.{n}" for n in names), tuple(f"g:{base}.{n}" for n in names)


def norm_stats(sheet: Sheet, suffix: str) -> tuple[str, ...]:
    rows = sheet.e.local_tokens
    return (sheet.stat(f"rstd{suffix}", rows), *(() if sheet.e.rms else (sheet.stat(f"mean{suffix}", rows),)))


def norm_call(e: Extents, way: str, rows: int) -> KernelCall:
    return KernelCall(f"{'rmsnorm' if e.rms else 'layernorm'}_{way}", (rows, e.hidden), e.dtype)


def norm_forward(sheet: Sheet, piece: str, base: str, source: str, suffix: str) -> str:
    """norm, then the all-gather of sequence parallelism; returns the name the core reads."""
    e = sheet.e
    weights, _ = norm_names(e, base)
    y = sheet.act(f"y{suffix}", e.local_tokens, e.hidden)
    stats = norm_stats(sheet, suffix)
    body = (norm_call(e, "forward", e.local_tokens),)
    sheet.forward.append(Work("F", "F", piece, (source, *weights), (y, *stats), body))
    if not e.sequence_parallel:
        return y
    full = sheet.gathered(f"y{suffix}f", e.tokens, e.hidden)
    sheet.move("F", "AG", piece, y, full)
    return full


def norm_backward(sheet: Sheet, piece: str, base: str, suffix: str, names: tuple[str, str, str | None, str]) -> None:
    """names: gradient of the norm's output, its input, the residual gradient (None at the head), the result."""
    e = sheet.e
    dy, x, residual, dx = names
    weights, gradients = norm_names(e, base)
    stats = tuple(n for n in (f"rstd{suffix}", f"mean{suffix}") if n in sheet.tensors)
    sheet.act(dx, e.local_tokens, e.hidden)
    reads = (dy, x, *stats, weights[0], *present(residual), *gradients)
    body = [norm_call(e, "backward", e.local_tokens)]
    if e.megatron:  # its kernel reads dy and x again for the weight gradients, and autograd adds the residual apart
        body.append(KernelCall("bias_grad", (e.local_tokens, e.hidden), e.dtype, "", 2))
        body += [KernelCall("add", (e.local_tokens, e.hidden), e.dtype)] if residual else []
    sheet.backward.append(Work("B", "B", piece, reads, (dx, *gradients), tuple(body)))


def reduce_forward(sheet: Sheet, piece: str, z: str) -> str:
    """The sum over tensor-parallel ranks that follows a row-parallel product."""
    return _reduce(sheet, "F", piece, z)


def reduce_backward(sheet: Sheet, piece: str, dy: str) -> str:
    """The sum of the input gradient over tensor-parallel ranks; it runs beside the weight gradients."""
    return _reduce(sheet, "B", piece, dy)


def _reduce(sheet: Sheet, phase: Phase, piece: str, name: str) -> str:
    """Summed in place, or under sequence parallelism each rank's rows of the sum; returns the name of the sum."""
    e = sheet.e
    if e.tp == 1:
        return name
    if not e.sequence_parallel:
        sheet.move(phase, "AR", piece, name, name)
        return name
    reduced = sheet.gathered(f"{name}r", e.local_tokens, e.hidden)
    sheet.move(phase, "RS", piece, name, reduced)
    return reduced


def sum_beside(sheet: Sheet, sum_: tuple[str, str], *weight_gradients: Work) -> str:
    """The sum of an input gradient (piece, name) is begun before the weight gradients, to run beside them; in
    autograd's order it comes after."""
    if sheet.e.serial:
        sheet.backward += weight_gradients
        return reduce_backward(sheet, *sum_)
    summed = reduce_backward(sheet, *sum_)
    sheet.backward += weight_gradients
    return summed


def out_forward(sheet: Sheet, piece: str, bias: str, names: tuple[str, str, str]) -> None:
    """Residual add with the row bias and dropout. names: residual, summed product, result."""
    e = sheet.e
    residual, z, out = names
    sheet.act(out, e.local_tokens, e.hidden)
    weight = (f"w:{bias}",) if e.bias else ()
    variant = "+".join(present("bias" if e.bias else None, "dropout" if e.dropout else None))
    body = (KernelCall("add", (e.local_tokens, e.hidden), e.dtype, variant),)
    sheet.forward.append(Work("F", "F", piece, (residual, z, *weight), (out, *_mask(sheet, out)), body))


def _mask(sheet: Sheet, name: str) -> tuple[str, ...]:
    """The dropout mask Megatron-LM stores, a byte an element; ours is made again from its counter."""
    e = sheet.e
    if not (e.megatron and e.dropout):
        return ()
    return (sheet.act(f"mask.{name}", e.local_tokens, e.hidden, "uint8"),)


def out_backward(sheet: Sheet, piece: str, bias: str, gradient: str, dz: str) -> str:
    """Backward of the residual branch: dropout mask and bias gradient, then the gather of sequence parallelism."""
    e = sheet.e
    branch = gradient
    if e.bias or e.dropout:
        grads = (f"g:{bias}",) if e.bias else ()
        results = (sheet.act(dz, e.local_tokens, e.hidden),) if e.dropout else ()
        branch = dz if e.dropout else gradient
        variant = "+".join(present("bias" if e.bias else None, "dropout" if e.dropout else None))
        body = (KernelCall("add_backward", (e.local_tokens, e.hidden), e.dtype, variant),)
        mask = tuple(n for n in (f"mask.x{dz[-1]}",) if n in sheet.tensors)
        sheet.backward.append(Work("B", "B", piece, (gradient, *mask, *grads), (*results, *grads), body))
    if not e.sequence_parallel:
        return branch
    full = sheet.gathered(f"{dz}f", e.tokens, e.hidden)
    sheet.move("B", "AG", piece, branch, full)
    return full


def regather(sheet: Sheet, piece: str, suffix: str) -> str:
    """The core's input for its weight gradient: gathered again under sequence parallelism, else the saved one."""
    e = sheet.e
    if not e.sequence_parallel:
        return f"y{suffix}"
    full = sheet.gathered(f"y{suffix}g", e.tokens, e.hidden)
    sheet.move("W", "AG", piece, f"y{suffix}", full)
    return full


def gemm(e: Extents, m: int, n: int, k: int, variant: str) -> KernelCall:
    return KernelCall("gemm", (m, n, k), e.dtype, variant)


def weight_products(e: Extents, *shapes: tuple[int, int, int]) -> tuple[tuple[KernelCall, ...], int]:
    """Kernel calls that make weight gradients (m, n) from k tokens and bring them where `e.gradients` says, and their
    transient bytes."""
    if e.gradients == "fused":
        layout = "tn+acc16" if DTYPE_BYTES[e.gradient] == 2 else "tn+acc32"
        return tuple(gemm(e, *shape, layout) for shape in shapes), 0
    products = [gemm(e, *shape, "tn") for shape in shapes]
    if e.gradients == "apart":
        return tuple(products), 0
    sums = [KernelCall("add", (m * n,), e.dtype) for m, n, _ in shapes]
    calls = tuple(call for pair in zip(products, sums, strict=True) for call in pair)
    return calls, max(m * n for m, n, _ in shapes) * DTYPE_BYTES[e.dtype]
