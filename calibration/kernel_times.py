"""The time of one kernel call: which measured table or fitted line answers for it, and how far it is from what was
measured.

An entry is keyed by (operator, dtype, variant); `*` matches anything. The search goes from exact to general and what
it had to give up is reported by `Coverage`, so that a forecast can say so:

    same operator, dtype and variant → other variant → other dtype (time scaled by element size or rate) → the class's
    fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from calibration.forms import AccumulateForm, AttentionForm, GemmForm, RooflineForm, TileForm
from calibration.frameworks import Framework
from calibration.lookup import Curve, Line, Scatter
from program import DTYPE_BYTES, KernelCall
from program.ops import OPERATORS


@dataclass(frozen=True, slots=True)
class Coverage:
    """How well a call is covered. `inside`: between measured points (or a fit that has no table); `extrapolated`:
    outside by `factor` in some extent; `missing`: never measured, derived by `how`."""

    status: Literal["inside", "extrapolated", "missing"]
    factor: float
    how: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator's cost at a dtype and variant (`*`: any). Exactly one model is set."""

    op: str
    dtype: str
    variant: str
    gemm: GemmForm | None = None
    attention: AttentionForm | None = None
    memory: Curve | None = None
    scatter: Scatter | None = None
    sigma: float = 0.0
    source: str = ""
    issue_s: float | None = None

    def seconds(self, call: KernelCall, dtype: str) -> float:
        """Time of one execution of `call`, taken as if in `dtype`."""
        operator = OPERATORS[call.op]
        one = call if dtype == call.dtype else KernelCall(call.op, call.shape, dtype, call.variant)
        if self.memory is not None:
            return self.memory.seconds(operator.bytes_(one))
        shape = extents(call)
        if self.gemm is not None:
            base = self.gemm.seconds(operator.bytes_(one), *shape)
        else:
            assert self.attention is not None
            b, heads, _, s, d = shape
            base = self.attention.seconds(operator.flops(one), b, heads, s, d)
        return base * self.scatter.correction(shape) if self.scatter else base

    def overshoot(self, call: KernelCall) -> float:
        """Factor by which `call` lies outside the entry's points (1 inside, or when it is a bare fit)."""
        if self.memory is not None:
            return self.memory.overshoot(OPERATORS[call.op].bytes_(call))
        return self.scatter.overshoot(extents(call)) if self.scatter else 1.0

    def error_term(self, call: KernelCall) -> float:
        """Relative standard deviation of the price of `call`: `sigma` inside the points, and one more for each octave
        outside them. A call that is a point is no exception: how well its timing repeats says nothing of what is
        different inside a step."""
        return self.sigma * (1.0 + math.log2(self.overshoot(call)))


def extents(call: KernelCall) -> tuple[int, ...]:
    """Coordinates of a call in its table: (batch, m, n, k), or (b, heads, kv_heads, s, d)."""
    if call.op == "gemm":
        return (1, *call.shape)
    return call.shape


def of_framework(entries: Iterable[Entry], one_pass: Entry, framework: Framework, per_kernel_s: float) -> list[Entry]:
    """`entries` with the operators of a framework priced by its own launches and traffic, each pass as the profile's
    eager `add` (`one_pass`), and its attention by the variant that it calls."""
    kept = list(entries)
    assert one_pass.memory is not None
    line = one_pass.memory.line
    own = []
    for op, (launches, ratio) in framework.operators.items():
        curve = Curve(Line(line.launch_s * launches, line.seconds_per_unit * ratio))
        own.append(replace(one_pass, op=op, memory=curve, issue_s=launches * per_kernel_s))
    products = [e for e in kept if e.gemm is not None and e.op == "gemm" and "acc32" not in e.variant]
    for variant, bytes_, counted in (
        ("tn+acc32", framework.accumulate_bytes, 6.0),
        ("tn+acc16", framework.flatten_bytes, 2.0),
    ):
        for entry in products if bytes_ else ():
            assert isinstance(entry.gemm, RooflineForm | TileForm)
            both = AccumulateForm(entry.gemm, line.launch_s, bytes_, 1.0 / line.seconds_per_unit, counted)
            own.append(replace(entry, variant=variant, gemm=both, issue_s=2 * per_kernel_s))
    gone = {("gemm", e.dtype, e.variant) for e in own if e.gemm is not None}
    kept = [e for e in kept if e.op not in framework.operators and (e.op, e.dtype, e.variant) not in gone]
    return [_launched(e, framework, per_kernel_s) for e in _attending_by(kept, framework.attention)] + own


