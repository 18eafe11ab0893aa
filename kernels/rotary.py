"""Rotary position embedding (rotate-half), q and k in one launch, forward and backward.

    y[:D/2] = x[:D/2]·cos − x[D/2:]·sin        y[D/2:] = x[D/2:]·cos + x[:D/2]·sin

in fp32, for x of shape (B, T, H, D) or a strided view of it such as the q part of a fused QKV projection; cos and sin
are fp32 (T, D/2). The backward is the same kernel with the sine negated. Outputs are contiguous, or the views the
caller gives (the q and k parts of one gradient buffer, say), because a gradient laid out unlike its input costs a
copy later.
"""

from __future__ import annotations

import torch

from kernels.direct import Launch, checked_once
from kernels.launch import (
    KernelArgumentError,
    cdiv,
    check_apart,
    check_float,
    check_output,
    check_tensor,
    new_like,
    next_power_of_2,
    tl,
    triton,
    use_triton,
)
from kernels.written import written

Tensor = torch.Tensor

HEADS_PER_TILE = 8
"""Heads of one token that a program rotates at once."""
WARPS = 2

# ---------------------------------------------------------------- reference


def rotary_table(
    length: int, head_dim: int, theta: float = 10000.0, *, first: int = 0, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """(cos, sin), fp32 (length, head_dim/2), of positions first … first + length − 1; angles are formed in fp64."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(first, first + length, dtype=torch.float64)[:, None] * inverse
    return angle.cos().to(torch.float32).to(device), angle.sin().to(torch.float32).to(device)


def _rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    half = x.shape[-1] // 2
    a, b = x[..., :half].to(compute), x[..., half:].to(compute)
    c, s = cos.to(compute)[None, :, None, :], sin.to(compute)[None, :, None, :]
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)


def rotary_reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, backward: bool = False
) -> tuple[Tensor, Tensor]:
    """(q, k) rotated; `backward` rotates the other way, which is the gradient."""
    sin = -sin if backward else sin
    return _rotate_reference(q, cos, sin), _rotate_reference(k, cos, sin)


# ---------------------------------------------------------------- Triton


@triton.jit
def _rotate_heads(
    x_ptr, y_ptr, x_head, y_head, first_head, heads, cos, sin, half, HEADS: tl.constexpr, HALF: tl.constexpr
):
    head = (first_head + tl.arange(0, HEADS))[:, None].to(tl.int64)
    lane = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (lane < half)
    a = tl.load(x_ptr + head * x_head + lane, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + head * x_head + lane + half, mask=inside, other=0.0).to(tl.float32)
    ya = a * cos - b * sin
    yb = b * cos + a * sin
    tl.store(y_ptr + head * y_head + lane, ya.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + head * y_head + lane + half, yb.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotary_kernel(
    q_ptr, k_ptr, qo_ptr, ko_ptr, cos_ptr, sin_ptr,
    q_batch, q_time, q_head, k_batch, k_time, k_head, qo_batch, qo_time, qo_head, ko_batch, ko_time, ko_head,
    length, q_heads, k_heads, half,
    BACKWARD: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Program (token, head tile): tiles 0 … cover q's heads, then k's."""
    q_tiles = tl.cdiv(q_heads, HEADS)
    tiles = q_tiles + tl.cdiv(k_heads, HEADS)
    token = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    batch = token // length
    time = token % length
    lane = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + time * half + lane, mask=lane < half, other=0.0)
    sin = tl.load(sin_ptr + time * half + lane, mask=lane < half, other=0.0)
    if BACKWARD:
        sin = -sin
    if tile < q_tiles:
        source = q_ptr + batch * q_batch + time * q_time
        target = qo_ptr + batch * qo_batch + time * qo_time
        _rotate_heads(source, target, q_head, qo_head, tile * HEADS, q_heads, cos, sin, half, HEADS, HALF)
    else:
        source = k_ptr + batch * k_batch + time * k_time
        target = ko_ptr + batch * ko_batch + time * ko_time
        _rotate_heads(source, target, k_head, ko_head, (tile - q_tiles) * HEADS, k_heads, cos, sin, half, HEADS, HALF)


