"""AdamW over a flat shard in one pass: unscale, clip, decay by mask, update, and write the bf16 copy.

    g ← gradient·grad_scale             grad_scale: unscaling × clip coefficient, on the device, so that clipping does
                                        not synchronise
    p ← p·(1 − lr·decay·mask)           decoupled decay first (Loshchilov & Hutter 2019); mask selects elements
    m ← β₁m + (1 − β₁)g                 v ← β₂v + (1 − β₂)g²
    p ← p − lr·(m/c₁)/(√(v/c₂) + ε)     c₁ = 1 − β₁ᵗ, c₂ = 1 − β₂ᵗ, formed on the host in fp64 and passed as fp32

p, m, v fp32; the gradient fp32, bf16 or fp16; 28 bytes a parameter with an fp32 gradient, 26 with bf16, and 2 more
for the bf16 copy. The mask is a byte an element, read only in the blocks where decayed and undecayed parameters meet:
`DecayMask` keeps a code a block (none, all, mixed). `found_inf` (fp16) leaves everything untouched where it is not
zero. Offsets are int64: a shard may pass 2³¹ elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kernels.direct import Launch, checked_once
from kernels.launch import FLOATS, KernelArgumentError, cdiv, check_float, check_tensor, tl, triton, use_triton
from kernels.written import written

Tensor = torch.Tensor

MASK_BLOCK = 1024
"""Elements that one code of a DecayMask covers, and that one program updates."""
WARPS = 4


@dataclass(frozen=True, slots=True)
class AdamWStep:
    """The numbers of one step. `step` counts from 1."""

    lr: float
    step: int
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.step < 1:
            raise KernelArgumentError(f"step is {self.step}; accepted: 1, 2, … (the bias corrections divide by 1 − βᵗ)")
        for name in ("lr", "beta1", "beta2", "eps", "weight_decay"):
            value = getattr(self, name)
            if isinstance(value, torch.SymFloat):  # a graph's number has no value yet
                continue
            if not isinstance(value, (int, float)) or not 0.0 <= value < (1.0 if name.startswith("beta") else math.inf):
                accepted = "0 <= β < 1" if name.startswith("beta") else "a finite number, 0 or more"
                raise KernelArgumentError(f"{name} is {value!r}; accepted: {accepted}")

    @property
    def corrections(self) -> tuple[float, float]:
        """(1 − β₁ᵗ, 1 − β₂ᵗ)."""
        return 1.0 - self.beta1**self.step, 1.0 - self.beta2**self.step

    @property
    def floats(self) -> tuple[float, ...]:
        """What the kernel takes: step size, decay rate, β₁, β₂, 1 − β₁, 1 − β₂, √c₂, ε."""
        c1, c2 = self.corrections
        return (
            self.lr / c1, float(self.lr * self.weight_decay), float(self.beta1), float(self.beta2), 1.0 - self.beta1,
            1.0 - self.beta2, c2**0.5, float(self.eps),
        )  # fmt: skip


class DecayMask(NamedTuple):
    """Which elements of a flat shard decay.

    mask: uint8 (n,); codes: uint8 (⌈n / MASK_BLOCK⌉,), 0 none, 1 all, 2 mixed.
    """

    mask: Tensor
    codes: Tensor

    @staticmethod
    def of(mask: Tensor) -> DecayMask:
        """From a boolean or uint8 (n,) mask (any number but 0 decays); built once, when the shard is laid out."""
        flat = mask.ne(0).to(torch.uint8).contiguous()
        blocks = cdiv(flat.numel(), MASK_BLOCK)
        low, high = flat.new_ones(blocks * MASK_BLOCK), flat.new_zeros(blocks * MASK_BLOCK)
        low[: flat.numel()], high[: flat.numel()] = flat, flat
        least, most = low.view(blocks, -1).amin(1), high.view(blocks, -1).amax(1)
        return DecayMask(flat, torch.where(least == most, most, torch.full_like(most, 2)))


# ---------------------------------------------------------------- reference


def adamw_reference(
    p: Tensor, m: Tensor, v: Tensor, g: Tensor, step: AdamWStep, decay: DecayMask | None, grad_scale: Tensor | None,
    found_inf: Tensor | None, copy: Tensor | None,
) -> None:  # fmt: skip
    """In place on p, m, v and copy, in p's type."""
    state = [t for t in (p, m, v, copy) if t is not None]
    before = [t.clone() for t in state] if found_inf is not None else []
    grad = g.to(p.dtype)
    if grad_scale is not None:
        grad = grad * grad_scale.to(p.dtype)
    c1, c2 = step.corrections
    rate = step.lr * step.weight_decay
    p.sub_(p * rate if decay is None else p * (decay.mask.to(p.dtype) * rate))
    m.mul_(step.beta1).add_(grad, alpha=1 - step.beta1)
    v.mul_(step.beta2).addcmul_(grad, grad, value=1 - step.beta2)
    p.addcdiv_(m, v.div(c2).sqrt_().add_(step.eps), value=-step.lr / c1)
    if copy is not None:
        copy.copy_(p)
    if found_inf is not None:
        finite = found_inf.eq(0)
        for t, old in zip(state, before, strict=True):
            t.copy_(torch.where(finite, t, old))


# ---------------------------------------------------------------- Triton


