"""Plain torch references of the matrix, norm and flat-buffer operators of `program.ops`: the specification and the
`eager` path.

Every function works in fp64, fp32 and bf16: statistics and sums are formed in the computing type (fp64 for fp64, else
fp32) and results return in the type of the input. Main gradients are arguments that are added into. No autograd
anywhere: a forward has its backward written beside it, and tests hold the pair against autograd.

Legend: rows × columns of activations; `e` the storage type; statistics (rstd, mean) are one number a row in the
computing type.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def compute_type(x: Tensor) -> torch.dtype:
    """The type sums are formed in: fp64 for fp64 tensors, else fp32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# ---------------------------------------------------------------- products


def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None, variant: str = "nt") -> Tensor:
    """y (m, n) of one product. nt: a (m, k), b (n, k); nn: a (m, k), b (k, n); tn: a (k, m), b (k, n).

    "+acc32" adds into `out`, whose type is the computing type; `bias` (n,) is added to every row.
    """
    layout = variant.partition("+")[0]
    if layout == "nt":
        return torch.mm(a, b.t()) if bias is None else torch.addmm(bias, a, b.t())
    if layout == "nn":
        return torch.mm(a, b)
    return torch.mm(a.t(), b) if out is None else accumulate(a, b, out)


def accumulate(a: Tensor, b: Tensor, out: Tensor, variant: str = "tn") -> Tensor:
    """out (m, n) += aᵀ b for a (k, m), b (k, n) (tn), or a b for a (m, k) (nn), summed in out's type.

    On CUDA bf16 operands feed an fp32 result directly; a CPU has no such kernel, so bf16 operands are widened first
    (two passes more).
    """
    left = a if variant == "nn" else a.t()
    if a.dtype == out.dtype:
        return out.addmm_(left, b)
    if a.is_cuda:
        return torch.ops.aten.addmm.dtype_out(out, left, b, out.dtype, out=out)
    return out.addmm_(left.to(out.dtype), b.to(out.dtype))


def bmm(a: Tensor, b: Tensor, variant: str = "nn") -> Tensor:
    """`gemm` for each of a batch: a and b have one leading extent more."""
    if variant == "nt":
        return torch.bmm(a, b.transpose(1, 2))
    if variant == "tn":
        return torch.bmm(a.transpose(1, 2), b)
    return torch.bmm(a, b)


# ---------------------------------------------------------------- norms


def rmsnorm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(y, rstd): y = x · rstd · weight, rstd = 1/√(mean(x²) + eps) of each row."""
    s = x.to(compute_type(x))
    rstd = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    return (s * rstd * weight.to(s.dtype)).to(x.dtype), rstd.reshape(-1)


def rmsnorm_backward(
    dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual: Tensor | None, weight_grad: Tensor
) -> Tensor:
    """dx, with the residual branch's gradient added when given; the weight's gradient is added into `weight_grad`."""
    s, g = x.to(rstd.dtype), dy.to(rstd.dtype)
    xhat = s * rstd[:, None]
    weight_grad.add_((g * xhat).sum(0))
    g = g * weight.to(rstd.dtype)
    dx = (g - xhat * (g * xhat).mean(-1, keepdim=True)) * rstd[:, None]
    return (dx if residual is None else dx + residual).to(x.dtype)


def layernorm_forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, mean): y = (x − mean) · rstd · weight + bias."""
    s = x.to(compute_type(x))
    mean = s.mean(-1, keepdim=True)
    centred = s - mean
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    y = centred * rstd * weight.to(s.dtype) + bias.to(s.dtype)
    return y.to(x.dtype), rstd.reshape(-1), mean.reshape(-1)


def layernorm_backward(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    mean: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    weight_grad: Tensor,
    bias_grad: Tensor,
) -> Tensor:
    """dx, with the residual branch's gradient added when given; weight and bias gradients are added into the last
    two."""
    s, g = x.to(rstd.dtype), dy.to(rstd.dtype)
    xhat = (s - mean[:, None]) * rstd[:, None]
    weight_grad.add_((g * xhat).sum(0))
    bias_grad.add_(g.sum(0))
    g = g * weight.to(rstd.dtype)
    dx = (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True)) * rstd[:, None]
    return (dx if residual is None else dx + residual).to(x.dtype)


# ---------------------------------------------------------------- flat buffers


def fill(x: Tensor, value: float = 0.0) -> Tensor:
    """x set to `value`."""
    return x.fill_(value)


def copy(target: Tensor, source: Tensor) -> Tensor:
    """`source` copied into `target`, converted to its type."""
    return target.copy_(source)


def sqnorm(x: Tensor) -> Tensor:
    """Σ x², a 0-d tensor in the computing type, without leaving the device. x one-dimensional.

    Rows of 1024 are summed apart: the CPU's norm adds a long vector in one fp32 accumulator a lane, which costs 1e-4 at
    three million.
    """
    whole = x.numel() // 1024 * 1024
    rows = torch.linalg.vector_norm(x[:whole].view(-1, 1024), dim=1, dtype=compute_type(x)).square().sum()
    return rows if whole == x.numel() else rows + torch.linalg.vector_norm(x[whole:], dtype=compute_type(x)).square()
