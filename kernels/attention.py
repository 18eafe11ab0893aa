"""Scaled dot-product attention as plain forward and backward functions over PyTorch's own operators, cuDNN preferred
on Hopper.

PyTorch's SDPA tries FlashAttention-2 before cuDNN; on an H200 cuDNN is 1.7–2.0 times faster in both directions, so
this file asks for it by name. A backend that refuses a shape or type (or is not in the build) is passed over for that
kind of call, with the reason kept in `refusals()`; the last resort computes the scores in fp32. No attention kernel
of our own: these are at the roof already.

    CUDA, capability ≥ 9:  cudnn → flash → efficient → unfused        other CUDA:  flash → cudnn → efficient → unfused
    CPU:                   cpu (aten's flash for CPU; fp64, fp32, bf16) → unfused

q (B, Hq, T, D), k and v (B, Hk, T, D), Hq a multiple of Hk; (B, T, H, D) activations come as `x.transpose(1, 2)`
views, no copy. No dropout here: the fused kernels' own generators depend on the layout (attention dropout lives in
the unfused attention of the trainer's pieces).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

from kernels.launch import KernelArgumentError, check_float, check_tensor

Tensor = torch.Tensor
Backend = Literal["auto", "cudnn", "flash", "efficient", "cpu", "unfused"]


class Attention(NamedTuple):
    """What the forward returns and the backward needs beside q, k and v."""

    out: Tensor  # (B, Hq, T, D)
    lse: Tensor  # fp32 log-sum-exp of the scores, (B, Hq, T) or (B, Hq, T, 1) as the backend has it
    backend: str
    aux: tuple[Any, ...]  # the backend's other results: small or empty


# ---------------------------------------------------------------- reference


def attention_reference(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(out, lse (B, Hq, T)); scores in fp32, or fp64 for fp64."""
    p, lse = _probabilities(q, k, causal, scale)
    return (p @ _repeat(v, q).to(p.dtype)).to(q.dtype), lse


