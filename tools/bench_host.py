"""Small calls: the host time to issue one, and the device time of one that moves almost nothing (the t0 of a cost
model)."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch.nn import functional as F

from kernels import activations, adamw, crossentropy, norms, rotary
from tools.bench_case import liger_function

Call = Callable[[], object]


def small_calls() -> dict[str, Call]:
    """Operator → one call on a tensor of 64 rows."""

    def bf16(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, w, dy, residual = bf16(64, 1024), bf16(1024), bf16(64, 1024), bf16(64, 1024)
    _, stream, rstd, _ = norms.norm_forward("rms", x, w, eps=1e-5, residual=residual)
    main = torch.zeros(1024, device="cuda")
    q, k = bf16(1, 64, 8, 64), bf16(1, 64, 8, 64)
    cos, sin = rotary.rotary_table(64, 64, device="cuda")
    logits, target = bf16(64, 1024), torch.randint(0, 1024, (64,), device="cuda")
    p, m, v, g = (torch.rand(65536, device="cuda") for _ in range(4))
    step = adamw.AdamWStep(1e-4, 2)
    out = torch.empty_like(x)
    x_leaf, w_leaf = (t.clone().requires_grad_() for t in (x, w))
    liger = liger_function("liger_kernel.ops.rms_norm.LigerRMSNormFunction")
    peers: dict[str, Call] = {
        "(torch: add)": lambda: torch.add(x, residual, out=out),
        "(torch: rms_norm)": lambda: F.rms_norm(x, (1024,), w, 1e-5),
    }
    if liger is not None:
        peers["(liger: rms_norm, autograd)"] = lambda: liger.apply(x_leaf, w_leaf, 1e-5, 0.0, "llama", False)
    return {
        "rmsnorm forward": lambda: norms.norm_forward("rms", x, w, eps=1e-5),
        "add + rmsnorm forward": lambda: norms.norm_forward("rms", x, w, eps=1e-5, residual=residual),
        "add + rmsnorm backward": lambda: norms.norm_backward(
            "rms", dy, stream, w, rstd, dstream=residual, weight_grad=main
        ),
        "swiglu forward": lambda: activations.swiglu_forward(x, residual),
        "swiglu backward": lambda: activations.swiglu_backward(dy, x, residual),
        "bias + gelu forward": lambda: activations.gelu_forward(x, w),
        "bias + gelu backward": lambda: activations.gelu_backward(dy, x, w),
        "rotary q + k": lambda: rotary.rotary_forward(q, k, cos, sin),
        "cross entropy": lambda: crossentropy.cross_entropy(logits, target, in_place=True),
        "adamw": lambda: adamw.adamw_step(p, m, v, g, step),
        **peers,
    }


def _capture(call: Callable[[], object], copies: int = 1) -> Callable[[], object]:
    """A replayable graph of `copies` of `call`."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            kept = call()
    del kept
    return graph.replay


def warm_ms(call: Callable[[], object], copies: int = 20) -> float:
    """Device time of one `call` in a graph of `copies` of it."""
    run = _capture(call, copies)
    best = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        best.append(start.elapsed_time(end) / copies)
    return statistics.median(best)
