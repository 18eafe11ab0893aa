"""The operators: every kernel a step may call, with the bytes it must move and the FLOPs it must do.

Calibration times these names, the simulator prices them, `kernels.registry` binds them to functions, and the trainer
runs those. Bytes are the fewest a single pass over device memory can move (inputs once, outputs once); FLOPs count a
multiply-add as two. `e` is the element size of the call's dtype; statistics, losses and optimizer state are fp32
(fp64 in fp64 runs) and are counted as such.

Shapes, by operator (a `variant` never changes them):

    gemm            (m, n, k)                 y[m,n] = a[m,k] b[k,n]; variants nt | nn | tn, "+acc32": adds into fp32 y,
                                              "+acc16": into y of the call's dtype
    bmm             (batch, m, n, k)          variants nt | nn | tn
    attention_*     (b, heads, kv_heads, s, d)  causal; variants flash | cudnn, "+alibi", "+windowN": to the last N keys
    softmax_*       (rows, cols)              causal softmax of unfused attention; variants causal, "+dropout", "+alibi"
    rmsnorm_*, layernorm_*  (rows, width)
    swiglu_*        (rows, ffn)               gate and up are the two halves of one (rows, 2 ffn) tensor
    gelu_*          (rows, ffn)               variant "bias": adds a bias first
    rope_*          (tokens, heads, d)        in place; heads = query plus key heads
    add             (n,)                      residual; variants "", "bias", "dropout", "bias+dropout" (width in
    shape[1]) add_backward    (rows, width)             variants as add
    bias_grad       (rows, width)
    embedding_*     (tokens, width, rows of the local table)
    position_*      (tokens, width)
    ce_max, ce_exp, ce_loss (rows, columns)
    fill, copy, sqnorm, adamw (n,)            copy's variant "src->dst"; adamw's variant "weight dtype", then
                                              "+gradient dtype" where that is not the state's
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from program import DTYPE_BYTES, KernelCall, numel


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's cost model: `bytes_(call)` and `flops(call)` of one execution; `kind` is its time class."""

    name: str
    kind: str  # gemm | attention | memory
    bytes_: Callable[[KernelCall], int]
    flops: Callable[[KernelCall], int]


def _e(call: KernelCall) -> int:
    return DTYPE_BYTES[call.dtype]


def _stat(call: KernelCall) -> int:
    """Element size of statistics and accumulators."""
    return max(4, _e(call)) if call.dtype == "fp64" else 4


def _gemm_bytes(call: KernelCall) -> int:
    m, n, k = call.shape
    size = _stat(call) if "acc32" in call.variant else _e(call)
    out = m * n * size * (2 if "acc" in call.variant else 1)
    return (m * k + k * n) * _e(call) + out


def _bmm_bytes(call: KernelCall) -> int:
    batch, m, n, k = call.shape
    return batch * (m * k + k * n + m * n) * _e(call)


def _attention_elements(call: KernelCall) -> tuple[int, int, int]:
    b, heads, kv_heads, s, d = call.shape
    return b * s * heads * d, b * s * kv_heads * d, b * s * heads


def _attention_forward_bytes(call: KernelCall) -> int:
    q, kv, rows = _attention_elements(call)
    return (2 * q + 2 * kv) * _e(call) + rows * _stat(call)  # q, out; k, v; lse


def _attention_backward_bytes(call: KernelCall) -> int:
    q, kv, rows = _attention_elements(call)
    return (4 * q + 4 * kv) * _e(call) + rows * _stat(call)  # q, o, do, dq; k, v, dk, dv; lse


def _attention_flops(products: int) -> Callable[[KernelCall], int]:
    def flops(call: KernelCall) -> int:
        b, heads, _, s, d = call.shape
        window = call.variant.partition("+window")[2]
        seen = min(int(window), s) if window else s
        return products * 2 * b * heads * (seen * (2 * s - seen)) * d // 2  # causal: half the square, or a band

    return flops


def _rows_bytes(passes: float, stats: int = 0, width_stats: int = 0) -> Callable[[KernelCall], int]:
    """`passes` over (rows, width) in the call's dtype plus `stats` fp32 numbers a row and `width_stats` a column."""

    def bytes_(call: KernelCall) -> int:
        rows, width = call.shape[0], numel(call.shape[1:])
        return int(passes * rows * width * _e(call)) + (stats * rows + width_stats * width) * _stat(call)

    return bytes_


def _per_element(count: int) -> Callable[[KernelCall], int]:
    def flops(call: KernelCall) -> int:
        return count * numel(call.shape[:2])

    return flops


