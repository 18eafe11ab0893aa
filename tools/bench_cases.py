# ruff: noqa: B023  (a case is measured before its generator moves on, so its closures see the values they were made with)
"""What `tools.bench` measures: each operator at its shapes, ours beside eager PyTorch, torch.compile and Liger.

A case names the operator, its size, the bytes a perfect pass moves (each input read once, each output written once)
or the FLOPs where the work is matrix products, the target, and the contestants as functions without arguments.
Backwards of the peers are `torch.autograd.grad` on a retained graph, their kernels alone (calibration/timing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from kernels import activations, norms, residual, rotary
from kernels.random import Dropout
from kernels.reference_layer import Mask
from tools import bench_cases_flat as flat
from tools.bench_case import ELEMENTS, Call, Case, add_peer, add_torch, backward_of, bf16, compiled_of, liger_function

Tensor = torch.Tensor


def rms_norm() -> Iterator[Case]:
    liger = liger_function("liger_kernel.ops.rms_norm.LigerRMSNormFunction")
    for width in (2048, 4096, 8192, 16384):
        x, w, dy = bf16(ELEMENTS // width, width, grad=True), bf16(width, grad=True), bf16(ELEMENTS // width, width)
        shape = f"{x.shape[0]}x{width} bf16"

        def plain(x: Tensor, w: Tensor, n: int = width) -> Tensor:
            return F.rms_norm(x, (n,), w, 1e-5)

        compiled = compiled_of(plain)
        forward: dict[str, Call] = {"ours": lambda: norms.norm_forward("rms", x.detach(), w.detach(), eps=1e-5)}
        _, _, rstd, _ = norms.norm_forward("rms", x.detach(), w.detach(), eps=1e-5)
        backward: dict[str, Call] = {"ours": lambda: norms.norm_backward("rms", dy, x.detach(), w.detach(), rstd)}
        add_torch(forward, plain, compiled, lambda f: lambda: f(x.detach(), w.detach()))
        add_torch(backward, plain, compiled, lambda f: backward_of(f(x, w), [x, w], dy))
        if liger is not None:
            add_peer(forward, "liger", lambda: lambda: liger.apply(x.detach(), w.detach(), 1e-5, 0.0, "llama", False))
            add_peer(backward, "liger", lambda: backward_of(liger.apply(x, w, 1e-5, 0.0, "llama", False), [x, w], dy))
        yield Case("rmsnorm forward", shape, forward, bytes=4.0 * ELEMENTS, target=0.95 if width >= 4096 else None)
        yield Case("rmsnorm backward", shape, backward, bytes=6.0 * ELEMENTS, target=0.82)


def layer_norm() -> Iterator[Case]:
    liger = liger_function("liger_kernel.ops.layer_norm.LigerLayerNormFunction")
    for width in (768, 4096):
        rows = ELEMENTS // 2 // width
        x, w, b, dy = (
            bf16(rows, width, grad=True),
            bf16(width, grad=True),
            bf16(width, grad=True),
            bf16(rows, width),
        )

        def plain(x: Tensor, w: Tensor, b: Tensor, n: int = width) -> Tensor:
            return F.layer_norm(x, (n,), w, b, 1e-5)

        compiled = compiled_of(plain)
        xd, wd, bd = x.detach(), w.detach(), b.detach()
        _, _, rstd, mean = norms.norm_forward("layer", xd, wd, bd, eps=1e-5)
        forward: dict[str, Call] = {"ours": lambda: norms.norm_forward("layer", xd, wd, bd, eps=1e-5)}
        backward: dict[str, Call] = {
            "ours": lambda: norms.norm_backward("layer", dy, xd, wd, rstd, mean, has_bias=True)
        }
        add_torch(forward, plain, compiled, lambda f: lambda: f(xd, wd, bd))
        add_torch(backward, plain, compiled, lambda f: backward_of(f(x, w, b), [x, w, b], dy))
        if liger is not None:
            add_peer(forward, "liger", lambda: lambda: liger.apply(xd, wd, bd, 1e-5))
            add_peer(backward, "liger", lambda: backward_of(liger.apply(x, w, b, 1e-5), [x, w, b], dy))
        yield Case("layernorm forward", f"{rows}x{width} bf16", forward, bytes=4.0 * x.numel())
        yield Case("layernorm backward", f"{rows}x{width} bf16", backward, bytes=6.0 * x.numel())


def fused_norm() -> Iterator[Case]:
    """Residual add, dropout and RMSNorm in one pass, the stream in bf16 or fp32."""
    width = 4096
    rows = ELEMENTS // 2 // width
    x, w, dy, dstream = bf16(rows, width), bf16(width), bf16(rows, width), bf16(rows, width)
    residual = bf16(rows, width)
    dropout = Dropout.at(0.1, seed=1, step=1, layer=1, site=1)

    def plain(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        stream = residual + x
        return F.rms_norm(stream, (width,), w, 1e-5), stream

    compiled = compiled_of(plain)
    calls: dict[str, Call] = {"ours": lambda: norms.norm_forward("rms", x, w, eps=1e-5, residual=residual)}
    add_peer(calls, "eager", lambda: lambda: plain(x, residual, w))
    add_peer(calls, "compile", lambda: lambda: compiled(x, residual, w))
    yield Case("add + rmsnorm forward", f"{rows}x{width} bf16", calls, bytes=8.0 * x.numel())
    calls = {"ours": lambda: norms.norm_forward("rms", x, w, eps=1e-5, residual=residual, dropout=dropout)}
    yield Case("dropout + add + rmsnorm forward", f"{rows}x{width} bf16", calls, bytes=8.0 * x.numel())
    _, stream, rstd, _ = norms.norm_forward("rms", x, w, eps=1e-5, residual=residual)
    calls = {"ours": lambda: norms.norm_backward("rms", dy, stream, w, rstd, dstream=dstream)}
    yield Case("add + rmsnorm backward", f"{rows}x{width} bf16", calls, bytes=8.0 * x.numel(), target=0.82)
    calls = {"ours": lambda: norms.norm_backward("rms", dy, stream, w, rstd, dstream=dstream, dropout=dropout)}
    yield Case("dropout + add + rmsnorm backward", f"{rows}x{width} bf16", calls, bytes=10.0 * x.numel())


def residual_stream() -> Iterator[Case]:
    """Bias, dropout and residual add, as between a GPT block's products."""
    rows, width = ELEMENTS // 2 // 4096, 4096
    stream, z, d, bias = bf16(rows, width), bf16(rows, width), bf16(rows, width), bf16(width)
    dropout = Dropout.at(0.1, seed=1, step=1, layer=1, site=1)
    tokens, elements = torch.arange(rows, device="cuda")[:, None], torch.arange(width, device="cuda")
    mask, grad = Mask(dropout, tokens, elements, 0), torch.zeros(width, device="cuda")
    shape = f"{rows}x{width} bf16"
    calls: dict[str, Call] = {"ours": lambda: residual.residual_forward(stream, z, bias, mask)}
    add_peer(calls, "eager", lambda: lambda: stream + F.dropout(z + bias, 0.1))
    yield Case("bias + dropout + add forward", shape, calls, bytes=6.0 * z.numel())
    calls = {"ours": lambda: residual.residual_backward(d, grad, mask)}
    yield Case("bias + dropout + add backward", shape, calls, bytes=4.0 * z.numel())