def attention_backward_reference(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv)."""
    p, _ = _probabilities(q, k, causal, scale)
    d = dout.to(p.dtype)
    dp = d @ _repeat(v, q).to(p.dtype).transpose(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    dq = ds @ _repeat(k, q).to(p.dtype)
    dk = ds.transpose(-1, -2) @ q.to(p.dtype)
    dv = p.transpose(-1, -2) @ d
    return dq.to(q.dtype), _fold(dk, k).to(k.dtype), _fold(dv, v).to(v.dtype)


def _probabilities(q: Tensor, k: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(compute) @ _repeat(k, q).to(compute).transpose(-1, -2)) * scale
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse[..., None]), lse


def _repeat(x: Tensor, q: Tensor) -> Tensor:
    """k or v with a copy of each head for every query head of its group."""
    groups = q.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def _fold(dx: Tensor, x: Tensor) -> Tensor:
    """The gradient of `_repeat`: the group's heads summed (in fp32), in x's type."""
    groups = dx.shape[1] // x.shape[1]
    if groups == 1:
        return dx
    return dx.unflatten(1, (x.shape[1], groups)).sum(2, dtype=torch.promote_types(dx.dtype, torch.float32)).to(x.dtype)


# ---------------------------------------------------------------- backends

aten = torch.ops.aten


def _cudnn_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Attention:
    out, lse, *aux = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    return Attention(out, lse, "cudnn", tuple(aux[:6]))


def _cudnn_backward(d: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Attention, causal: bool, scale: float) -> Any:
    cum_q, cum_k, max_q, max_k, seed, offset = a.aux
    return aten._scaled_dot_product_cudnn_attention_backward(
        d, q, k, v, a.out, a.lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, causal, scale=scale
    )


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Attention:
    out, lse, *aux = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    return Attention(out, lse, "flash", tuple(aux[:6]))


def _flash_backward(d: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Attention, causal: bool, scale: float) -> Any:
    cum_q, cum_k, max_q, max_k, seed, offset = a.aux
    return aten._scaled_dot_product_flash_attention_backward(
        d, q, k, v, a.out, a.lse, cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset, scale=scale
    )


def _efficient_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Attention:
    k, v = _repeat(k, q), _repeat(v, q)
    out, lse, *aux = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)
    return Attention(out, lse, "efficient", tuple(aux))


def _efficient_backward(d: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Attention, causal: bool, scale: float) -> Any:
    seed, offset = a.aux
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        d,
        q,
        _repeat(k, q),
        _repeat(v, q),
        None,
        a.out,
        a.lse,
        seed,
        offset,
        0.0,
        [True, True, True, False],
        causal,
        scale=scale,
    )
    return dq, _fold(dk, k), _fold(dv, v)


def _cpu_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Attention:
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return Attention(out, lse, "cpu", ())


def _cpu_backward(d: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Attention, causal: bool, scale: float) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(d, q, k, v, a.out, a.lse, 0.0, causal, scale=scale)


def _unfused_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Attention:
    return Attention(*attention_reference(q, k, v, causal, scale), "unfused", ())


def _unfused_backward(d: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Attention, causal: bool, scale: float) -> Any:
    return attention_backward_reference(d, q, k, v, causal, scale)


_BACKENDS: dict[str, tuple[Callable[..., Attention], Callable[..., Any]]] = {
    "cudnn": (_cudnn_forward, _cudnn_backward),
    "flash": (_flash_forward, _flash_backward),
    "efficient": (_efficient_forward, _efficient_backward),
    "cpu": (_cpu_forward, _cpu_backward),
    "unfused": (_unfused_forward, _unfused_backward),
}
_REFUSED: dict[tuple[Any, ...], str] = {}


def preference(device: torch.device) -> tuple[str, ...]:
    """Backends for `device`, fastest first; the last one takes everything."""
    if device.type != "cuda":
        return ("cpu", "unfused") if device.type == "cpu" else ("unfused",)
    if torch.cuda.get_device_capability(device) >= (9, 0):
        return "cudnn", "flash", "efficient", "unfused"
    return "flash", "cudnn", "efficient", "unfused"


def refusals() -> dict[tuple[Any, ...], str]:
    """Why backends were passed over so far: (backend, device type, dtype, (Hq, T, D), (Hk, S, Dv), causal) → the first
    line of its error."""
    return dict(_REFUSED)


# ---------------------------------------------------------------- plain functions


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, scale: float | None = None, backend: Backend = "auto"
) -> Attention:
    """softmax(scale·q·kᵀ)·v with its log-sum-exp.

    scale: 1/√D when None. A named backend is used or raises; "auto" takes the first able.
    """
    _check(q, k, v, causal)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if backend != "auto":
        if backend not in _BACKENDS:
            raise KernelArgumentError(f"backend is {backend!r}; accepted: auto, {', '.join(_BACKENDS)}")
        return _BACKENDS[backend][0](q, k, v, causal, scale)
    if q.numel() == 0 or k.numel() == 0:
        return _unfused_forward(q, k, v, causal, scale)
    chain = preference(q.device)
    for name in chain[:-1]:
        kind = (name, q.device.type, q.dtype, tuple(q.shape[1:]), (*k.shape[1:3], v.shape[3]), causal)
        if kind in _REFUSED:
            continue
        try:
            return _BACKENDS[name][0](q, k, v, causal, scale)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "CUDA error" in str(error):  # the device is lost, and no other backend will find it
                raise
            _REFUSED[kind] = str(error).splitlines()[0]
    return _BACKENDS[chain[-1]][0](q, k, v, causal, scale)


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forward: Attention,
    *,
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) from dout (B, Hq, T, D) and the forward's `Attention`, by the backend that ran forward."""
    check_tensor("dout", dout, dtypes=(q.dtype,), shape=tuple(q.shape[:3]) + (v.shape[-1],), device=q.device)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if dout.stride(-1) != 1 or 0 in dout.stride():
        dout = dout.contiguous()
    dq, dk, dv = _BACKENDS[forward.backend][1](dout, q, k, v, forward, causal, scale)
    return dq, dk, dv


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    check_float("q", q)
    check_tensor("q", q, shape=(None, None, None, None))
    if q.shape[3] == 0:
        raise KernelArgumentError(f"q has shape {tuple(q.shape)}; accepted: (batch, heads, length, head_dim ≥ 1)")
    check_tensor("k", k, dtypes=(q.dtype,), shape=(q.shape[0], None, None, q.shape[3]), device=q.device)
    check_tensor("v", v, dtypes=(q.dtype,), shape=(q.shape[0], k.shape[1], k.shape[2], None), device=q.device)
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise KernelArgumentError(
            f"q has {q.shape[1]} heads and k {k.shape[1]}; accepted: query heads a multiple of key heads"
        )
    if causal and q.shape[2] != k.shape[2]:
        raise KernelArgumentError(
            f"causal attention of {q.shape[2]} queries on {k.shape[2]} keys; accepted: equal lengths"
        )
