# ruff: noqa: B023  (as in bench_cases.py)
"""Cases of `tools.bench` beyond the pointwise ones: optimizer, losses, flat buffers, attention."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F

from kernels import adamw, checksum, crossentropy, crossentropy_columns, delta, onebit, reference, reference_attention
from tools.bench_case import Call, Case, add_peer, add_torch, bf16, compiled_of, liger_function

Tensor = torch.Tensor


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
    logits, dx = torch.empty(vocab, 2048, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)

    def lines() -> None:
        """The lines of the head in four chunks (`plan.implementations.rewrites`)."""
        for part, goal, gradient in zip(x.split(2048), target.split(2048), dx.split(2048), strict=True):
            torch.mm(w, part.t(), out=logits)
            crossentropy_columns.cross_entropy_columns(logits, goal, scale=1 / rows)
            torch.mm(logits.t(), w, out=gradient)
            reference.accumulate(logits, part, main, "nn")

    calls: dict[str, Call] = {"ours, into main grad": lines}
    add_torch(calls, plain, compiled, lambda f: lambda: torch.autograd.grad(f(x_leaf, w_leaf), [x_leaf, w_leaf]))
    liger = liger_function("liger_kernel.ops.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction")
    if liger is not None:

        def liger_step() -> object:
            result = liger.apply(x_leaf, w_leaf, target)
            loss = result[0] if isinstance(result, tuple) else result
            return torch.autograd.grad(loss, [x_leaf, w_leaf])

        add_peer(calls, "liger", lambda: liger_step)

    def products() -> None:
        for part in x.split(2048):
            torch.mm(w, part.t(), out=logits)
            torch.mm(logits.t(), w)
            torch.mm(logits, part)

    def products_added() -> None:
        for part in x.split(2048):
            torch.mm(w, part.t(), out=logits)
            torch.mm(logits.t(), w)
            reference.accumulate(logits, part, main, "nn")

    def products_by_rows() -> None:
        by_rows = logits.view(2048, vocab)
        for part in x.split(2048):
            torch.mm(part, w.t(), out=by_rows)
            torch.mm(by_rows, w)
            torch.mm(by_rows.t(), part)

    calls["(products alone, bf16 dW)"] = products
    calls["(products alone, fp32 dW added)"] = products_added
    calls["(bf16 dW, logits by rows)"] = products_by_rows
    yield Case(
        "linear + cross entropy, forward + backward", f"{rows}x{hidden}, vocab {vocab} bf16", calls, flops=flops,
        target=40.0, target_ms=True, memory=True, budget_ms=1600.0, rounds=4,
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
    """Torch's fused kernels, as the trainer's pieces call them."""
    for batch, length in ((8, 2048), (2, 8192)):
        q, k, v, dout = (
            bf16(b, t, heads, 128).transpose(1, 2) for b, t, heads in [(batch, length, h) for h in (32, 8, 8, 32)]
        )
        flops = 2.0 * batch * 32 * length * length * 128  # causal: half of 4·B·H·T²·D
        forward: dict[str, Call] = {}
        backward: dict[str, Call] = {}
        for who, variant in (("ours", "cudnn"), ("flash", "flash")):
            saved = reference_attention.attention_forward(q, k, v, variant)
            forward[who] = partial(reference_attention.attention_forward, q, k, v, variant)
            backward[who] = partial(reference_attention.attention_backward, dout, q, k, v, *saved, variant)
        forward["eager"] = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        label = f"{batch}x{length}x32/8x128 causal bf16"
        yield Case("attention forward", label, forward, flops=flops, notes={"backend": "cudnn"})
        yield Case("attention backward", label, backward, flops=2.5 * flops, notes={"backend": "cudnn"})