def swiglu() -> Iterator[Case]:
    liger = liger_function("liger_kernel.ops.swiglu.LigerSiLUMulFunction")
    for width in (8192, 14336):
        rows = ELEMENTS // width
        gate, up, dh = bf16(rows, width, grad=True), bf16(rows, width, grad=True), bf16(rows, width)
        size = float(rows * width)

        def plain(gate: Tensor, up: Tensor) -> Tensor:
            return F.silu(gate) * up

        compiled = compiled_of(plain)
        g, u = gate.detach(), up.detach()
        forward: dict[str, Call] = {"ours": lambda: activations.swiglu_forward(g, u)}
        backward: dict[str, Call] = {"ours": lambda: activations.swiglu_backward(dh, g, u)}
        add_torch(forward, plain, compiled, lambda f: lambda: f(g, u))
        add_torch(backward, plain, compiled, lambda f: backward_of(f(gate, up), [gate, up], dh))
        if liger is not None:  # its backward writes over its saved inputs, so a retained graph cannot time it
            add_peer(forward, "liger", lambda: lambda: liger.apply(g, u))
        yield Case("swiglu forward", f"{rows}x{width} bf16", forward, bytes=6 * size, target=0.98)
        yield Case("swiglu backward", f"{rows}x{width} bf16", backward, bytes=10 * size, target=0.98)