def _add_bytes(call: KernelCall) -> int:
    width = call.shape[1] if len(call.shape) > 1 and "bias" in call.variant else 0
    return (3 * numel(call.shape) + width) * _e(call)


def _add_backward_bytes(call: KernelCall) -> int:
    n = numel(call.shape)
    written = n if "dropout" in call.variant else 0
    return (n + written) * _e(call) + (2 * call.shape[1] * _stat(call) if "bias" in call.variant else 0)


def _embedding_bytes(call: KernelCall) -> int:
    tokens, width, _ = call.shape
    return 2 * tokens * width * _e(call) + tokens * 8


def _embedding_backward_bytes(call: KernelCall) -> int:
    tokens, width, _ = call.shape
    return tokens * width * (_e(call) + 2 * _stat(call)) + tokens * 8


def _copy_bytes(call: KernelCall) -> int:
    source, _, target = call.variant.partition("->")
    return call.shape[0] * (DTYPE_BYTES[source or call.dtype] + DTYPE_BYTES[target or call.dtype])


def _adamw_bytes(call: KernelCall) -> int:
    """Gradient read; parameter, exp_avg and exp_avg_sq read and written; the low-precision copy written if there is
    one.
    """
    weight, _, gradient = call.variant.partition("+")
    low = DTYPE_BYTES[weight] if weight and weight != call.dtype else 0
    return call.shape[0] * (6 * _e(call) + DTYPE_BYTES[gradient or call.dtype] + low)


def _zero(_: KernelCall) -> int:
    return 0


def _gemm_flops(call: KernelCall) -> int:
    return 2 * numel(call.shape)


_TABLE = (
    Operator("gemm", "gemm", _gemm_bytes, _gemm_flops),
    Operator("bmm", "gemm", _bmm_bytes, _gemm_flops),
    Operator("attention_forward", "attention", _attention_forward_bytes, _attention_flops(2)),
    Operator("attention_backward", "attention", _attention_backward_bytes, _attention_flops(5)),
    Operator("softmax_forward", "memory", _rows_bytes(2), _per_element(5)),
    Operator("softmax_backward", "memory", _rows_bytes(3), _per_element(4)),
    Operator("rmsnorm_forward", "memory", _rows_bytes(2, 1, 1), _per_element(4)),
    Operator("rmsnorm_backward", "memory", _rows_bytes(4, 1, 3), _per_element(8)),
    Operator("layernorm_forward", "memory", _rows_bytes(2, 2, 2), _per_element(7)),
    Operator("layernorm_backward", "memory", _rows_bytes(4, 2, 5), _per_element(11)),
    Operator("swiglu_forward", "memory", _rows_bytes(3), _per_element(6)),
    Operator("swiglu_backward", "memory", _rows_bytes(6), _per_element(12)),
    Operator("gelu_forward", "memory", _rows_bytes(2), _per_element(8)),
    Operator("gelu_backward", "memory", _rows_bytes(4), _per_element(16)),
    Operator("rope_forward", "memory", _rows_bytes(2), lambda c: 6 * numel(c.shape)),
    Operator("rope_backward", "memory", _rows_bytes(2), lambda c: 6 * numel(c.shape)),
    Operator("add", "memory", _add_bytes, lambda c: numel(c.shape)),
    Operator("add_backward", "memory", _add_backward_bytes, lambda c: numel(c.shape)),
    Operator("bias_grad", "memory", _rows_bytes(1, 0, 2), _per_element(1)),
    Operator("embedding_forward", "memory", _embedding_bytes, _zero),
    Operator("embedding_backward", "memory", _embedding_backward_bytes, _per_element(1)),
    Operator("position_forward", "memory", _rows_bytes(3), _per_element(1)),
    Operator("position_backward", "memory", _rows_bytes(1, 0, 2), _per_element(1)),
    Operator("ce_max", "memory", _rows_bytes(1, 1), _per_element(1)),
    Operator("ce_exp", "memory", _rows_bytes(1, 3), _per_element(3)),
    Operator("ce_loss", "memory", _rows_bytes(2, 3), _per_element(4)),
    Operator("fill", "memory", _rows_bytes(1), _zero),
    Operator("copy", "memory", _copy_bytes, _zero),
    Operator("sqnorm", "memory", _rows_bytes(1), lambda c: 2 * c.shape[0]),
    Operator("adamw", "memory", _adamw_bytes, lambda c: 14 * c.shape[0]),
)
OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _TABLE}


def bytes_of(call: KernelCall) -> int:
    """Bytes moved by `call.count` executions."""
    return OPERATORS[call.op].bytes_(call) * call.count


def flops_of(call: KernelCall) -> int:
    """FLOPs of `call.count` executions."""
    return OPERATORS[call.op].flops(call) * call.count
