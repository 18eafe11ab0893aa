"""The one door to every operator of `plan.ops`: the trainer's pieces and the calibration's timings call the same
functions through it.

    registry.op("rmsnorm_forward")(x, weight, eps)          the torch reference
    ops = registry.bind("compiled", "cuda"); ops.swiglu_forward(u)
    args = registry.OPERATIONS["gemm"].make_inputs(call, device, generator); registry.OPERATIONS["gemm"].function(*args)
    registry.run_call(call, args, ops)                      what one timed execution is

`bind` chooses an implementation for a whole run: `eager` is the reference; `compiled` wraps the pointwise regions in
torch.compile (CUDA); `triton` takes the fused kernels of this package where they take the tensors (CUDA, not fp64). On
a CPU every choice is the reference. `make_inputs` builds positional arguments of exactly the shapes a call names, so
that what is timed is what a step runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from kernels import reference, reference_attention, reference_layer, reference_loss
from plan.errors import InputError
from plan.program import KernelCall

Tensor = torch.Tensor
Inputs = tuple[Any, ...]
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
}
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
)
"""Operators that `compiled` hands to torch.compile: regions between explicit products, never a product."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator: its reference function and a maker of positional arguments for a `KernelCall`."""

    name: str
    function: Callable[..., Any]
    make_inputs: Callable[[KernelCall, torch.device | str, torch.Generator | None], Inputs]


class _Maker:
    """Random tensors of one call on one device."""

    def __init__(self, call: KernelCall, device: torch.device | str, generator: torch.Generator | None) -> None:
        self.call, self.device, self.generator = call, device, generator
        self.dtype = DTYPES[call.dtype]
        self.wide = torch.float64 if self.dtype == torch.float64 else torch.float32

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, generator=self.generator, dtype=self.wide).to(self.dtype)

    def stat(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.device, generator=self.generator, dtype=self.wide).add_(0.5)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=self.wide)

    def ids(self, rows: int, below: int) -> Tensor:
        return torch.randint(max(1, below), (rows,), device=self.device, generator=self.generator)

    def mask(self, rows: int, width: int) -> reference_layer.Mask | None:
        if "dropout" not in self.call.variant:
            return None
        from kernels.random import Dropout

        tokens = torch.arange(rows, device=self.device)[:, None]
        dropout, elements = Dropout.at(0.1, seed=0, step=0, layer=0, site=0), torch.arange(width, device=self.device)
        return reference_layer.Mask(dropout, tokens, elements, first_element=0)


def _gemm(m: _Maker) -> Inputs:
    rows, columns, inner = m.call.shape
    layout = m.call.variant.partition("+")[0] or "nt"
    a = m.normal(inner, rows) if layout == "tn" else m.normal(rows, inner)
    b = m.normal(columns, inner) if layout == "nt" else m.normal(inner, columns)
    out = m.zeros(rows, columns) if "acc32" in m.call.variant else None
    return a, b, m.call.variant, out, m.normal(columns) if "bias" in m.call.variant else None


def _bmm(m: _Maker) -> Inputs:
    batch, rows, columns, inner = m.call.shape
    a = m.normal(batch, inner, rows) if m.call.variant == "tn" else m.normal(batch, rows, inner)
    b = m.normal(batch, columns, inner) if m.call.variant == "nt" else m.normal(batch, inner, columns)
    return a, b, m.call.variant


