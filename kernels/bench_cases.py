# ruff: noqa: B023  (a case is measured before its generator moves on, so its closures see the values they were made with)
"""What `kernels.bench` measures: each operator at its shapes, ours beside eager PyTorch, torch.compile and Liger.

A case names the operator, its size, the bytes a perfect pass moves (each input read once, each output written once)
or the FLOPs where the work is matrix products, the target, and the contestants as functions without arguments.
Backwards of the peers are `torch.autograd.grad` on a retained graph, their kernels alone (kernels/timing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from kernels import (
    activations,
    adamw,
    attention,
    checksum,
    crossentropy,
    delta,
    linear_crossentropy,
    norms,
    onebit,
    rotary,
)
from kernels.bench_case import ELEMENTS, Call, Case, add_peer, add_torch, backward_of, bf16, compiled_of, liger_function
from kernels.random import Dropout

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
        }
        add_peer(calls, "eager", lambda: lambda: plain(q, k, wide_cos, wide_sin))
        add_peer(calls, "compile", lambda: lambda: compiled(q, k, wide_cos, wide_sin))
        if liger is not None:
            c, s = wide_cos[:, :, 0], wide_sin[:, :, 0]
            add_peer(calls, "liger", lambda: lambda: liger.apply(q.transpose(1, 2), k.transpose(1, 2), c, s))
        yield Case(
            "rotary q + k", f"{batch}x4096x(32+8)x128 bf16", calls, bytes=4.0 * (q.numel() + k.numel()), target=0.92
        )


def adam() -> Iterator[Case]:
    n = 2**28
    p, m, v = (torch.rand(n, device="cuda") for _ in range(3))
    g, copy = torch.randn(n, device="cuda", dtype=torch.bfloat16), torch.empty(n, device="cuda", dtype=torch.bfloat16)
    step, scale = adamw.AdamWStep(1e-4, 10, weight_decay=0.1), torch.tensor(0.5, device="cuda")
    mask = torch.ones(n, dtype=torch.bool, device="cuda")
    mask[::100_000] = False
    decay = adamw.DecayMask.of(mask)
    calls: dict[str, Call] = {
        "ours": lambda: adamw.adamw_step(p, m, v, g, step, decay=decay, grad_scale=scale, copy=copy)
    }
    yield Case("adamw, bf16 gradient, bf16 copy", f"{n} parameters", calls, bytes=28.0 * n, target=0.95)
    g32 = torch.randn(n, device="cuda")
    calls = {"ours": lambda: adamw.adamw_step(p, m, v, g32, step)}

    def fused() -> Call:
        parameter = torch.nn.Parameter(p.clone())
        parameter.grad = g32
        optimizer = torch.optim.AdamW([parameter], lr=1e-4, weight_decay=0.1, fused=True, capturable=True)
        return optimizer.step

    add_peer(calls, "eager", fused)
    yield Case("adamw, fp32 gradient", f"{n} parameters", calls, bytes=28.0 * n)


def losses() -> Iterator[Case]:
    logits = bf16(4096, 128256)
    target = torch.randint(0, 128256, (4096,), device="cuda")

    def plain(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), target)

    compiled = compiled_of(plain)
    leaf = logits.clone().requires_grad_()
    calls: dict[str, Call] = {"ours": lambda: crossentropy.cross_entropy(logits, target, scale=1e-4, in_place=True)}
    add_torch(calls, plain, compiled, lambda f: lambda: torch.autograd.grad(f(leaf, target), leaf))
    yield Case("cross entropy forward + backward", "4096x128256 bf16", calls, bytes=6.0 * logits.numel(), target=0.75)


def linear_losses() -> Iterator[Case]:
    rows, hidden, vocab = 8192, 4096, 128256
    x, w = bf16(rows, hidden), torch.randn(vocab, hidden, device="cuda", dtype=torch.bfloat16) * 0.02
    target = torch.randint(0, vocab, (rows,), device="cuda")
    x_leaf, w_leaf = x.clone().requires_grad_(), w.clone().requires_grad_()
    main = torch.zeros(vocab, hidden, device="cuda")

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy((x @ w.t()).float(), target)

    compiled = compiled_of(plain)
    flops = 6.0 * rows * hidden * vocab
    calls: dict[str, Call] = {
        "ours": lambda: linear_crossentropy.linear_cross_entropy(x, w, target, scale=1 / rows, weight_grad=main),
        "ours, new dW": lambda: linear_crossentropy.linear_cross_entropy(x, w, target, scale=1 / rows),
    }
    add_torch(calls, plain, compiled, lambda f: lambda: torch.autograd.grad(f(x_leaf, w_leaf), [x_leaf, w_leaf]))
    liger = liger_function("liger_kernel.ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction")
    if liger is not None:

        def liger_step() -> object:
            result = liger.apply(x_leaf, w_leaf, target)
            loss = result[0] if isinstance(result, tuple) else result
            return torch.autograd.grad(loss, [x_leaf, w_leaf])

        add_peer(calls, "liger", lambda: liger_step)
    logits = torch.empty(2048, vocab, device="cuda", dtype=torch.bfloat16)

    def gemms() -> None:
        for part in x.split(2048):
            torch.mm(part, w.t(), out=logits)
            torch.mm(logits, w)
            torch.mm(logits.t(), part)

    calls["gemm floor (bf16 dW)"] = gemms
    yield Case(
        "linear + cross entropy, forward + backward", f"{rows}x{hidden}, vocab {vocab} bf16", calls, flops=flops,
        target=40.0, target_ms=True, memory=True, budget_ms=400.0,
    )  # fmt: skip


def flat_buffers() -> Iterator[Case]:
    n = 2**28
    x, error = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    yield Case(
        "one-bit pack",
        f"{n} fp32",
        {"ours": lambda: onebit.onebit_pack(x, error, chunk=2**24)},
        bytes=n * (8 + 8 + 4 + 0.125),
    )
    bits, scale = onebit.onebit_pack(x, error, chunk=2**24)
    bits, scale = bits.repeat(4, 1), scale.repeat(4, 1)
    yield Case(
        "one-bit unpack", f"4x{n} bits", {"ours": lambda: onebit.onebit_unpack(bits, scale, chunk=2**24)}, bytes=n * 4.5
    )
    yield Case("checksum", f"{n} fp32", {"ours": lambda: checksum.checksum(x)}, bytes=4.0 * n)
    new, base = x.to(torch.bfloat16), error.to(torch.bfloat16)
    planes = delta.delta_pack(new, base)
    out = torch.empty_like(base)
    yield Case("delta pack", f"{n} bf16", {"ours": lambda: delta.delta_pack(new, base)}, bytes=6.0 * n)
    yield Case("delta unpack", f"{n} bf16", {"ours": lambda: delta.delta_unpack(planes, base, out=out)}, bytes=6.0 * n)


def attentions() -> Iterator[Case]:
    for batch, length in ((8, 2048), (2, 8192)):
        q, k, v, dout = (
            bf16(b, t, heads, 128).transpose(1, 2) for b, t, heads in [(batch, length, h) for h in (32, 8, 8, 32)]
        )
        flops = 2.0 * batch * 32 * length * length * 128  # causal: half of 4·B·H·T²·D
        forward: dict[str, Call] = {"ours": lambda: attention.attention_forward(q, k, v)}
        done = attention.attention_forward(q, k, v)
        backward: dict[str, Call] = {"ours": lambda: attention.attention_backward(dout, q, k, v, done)}
        flash = attention.attention_forward(q, k, v, backend="flash")
        forward["flash"] = lambda: attention.attention_forward(q, k, v, backend="flash")
        backward["flash"] = lambda: attention.attention_backward(dout, q, k, v, flash)
        forward["eager"] = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        label = f"{batch}x{length}x32/8x128 causal bf16"
        yield Case("attention forward", label, forward, flops=flops, notes={"backend": done.backend})
        yield Case("attention backward", label, backward, flops=2.5 * flops, notes={"backend": done.backend})


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "rmsnorm": rms_norm,
    "layernorm": layer_norm,
    "fusednorm": fused_norm,
    "swiglu": swiglu,
    "gelu": gelu,
    "rotary": rotary_embedding,
    "adamw": adam,
    "loss": losses,
    "linearloss": linear_losses,
    "flat": flat_buffers,
    "attention": attentions,
}
