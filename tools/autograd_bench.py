"""What launching costs the host of a framework with autograd: a Llama-shaped layer of modules and autograd functions,
far too small to keep a GPU busy, timed on the host.

    torchrun --nproc_per_node 1 -m tools.autograd_bench
    torchrun --nproc_per_node 2 -m tools.autograd_bench      # with tensor-parallel collectives

Microseconds a layer and micro-batch of forward, backward and of adding gradients to fp32 sums, beside the kernels that
the profiler counts. The trainer of this project issues its kernels otherwise (no autograd graph, no module
calls); what it measured of itself says nothing of these.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

LAYERS, HIDDEN, HEADS, FFN, TOKENS = 8, 256, 8, 512, 256
COLLECTIVES = 10  # of a layer: four forward, six backward
WARM_UP, STEPS = 20, 30
PARTS = ("forward", "backward", "accumulate")


def _gathered(x: torch.Tensor) -> torch.Tensor:
    if dist.get_world_size() == 1:
        return x
    whole = torch.empty(x.shape[0] * dist.get_world_size(), *x.shape[1:], device=x.device, dtype=x.dtype)
    dist.all_gather_into_tensor(whole, x.contiguous(), async_op=True).wait()
    return whole


def _scattered(x: torch.Tensor) -> torch.Tensor:
    if dist.get_world_size() == 1:
        return x
    share = torch.empty(x.shape[0] // dist.get_world_size(), *x.shape[1:], device=x.device, dtype=x.dtype)
    dist.reduce_scatter_tensor(share, x, async_op=True).wait()
    return share


def _weight_gradient(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return dy.reshape(-1, dy.shape[-1]).t().matmul(x.reshape(-1, x.shape[-1]))


class Column(torch.autograd.Function):
    """y = gather(x) Wᵀ; backward gathers again and scatters the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(_gathered(x), weight)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return _scattered(dy.matmul(weight)), _weight_gradient(dy, _gathered(x))


class Row(torch.autograd.Function):
    """y = scatter(x Wᵀ); backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _scattered(F.linear(x, weight))

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        whole = _gathered(dy)
        return whole.matmul(weight), _weight_gradient(whole, x)


class Linear(nn.Module):
    """A linear module over one of the functions above."""

    def __init__(self, inputs: int, outputs: int, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * 0.02)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function.apply(x, self.weight)


class Norm(nn.Module):
    """RMSNorm: torch's own kernel, or written out as frameworks do."""

    def __init__(self, native: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16))
        self.native = native

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.native:
            return F.rms_norm(x, (HIDDEN,), self.weight, 1e-5)
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Layer(nn.Module):
    """A decoder layer on (tokens, batch, hidden)."""

    def __init__(self, native: bool) -> None:
        super().__init__()
        ranks = dist.get_world_size()
        self.heads, self.width = HEADS // ranks, HIDDEN // HEADS
        self.qkv, self.proj = Linear(HIDDEN, 3 * HIDDEN // ranks, Column), Linear(HIDDEN // ranks, HIDDEN, Row)
        self.up, self.down = Linear(HIDDEN, 2 * FFN // ranks, Column), Linear(FFN // ranks, HIDDEN, Row)
        self.first, self.second = Norm(native), Norm(native)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.first(x)).chunk(3, -1)
        rows, batch = qkv[0].shape[:2]
        q, k, v = (part.view(rows, batch, self.heads, self.width).permute(1, 2, 0, 3) for part in qkv)
        q, k = (part * cos + _rotated(part) * sin for part in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.permute(2, 0, 1, 3).reshape(rows, batch, -1))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        y: torch.Tensor = x + self.down(F.silu(gate) * up)
        return y


def _rotated(x: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat((-high, low), -1)


def stepper(native: bool) -> Callable[[], list[float]]:
    """A step of the model, which returns host seconds of each of PARTS."""
    layers = nn.ModuleList(Layer(native) for _ in range(LAYERS))
    sums = {p: torch.zeros_like(p, dtype=torch.float32) for p in layers.parameters()}
    table = torch.randn(TOKENS, HIDDEN // HEADS, device="cuda", dtype=torch.bfloat16)
    shape = (TOKENS // dist.get_world_size(), 1, HIDDEN)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step() -> list[float]:
        times, y = [time.perf_counter()], x
        for layer in layers:
            y = layer(y, table, table)
        total = y.sum()
        times.append(time.perf_counter())
        total.backward()  # type: ignore[no-untyped-call]
        times.append(time.perf_counter())
        for parameter, held in sums.items():
            assert parameter.grad is not None
            held.add_(parameter.grad)
            parameter.grad = None
        return [end - start for start, end in zip(times, [*times[1:], time.perf_counter()], strict=True)]

    return step


def measure(native: bool) -> dict[str, Any]:
    """Medians of host microseconds a layer, and kernels and collectives a layer."""
    step, times = stepper(native), []
    for number in range(WARM_UP + STEPS):
        found = step()
        torch.cuda.synchronize()
        times += [found] if number >= WARM_UP else []
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    launched = [event.name for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = sum("nccl" not in name.lower() for name in launched)  # a collective shows as more than its kernel
    each = (statistics.median(part) / LAYERS * 1e6 for part in zip(*times, strict=True))
    us = dict(zip(PARTS, each, strict=True))
    ranks = dist.get_world_size()
    of_a_layer = {"kernels": kernels / LAYERS, "collectives": COLLECTIVES if ranks > 1 else 0}
    return {"norm": "torch's" if native else "written out", "ranks": ranks, "us": us, **of_a_layer}


def main() -> None:
    """Measure both kinds of norm on every rank; rank 0 prints."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    found = [measure(native) for native in (True, False)]
    if dist.get_rank() == 0:
        print(json.dumps({"torch": torch.__version__, "layers": found}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