def _heads(m: _Maker) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as views of one fused (s, b, columns) tensor, as a step has them."""
    b, heads, kv_heads, s, d = m.call.shape
    fused = m.normal(s, b, (heads + 2 * kv_heads) * d)
    parts = fused.split([heads * d, kv_heads * d, kv_heads * d], dim=-1)
    q, k, v = (part.view(s, b, -1, d).permute(1, 2, 0, 3) for part in parts)
    return q, k, v


def _attention_backward(m: _Maker) -> Inputs:
    q, k, v = _heads(m)
    out, lse = reference_attention.attention_forward(q, k, v, m.call.variant)
    b, heads, _, s, d = m.call.shape
    return m.normal(s, b, heads, d).permute(1, 2, 0, 3), q, k, v, out, lse, m.call.variant


def _norm_backward(m: _Maker) -> Inputs:
    rows, width = m.call.shape
    layer = m.call.op.startswith("layer")
    stats = (m.stat(rows), m.zeros(rows)) if layer else (m.stat(rows),)
    grads = (m.zeros(width), m.zeros(width)) if layer else (m.zeros(width),)
    return m.normal(rows, width), m.normal(rows, width), *stats, m.normal(width), m.normal(rows, width), *grads


def _rope(m: _Maker) -> Inputs:
    tokens, heads, d = m.call.shape
    angles = m.stat(tokens, d // 2)
    return m.normal(tokens, 1, heads, d), angles.cos(), angles.sin()


def _add(m: _Maker) -> Inputs:
    x = m.normal(*m.call.shape)
    bias = m.normal(m.call.shape[-1]) if "bias" in m.call.variant else None
    return x, m.normal(*m.call.shape), bias, m.mask(m.call.shape[0], m.call.shape[-1])


def _add_backward(m: _Maker) -> Inputs:
    rows, width = m.call.shape
    return m.normal(rows, width), m.zeros(width) if "bias" in m.call.variant else None, m.mask(rows, width)


def _softmax(m: _Maker) -> Inputs:
    rows, cols = m.call.shape
    scores = m.normal(rows // cols, cols, cols)
    mask = m.mask(cols, cols)
    if m.call.op.endswith("forward"):
        return scores, cols**-0.5, mask
    return scores, torch.softmax(m.normal(rows // cols, cols, cols), -1), cols**-0.5, mask


def _embedding(m: _Maker) -> Inputs:
    tokens, width, rows = m.call.shape
    if m.call.op.endswith("forward"):
        return m.ids(tokens, rows), m.normal(rows, width)
    return m.normal(tokens, width), m.ids(tokens, rows), m.zeros(rows, width)


def _cross_entropy(m: _Maker) -> Inputs:
    rows, columns = m.call.shape
    logits = m.normal(rows, columns)
    if m.call.op == "ce_max":
        return logits, columns
    targets, row_max = m.ids(rows, columns), reference_loss.ce_max(logits, columns)
    if m.call.op == "ce_exp":
        return logits, row_max, targets, 0, columns
    sums = reference_loss.ce_exp(logits, row_max, targets, 0, columns)
    return logits, row_max, sums, targets, m.zeros(1), 0, columns, 1.0 / rows


def _copy(m: _Maker) -> Inputs:
    source, _, target = m.call.variant.partition("->")
    x = m.normal(*m.call.shape)
    return x.to(DTYPES[target or m.call.dtype]), x.to(DTYPES[source or m.call.dtype])


def _adamw(m: _Maker) -> Inputs:
    n = m.call.shape[0]
    low = DTYPES[m.call.variant] if m.call.variant and m.call.variant != m.call.dtype else None
    weight = None if low is None else torch.zeros(n, dtype=low, device=m.device)
    one = torch.ones((), dtype=m.wide, device=m.device)
    return m.normal(n).to(m.wide), m.stat(n), m.stat(n), m.stat(n), one, weight, ((0, n),)


def _entry(name: str, function: Callable[..., Any], maker: Callable[[_Maker], Inputs]) -> Operation:
    def make(call: KernelCall, device: torch.device | str, generator: torch.Generator | None = None) -> Inputs:
        return maker(_Maker(call, device, generator))

    return Operation(name, function, make)


_TABLE = (
    _entry("gemm", reference.gemm, _gemm),
    _entry("bmm", reference.bmm, _bmm),
    _entry("attention_forward", reference_attention.attention_forward, lambda m: (*_heads(m), m.call.variant)),
    _entry("attention_backward", reference_attention.attention_backward, _attention_backward),
    _entry("softmax_forward", reference_attention.softmax_forward, _softmax),
    _entry("softmax_backward", reference_attention.softmax_backward, _softmax),
    _entry(
        "rmsnorm_forward",
        reference.rmsnorm_forward,
        lambda m: (m.normal(*m.call.shape), m.normal(m.call.shape[1]), 1e-5),
    ),
    _entry("rmsnorm_backward", reference.rmsnorm_backward, _norm_backward),
    _entry(
        "layernorm_forward",
        reference.layernorm_forward,
        lambda m: (m.normal(*m.call.shape), m.normal(m.call.shape[1]), m.normal(m.call.shape[1]), 1e-5),
    ),
    _entry("layernorm_backward", reference.layernorm_backward, _norm_backward),
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
    _entry("rope_forward", reference_layer.rope_forward, _rope),
    _entry("rope_backward", reference_layer.rope_backward, _rope),
    _entry("add", reference_layer.add, _add),
    _entry("add_backward", reference_layer.add_backward, _add_backward),
    _entry("bias_grad", reference_layer.bias_grad, lambda m: (m.normal(*m.call.shape), m.zeros(m.call.shape[1]))),
    _entry("embedding_forward", reference_layer.embedding_forward, _embedding),
    _entry("embedding_backward", reference_layer.embedding_backward, _embedding),
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
    _entry("ce_max", reference_loss.ce_max, _cross_entropy),
    _entry("ce_exp", reference_loss.ce_exp, _cross_entropy),
    _entry("ce_loss", reference_loss.ce_loss, _cross_entropy),
    _entry("fill", reference.fill, lambda m: (m.normal(*m.call.shape),)),
    _entry("copy", reference.copy, _copy),
    _entry("sqnorm", reference.sqnorm, lambda m: (m.normal(*m.call.shape),)),
    _entry("adamw", reference_loss.adamw, _adamw),
)
OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _TABLE}


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
    functions = {name: operation.function for name, operation in OPERATIONS.items()}
    if device_type == "cuda" and kernels == "compiled":
        functions |= {name: _compiled(functions[name]) for name in POINTWISE}
    if device_type == "cuda" and kernels == "triton":
        from kernels.registry_triton import FUSED

        functions |= FUSED
    return SimpleNamespace(**functions)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function, and the plain one where a dropout mask is given: its stream key changes at every call, and
    with it the code."""
    fast = torch.compile(function, dynamic=False)

    def either(*arguments: Any) -> Any:
        masked = any(isinstance(argument, reference_layer.Mask) for argument in arguments)
        return function(*arguments) if masked else fast(*arguments)

    return either
