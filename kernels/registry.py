"""The one door to every operator of `program.operators`: the trainer's bodies and the calibration's timings call the
same functions through it.

    registry.op("rmsnorm_forward")(x, weight, eps)          the torch reference
    ops = registry.bind("compiled", "cuda"); ops.swiglu_forward(u)
    args = registry.OPERATIONS["gemm"].make_inputs(call, device, generator); registry.OPERATIONS["gemm"].function(*args)
    registry.run_call(call, args, ops)                      what one timed execution is

`bind` chooses an implementation for a whole run: `eager` is the reference; `compiled` wraps the pointwise regions in
torch.compile (CUDA); `triton` takes the fused kernels of this package where they take the tensors (CUDA, not fp64). On
a CPU every choice is the reference. What `make_inputs` makes is in `kernels/registry_inputs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from kernels import reference, reference_attention, reference_layer, reference_lines, reference_loss
from kernels import registry_inputs as make
from kernels.registry_inputs import Inputs
from program import KernelCall
from program.errors import InputError

POINTWISE = (
    "rmsnorm_forward",
    "rmsnorm_backward",
    "layernorm_forward",
    "layernorm_backward",
    "swiglu_forward",
    "swiglu_backward",
    "gelu_forward",
    "gelu_backward",
    "rope_forward",
    "rope_backward",
    "add",
    "add_backward",
    "bias_grad",
    "position_forward",
    "ce_exp",
    "ce_loss",
    "softmax_forward",
    "softmax_backward",
    "geglu_forward",
    "geglu_backward",
    "relu_forward",
    "relu_backward",
    "relu2_forward",
    "relu2_backward",
    "softcap_forward",
    "softcap_backward",
    "rmsnorm_heads_forward",
    "rmsnorm_heads_backward",
)
"""Operators that `compiled` hands to torch.compile: regions between explicit products, never a product."""
MASKED = frozenset(("add", "add_backward", "softmax_forward", "softmax_backward"))
"""Those of them that may be given a dropout mask."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator: its reference function and a maker of positional arguments for a `KernelCall`."""

    name: str
    function: Callable[..., Any]
    make_inputs: Callable[[KernelCall, torch.device | str, torch.Generator | None], Inputs]


def _entry(name: str, function: Callable[..., Any], maker: Callable[[make.Maker], Inputs]) -> Operation:
    def inputs(call: KernelCall, device: torch.device | str, generator: torch.Generator | None = None) -> Inputs:
        return maker(make.Maker(call, device, generator))

    return Operation(name, function, inputs)


_TABLE = (
    _entry("gemm", reference.gemm, make.gemm),
    _entry("bmm", reference.bmm, make.bmm),
    _entry("attention_forward", reference_attention.attention_forward, lambda m: (*make.qkv(m), m.call.variant)),
    _entry("attention_backward", reference_attention.attention_backward, make.attention_backward),
    _entry("softmax_forward", reference_attention.softmax_forward, make.softmax),
    _entry("softmax_backward", reference_attention.softmax_backward, make.softmax),
    _entry(
        "rmsnorm_forward",
        reference.rmsnorm_forward,
        lambda m: (m.normal(*m.call.shape), m.normal(m.call.shape[1]), 1e-5),
    ),
    _entry("rmsnorm_backward", reference.rmsnorm_backward, make.norm_backward),
    _entry(
        "layernorm_forward",
        reference.layernorm_forward,
        lambda m: (m.normal(*m.call.shape), m.normal(m.call.shape[1]), m.normal(m.call.shape[1]), 1e-5),
    ),
    _entry("layernorm_backward", reference.layernorm_backward, make.norm_backward),
    _entry(
        "swiglu_forward", reference_layer.swiglu_forward, lambda m: (m.normal(m.call.shape[0], 2 * m.call.shape[1]),)
    ),
    _entry(
        "swiglu_backward",
        reference_layer.swiglu_backward,
        lambda m: (m.normal(*m.call.shape), m.normal(m.call.shape[0], 2 * m.call.shape[1])),
    ),
    _entry("gelu_forward", reference_layer.gelu_forward, lambda m: (m.normal(*m.call.shape),)),
    _entry(
        "gelu_backward", reference_layer.gelu_backward, lambda m: (m.normal(*m.call.shape), m.normal(*m.call.shape))
    ),
    _entry("rope_forward", reference_layer.rope_forward, make.rope),
    _entry("rope_backward", reference_layer.rope_backward, make.rope),
    _entry("add", reference_layer.add, make.add),
    _entry("add_backward", reference_layer.add_backward, make.add_backward),
    _entry("bias_grad", reference_layer.bias_grad, lambda m: (m.normal(*m.call.shape), m.zeros(m.call.shape[1]))),
    _entry("embedding_forward", reference_layer.embedding_forward, make.embedding),
    _entry("embedding_backward", reference_layer.embedding_backward, make.embedding),
    _entry(
        "position_forward",
        reference_layer.position_forward,
        lambda m: (m.normal(*m.call.shape), m.normal(*m.call.shape)),
    ),
    _entry(
        "position_backward",
        reference_layer.position_backward,
        lambda m: (m.normal(*m.call.shape), m.zeros(*m.call.shape)),
    ),
    _entry("ce_max", reference_loss.ce_max, make.cross_entropy),
    _entry("ce_exp", reference_loss.ce_exp, make.cross_entropy),
    _entry("ce_loss", reference_loss.ce_loss, make.cross_entropy),
    _entry("fill", reference.fill, lambda m: (m.normal(*m.call.shape),)),
    _entry("copy", reference.copy, make.copy),
    _entry("sqnorm", reference.sqnorm, lambda m: (m.normal(*m.call.shape),)),
    _entry("adamw", reference_loss.adamw, make.adamw),
)
OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _TABLE}