def gelu() -> Iterator[Case]:
    width = 3072
    rows = ELEMENTS // width
    x, bias, dh = bf16(rows, width, grad=True), bf16(width, grad=True), bf16(rows, width)

    def plain(x: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(x + bias, approximate="tanh")

    compiled = compiled_of(plain)
    xd, bd = x.detach(), bias.detach()
    forward: dict[str, Call] = {"ours": lambda: activations.gelu_forward(xd, bd)}
    backward: dict[str, Call] = {"ours": lambda: activations.gelu_backward(dh, xd, bd)}
    add_torch(forward, plain, compiled, lambda f: lambda: f(xd, bd))
    add_torch(backward, plain, compiled, lambda f: backward_of(f(x, bias), [x, bias], dh))
    yield Case("bias + gelu forward", f"{rows}x{width} bf16", forward, bytes=4.0 * x.numel())
    yield Case("bias + gelu backward", f"{rows}x{width} bf16", backward, bytes=6.0 * x.numel())


def rotary_embedding() -> Iterator[Case]:
    liger = liger_function("liger_kernel.ops.rope.LigerRopeFunction")

    def plain(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        def rotate(x: Tensor) -> Tensor:
            half = x.shape[-1] // 2
            return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

        return q * cos + rotate(q) * sin, k * cos + rotate(k) * sin

    compiled = compiled_of(plain)
    for batch in (2, 8):
        q, k = bf16(batch, 4096, 32, 128), bf16(batch, 4096, 8, 128)
        cos, sin = rotary.rotary_table(4096, 128, device="cuda")
        wide_cos, wide_sin = (torch.cat((t, t), -1).to(torch.bfloat16)[None, :, None] for t in (cos, sin))
        calls: dict[str, Call] = {
            "ours": lambda: rotary.rotary_forward(q, k, cos, sin),
            "ours backward": lambda: rotary.rotary_backward(q, k, cos, sin),
            "ours in place": lambda: rotary.rotary_forward(q, k, cos, sin, q_out=q, k_out=k),
        }
        add_peer(calls, "eager", lambda: lambda: plain(q, k, wide_cos, wide_sin))
        add_peer(calls, "compile", lambda: lambda: compiled(q, k, wide_cos, wide_sin))
        if liger is not None:
            c, s = wide_cos[:, :, 0], wide_sin[:, :, 0]
            add_peer(calls, "liger", lambda: lambda: liger.apply(q.transpose(1, 2), k.transpose(1, 2), c, s))
        source = bf16(q.numel() + k.numel())
        copied = torch.empty_like(source)
        calls["(copy of as much)"] = lambda: copied.copy_(source)
        yield Case(
            "rotary q + k", f"{batch}x4096x(32+8)x128 bf16", calls, bytes=4.0 * (q.numel() + k.numel()), target=0.92
        )


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "rmsnorm": rms_norm,
    "layernorm": layer_norm,
    "fusednorm": fused_norm,
    "residual": residual_stream,
    "swiglu": swiglu,
    "gelu": gelu,
    "rotary": rotary_embedding,
    "adamw": flat.adam,
    "loss": flat.losses,
    "linearloss": flat.linear_losses,
    "flat": flat.flat_buffers,
    "attention": flat.attentions,
}