# ---------------------------------------------------------------- plain functions


def rotary_forward(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    q_out: Tensor | None = None,
    k_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(q, k) rotated.

    q (B, T, Hq, D), k (B, T, Hk, D), D even, any strides with unit stride along D; cos, sin fp32 (T, D/2).
    """
    return _rotary(q, k, cos, sin, q_out, k_out, False)


def rotary_backward(
    dq: Tensor,
    dk: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    q_out: Tensor | None = None,
    k_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of (q, k) before rotation from those after it; arguments as the forward."""
    return _rotary(dq, dk, cos, sin, q_out, k_out, True)


def _rotary(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_out: Tensor | None,
    k_out: Tensor | None,
    backward: bool,
) -> tuple[Tensor, Tensor]:
    launch = _launch((q, k, cos, sin, q_out, k_out), backward, HEADS_PER_TILE, WARPS)
    if q_out is not None:
        check_apart("q_out", q_out, "q", q)
    if k_out is not None:
        check_apart("k_out", k_out, "k", k)
    if launch is None:
        a, b = rotary_reference(q, k, cos, sin, backward=backward)
        return a if q_out is None else q_out.copy_(a), b if k_out is None else k_out.copy_(b)
    given = [t for t in (q_out, k_out) if t is not None]
    q_out = new_like(q) if q_out is None else q_out
    k_out = new_like(k) if k_out is None else k_out
    launch((q, k, q_out, k_out, cos, sin))
    if given:
        written(*given)
    return q_out, k_out


@checked_once
def _launch(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_out: Tensor | None, k_out: Tensor | None,
    backward: bool, heads_per_tile: int, warps: int,
) -> Launch | None:  # fmt: skip
    _check(q, k, cos, sin, q_out, k_out)
    if not use_triton(q):
        return None
    batch, length, q_heads, dim = q.shape
    k_heads = k.shape[2]
    heads = min(heads_per_tile, next_power_of_2(max(q_heads, k_heads)))
    tiles = cdiv(q_heads, heads) + cdiv(k_heads, heads)
    copied = tuple(i for i, x in ((0, q), (1, k)) if x.stride(-1) != 1)
    copied += tuple(i for i, table in ((4, cos), (5, sin)) if not table.is_contiguous())
    strides = *_strides(q, q), *_strides(k, k), *_strides(q_out, q), *_strides(k_out, k)
    numbers = *strides, length, q_heads, k_heads, dim // 2
    constants = {"BACKWARD": backward, "HEADS": heads, "HALF": next_power_of_2(dim // 2), "num_warps": warps}
    return Launch(rotary_kernel, (batch * length * tiles,), numbers, constants, copied)


def _strides(x: Tensor | None, like: Tensor) -> tuple[int, ...]:
    """(batch, time, head) strides of what is read or written: of x, or of a contiguous tensor like `like`."""
    if x is not None and x.stride(-1) == 1:
        return x.stride()[:3]
    _, length, heads, dim = like.shape
    return length * heads * dim, heads * dim, dim


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_out: Tensor | None, k_out: Tensor | None) -> None:
    check_float("q", q)
    if q.dim() != 4 or q.shape[-1] % 2:
        raise KernelArgumentError(
            f"q has shape {tuple(q.shape)}; accepted: (batch, length, heads, head_dim) with an even head_dim"
        )
    batch, length, _, dim = q.shape
    check_tensor("k", k, dtypes=(q.dtype,), shape=(batch, length, None, dim), device=q.device)
    half = length, dim // 2
    if not (
        cos.shape == half == sin.shape
        and cos.dtype is sin.dtype is torch.float32
        and q.device == cos.device == sin.device
    ):
        for name, table in (("cos", cos), ("sin", sin)):
            check_tensor(name, table, dtypes=(torch.float32, torch.float64), shape=half, device=q.device)
    if q_out is None and k_out is None:
        return
    for name, out, like in (("q_out", q_out, q), ("k_out", k_out, k)):
        if out is not None:
            check_tensor(name, out, dtypes=(like.dtype,), shape=like.shape, device=like.device)
            check_output(name, out)