_ELSEWHERE: dict[str, Callable[..., Any]] = {
    "gemm_add": reference.accumulate,
    "empty": torch.Tensor.new_empty,
    "zeros_like": torch.zeros_like,
    "ce_columns": reference_loss.ce_columns,
    "clip_coefficient": reference_loss.clip_coefficient,
    "not_finite": reference_loss.not_finite,
}
LINES: dict[str, Callable[..., Any]] = _ELSEWHERE | {
    name: getattr(reference_layer, name)
    for name in (
        "geglu_forward", "geglu_backward", "relu_forward", "relu_backward", "relu2_forward", "relu2_backward",
        "softcap_forward", "softcap_backward", "rmsnorm_heads_forward", "rmsnorm_heads_backward",
    )
} | {
    name: getattr(reference_lines, name)
    for name in (
        "gemm_out", "bmm_add", "rmsnorm_input_gradient", "rmsnorm_weight_gradient", "layernorm_input_gradient",
        "layernorm_weight_gradient", "flat_heads", "fold_heads", "rows_of", "merge_heads", "alibi_scores", "alibi_add",
        "add_storing", "drop", "drop_storing", "drop_stored", "shift_rows", "exponentiate", "row_sums", "softmax_loss",
        "scale", "scaled", "clone", "cast", "add_into", "statistics", "transfer",
    )
}  # fmt: skip
"""Operators of `program.operators` whose time another one's measurement answers for."""


def op(name: str) -> Callable[..., Any]:
    """The torch reference of an operator. Raises InputError with the operators there are."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise InputError(f"operator {name!r} is not registered; there are {', '.join(sorted(OPERATIONS))}")
    return operation.function


def run_call(call: KernelCall, inputs: Inputs, ops: SimpleNamespace | None = None) -> Any:
    """Execute `call` once on `inputs` (from its operation's make_inputs) with a run's implementation (default: the
    reference)."""
    return getattr(ops or bind("eager", "cpu"), call.op)(*inputs)


@cache
def bind(kernels: str, device_type: str) -> SimpleNamespace:
    """Every operator by name as attributes, implemented as `plan.kernels` asks on that kind of device."""
    functions: dict[str, Callable[..., Any]] = {name: operation.function for name, operation in OPERATIONS.items()}
    functions |= LINES
    if device_type == "cuda" and kernels == "compiled":
        functions |= {name: _compiled(functions[name], name in MASKED) for name in POINTWISE}
    if device_type == "cuda" and kernels == "triton":
        from kernels.registry_triton import FUSED

        functions |= FUSED
    return SimpleNamespace(**functions)


def _compiled(function: Callable[..., Any], masked: bool) -> Callable[..., Any]:
    """The compiled function, and the plain one where a dropout mask is given: its stream key changes at every call, and
    with it the code."""
    fast = torch.compile(function, dynamic=False)
    if not masked:
        return fast

    def either(*arguments: Any, **given: Any) -> Any:
        dropped = any(isinstance(a, reference_layer.Mask) for a in (*arguments, *given.values()))
        return (function if dropped else fast)(*arguments, **given)

    return either