@triton.jit
def adamw_kernel(
    p_ptr, m_ptr, v_ptr, g_ptr, copy_ptr, mask_ptr, code_ptr, scale_ptr, inf_ptr, n,
    step_size, decay_rate, beta1, beta2, one_minus_beta1, one_minus_beta2, root_c2, eps,
    HAS_MASK: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_INF: tl.constexpr, HAS_COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    offset = block * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n
    if HAS_INF:
        found = tl.zeros([BLOCK], tl.float32) + tl.load(inf_ptr).to(tl.float32)
        inside = inside & (found == 0.0)
    p = tl.load(p_ptr + offset, mask=inside, other=0.0)
    m = tl.load(m_ptr + offset, mask=inside, other=0.0)
    v = tl.load(v_ptr + offset, mask=inside, other=0.0)
    g = tl.load(g_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    if HAS_SCALE:
        g = g * tl.load(scale_ptr).to(tl.float32)
    rate = tl.cast(decay_rate, tl.float32)
    if HAS_MASK:
        code = tl.load(code_ptr + block)
        mixed = tl.load(mask_ptr + offset, mask=inside & (code == 2), other=0).to(tl.float32)
        rate = rate * tl.where(code == 2, mixed, code.to(tl.float32))
    p = p - p * rate
    m = m * tl.cast(beta1, tl.float32) + g * tl.cast(one_minus_beta1, tl.float32)
    v = v * tl.cast(beta2, tl.float32) + g * g * tl.cast(one_minus_beta2, tl.float32)
    p = p - tl.cast(step_size, tl.float32) * m / (tl.sqrt(v) / tl.cast(root_c2, tl.float32) + tl.cast(eps, tl.float32))
    tl.store(p_ptr + offset, p, mask=inside)
    tl.store(m_ptr + offset, m, mask=inside)
    tl.store(v_ptr + offset, v, mask=inside)
    if HAS_COPY:
        tl.store(copy_ptr + offset, p.to(copy_ptr.dtype.element_ty), mask=inside)


# ---------------------------------------------------------------- plain function


def adamw_step(
    p: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    step: AdamWStep,
    *,
    decay: DecayMask | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    copy: Tensor | None = None,
) -> None:
    """Updates p, m, v (and copy, the low-precision weights) in place.

    p, m, v: contiguous (n,) fp32, or fp64 through the reference; g: (n,) of any float type, read only; decay: None
    decays everything; grad_scale, found_inf: one-element tensors on p's device; copy: (n,) bf16, fp16 or fp32.
    """
    mask, codes = (None, None) if decay is None else (decay.mask, decay.codes)
    tensors = p, m, v, g, copy, mask, codes, grad_scale, found_inf
    launch = _launch(tensors, decay is not None, MASK_BLOCK, WARPS)
    if launch is None:
        adamw_reference(p, m, v, g, step, decay, grad_scale, found_inf, copy)
        return
    launch(tensors, step.floats)
    written(*(t for t in (p, m, v, copy) if t is not None))


@checked_once
def _launch(
    p: Tensor, m: Tensor, v: Tensor, g: Tensor, copy: Tensor | None, mask: Tensor | None,
    codes: Tensor | None, grad_scale: Tensor | None, found_inf: Tensor | None, decayed: bool, block: int, warps: int,
) -> Launch | None:  # fmt: skip
    _check(p, m, v, g, mask, codes, decayed, grad_scale, found_inf, copy)
    if not use_triton(p):
        return None
    constants = {
        "HAS_MASK": decayed, "HAS_SCALE": grad_scale is not None, "HAS_INF": found_inf is not None,
        "HAS_COPY": copy is not None, "BLOCK": block, "num_warps": warps,
    }  # fmt: skip
    return Launch(adamw_kernel, (cdiv(p.numel(), block),), (p.numel(),), constants)


def _check(
    p: Tensor, m: Tensor, v: Tensor, g: Tensor, mask: Any, codes: Any, decayed: bool,
    grad_scale: Tensor | None, found_inf: Tensor | None, copy: Tensor | None,
) -> None:  # fmt: skip
    check_tensor("p", p, dtypes=(torch.float32, torch.float64), shape=(None,))
    n = p.numel()
    for name, state in (("m", m), ("v", v)):
        check_tensor(name, state, dtypes=(p.dtype,), shape=(n,), device=p.device)
    check_float("g", g)
    check_tensor("g", g, shape=(n,), device=p.device)
    if copy is not None:
        check_tensor("copy", copy, dtypes=(*FLOATS, torch.float64), shape=(n,), device=p.device)
    if decayed:
        for name, part, items in (("decay.mask", mask, n), ("decay.codes", codes, cdiv(n, MASK_BLOCK))):
            check_tensor(name, part, dtypes=(torch.uint8,), shape=(items,), device=p.device, contiguous=True)
    for name, number in (("grad_scale", grad_scale), ("found_inf", found_inf)):
        if number is not None and not isinstance(number, torch.Tensor):
            raise KernelArgumentError(f"{name} is {number!r}; accepted: a tensor of one element on {p.device}")
        if number is not None and (number.numel() != 1 or number.device != p.device):
            raise KernelArgumentError(
                f"{name} has shape {tuple(number.shape)} on {number.device}; accepted: one element on {p.device}"
            )
    for name, tensor in (("p", p), ("m", m), ("v", v), ("g", g), ("copy", copy)):
        if tensor is not None and not tensor.is_contiguous():
            raise KernelArgumentError(f"{name} has stride {tensor.stride()}; accepted: a contiguous flat buffer")