def _launched(entry: Entry, framework: Framework, per_kernel_s: float) -> Entry:
    """An attention entry at the framework's launches; any other as it is."""
    if entry.attention is None:
        return entry
    launches = framework.attention_launches[entry.op == "attention_backward"]
    return replace(entry, issue_s=launches * per_kernel_s)


def _attending_by(entries: list[Entry], variant: str) -> list[Entry]:
    """`entries` with one variant of fused attention for all; as they are without a name, or where the profile has no
    such variant."""
    named = [e for e in entries if e.attention is not None and e.variant == variant]
    if not named:
        return entries
    return [e for e in entries if e.attention is None] + [replace(e, variant="*") for e in named]


class KernelTimes:
    """All entries of a profile for one thread count and one kind of kernels. `find` is the whole policy of
    fallbacks; of entries with the same key the last holds."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries: dict[tuple[str, str, str], Entry] = {(e.op, e.dtype, e.variant): e for e in entries}

    def seconds(self, call: KernelCall) -> float:
        """Time of one execution. Raises KeyError when the profile has no entry of the call's class at all."""
        entry, dtype, ratio, _ = self.find(call)
        return entry.seconds(call, dtype) * ratio

    def covers(self, call: KernelCall, beyond: float = 2.0) -> Coverage:
        """Whether `call` is inside, outside by more than `beyond`, or missing."""
        entry, _, _, how = self.find(call)
        if how:
            return Coverage("missing", 1.0, how)
        factor = entry.overshoot(call)
        return Coverage("extrapolated" if factor > beyond else "inside", factor, "")

    def error_term(self, call: KernelCall) -> tuple[str, float]:
        """(source, relative standard deviation) of the price of `call`. What stands in for another operator or dtype
        is as uncertain as the least certain entry of the class."""
        entry, _, _, how = self.find(call)
        if not how or entry.op == "*":
            return entry.source, entry.error_term(call)
        kind = OPERATORS[call.op].kind
        alike = (e.sigma for e in self._entries.values() if e.op != "*" and OPERATORS[e.op].kind == kind)
        return entry.source, max(entry.error_term(call), *alike)

    def find(self, call: KernelCall) -> tuple[Entry, str, float, str]:
        """(entry, dtype to ask it in, factor on its time, what was given up or '')."""
        for op, note in _similar(call):
            for dtype in (call.dtype, "*"):
                for variant in _variants(call):
                    entry = self._entries.get((op, dtype, variant))
                    if entry is not None:
                        return entry, call.dtype, 1.0, note
            other = self._other_dtype(op, call)
            if other is not None:
                given = _named(op, other[0].dtype, other[0].variant)
                return (*other, f"{given} stands in for {_named(call.op, call.dtype, call.variant)}")
        raise KeyError(f"the profile has no entry for {call.op} and no fit of its class")

    def _other_dtype(self, op: str, call: KernelCall) -> tuple[Entry, str, float] | None:
        same_op = [entry for entry in self._entries.values() if entry.op == op]
        found = [entry for entry in same_op if entry.variant in _variants(call)] or same_op
        if not found:
            return None
        size = DTYPE_BYTES[call.dtype]
        entry = min(found, key=lambda e: (abs(DTYPE_BYTES.get(e.dtype, size) - size), e.dtype, e.variant))
        if entry.dtype == "*" or entry.memory is not None:
            return entry, call.dtype, 1.0  # traffic: bytes already follow the dtype
        return entry, entry.dtype, size / DTYPE_BYTES[entry.dtype]


def _variants(call: KernelCall) -> tuple[str, ...]:
    """A call's variant and what may stand for it: 'tn+acc32' → 'tn+acc32', 'tn', '*'. A copy of no variant keeps its
    type."""
    variant = call.variant or (f"{call.dtype}->{call.dtype}" if call.op == "copy" else "")
    base = variant.partition("+")[0]
    return (variant, "*") if base == variant else (variant, base, "*")


def _named(op: str, dtype: str, variant: str) -> str:
    return f"{op} {variant} in {dtype}" if variant not in ("", "*") else f"{op} in {dtype}"


def _similar(call: KernelCall) -> tuple[tuple[str, str], ...]:
    """Operators to ask, best first, each with what is given up by asking it."""
    kind = OPERATORS[call.op].kind
    if kind == "gemm":
        return ((call.op, ""), ("gemm", "bmm by the gemm fit"))
    if kind == "attention":
        other = "attention_forward" if call.op == "attention_backward" else "attention_backward"
        return ((call.op, ""), (other, f"{call.op} by the rate of {other}"))
    return ((call.op, ""), ("*", f"{call.op} by bytes over the memory fit"))
