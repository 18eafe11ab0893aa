"""Times one GPU's kernels through the registry, with the implementation a run would use, and what issuing them costs
the host.

Device time is measured between events behind a cold L2 and a head start for the host (`kernels.timing`), so that a slow
Python path is not charged to a kernel; the host's share is measured apart and priced apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from calibration.microbench import KernelPoint, apart
from calibration.timing import Timed
from kernels import registry, timing
from plan.errors import InputError
from plan.ops import OPERATORS
from plan.program import KernelCall

ANY_THREADS = 0
Event = torch._C._CudaEventBase  # as the executor uses them: torch.cuda.Event without the Python around it
ISSUE_BATCH = 20
PINNED_BYTES = (1 << 20, 64 << 20, 512 << 20)


def require_gpu() -> torch.device:
    """The GPU to measure. Raises InputError where there is none."""
    if not torch.cuda.is_available():
        raise InputError(
            "no GPU is visible to torch; `windtunnel calibrate` measures the CPU, `doctor` says what is here"
        )
    return torch.device("cuda", torch.cuda.current_device())


def measure(
    calls: Iterable[KernelCall], kernels: str, budget_ms: float = 25.0, progress: Callable[[], None] = lambda: None
) -> Iterator[KernelPoint]:
    """Device time of each call under `kernels` (eager, compiled or triton). A call that does not fit is left out."""
    device = require_gpu()
    torch._dynamo.config.recompile_limit = 256  # one compilation a shape; the default falls back to eager after eight
    ops = registry.bind(kernels, "cuda")
    for call in calls:
        try:
            yield KernelPoint(call, ANY_THREADS, _timed(call, ops, device, budget_ms))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
        progress()


def _timed(call: KernelCall, ops: SimpleNamespace, device: torch.device, budget_ms: float) -> Timed:
    generator = torch.Generator(device).manual_seed(0)
    inputs = apart(registry.OPERATIONS[call.op].make_inputs(call, device, generator))
    with torch.no_grad():
        found = timing.kernel_ms(lambda: registry.run_call(call, inputs, ops), budget_ms=budget_ms)
    spread = (found.p80_ms - found.p20_ms) / 2 / found.p50_ms
    return Timed(found.p50_ms * 1e-3, spread, 7, 7, found.p50_ms * 1e-3)


def issue_costs(calls: Iterable[KernelCall], kernels: str) -> dict[str, float]:
    """Host seconds to issue one execution of each operator of `calls` under `kernels`, on its smallest shape, so that
    nothing is compiled anew. An eager operator launches up to 28 kernels: batches of `ISSUE_BATCH` calls stay within
    the driver's queue, where the host would wait for the device."""
    device = require_gpu()
    ops = registry.bind(kernels, "cuda")
    smallest: dict[str, KernelCall] = {}
    for call in calls:
        known = smallest.get(call.op)
        if known is None or OPERATORS[call.op].bytes_(call) < OPERATORS[known.op].bytes_(known):
            smallest[call.op] = call
    found = {}
    with torch.no_grad():
        for op, call in smallest.items():
            inputs = registry.OPERATIONS[op].make_inputs(call, device, None)
            once = partial(registry.run_call, call, inputs, ops)
            found[op] = float(f"{timing.host_us(once, ISSUE_BATCH) * 1e-6:.4g}")
    return found


def issue_s(instructions: int = 2000) -> float:
    """Host seconds to issue an instruction without kernels: what the executor does around a body. Every other one
    changes streams and waits for the one before it, as between products and collectives."""
    device = require_gpu()
    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]
    table: list[Any] = [None] * 16
    home = torch.cuda.current_stream(device)
    events = [Event() for _ in range(instructions // 2)]  # one for each that is waited for, as in a step
    begin = time.perf_counter()
    for index in range(instructions):
        stream = streams[index // 2 % 2]
        if index % 2 == 0:
            if index:
                events[index // 2 - 1].wait(stream)
            switch(stream)
        arguments = table[:5]
        table[index % 16] = arguments[0]
        if index % 2:
            events[index // 2].record(stream)
    took = time.perf_counter() - begin
    switch(home)
    torch.cuda.synchronize(device)
    return took / instructions


def graph_node_s(nodes: int = 4000) -> float:
    """Host seconds a node to launch a graph like a step's: small kernels, two at a time on each of two streams that
    wait for each other."""
    device = require_gpu()
    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]
    home, tiny = torch.cuda.current_stream(device), torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    tiny.add_(1.0)  # a kernel's first launch loads it, which no capture allows
    torch.cuda.synchronize(device)
    switch(streams[0])
    graph.capture_begin()
    for index in range(nodes // 2):
        stream, other = streams[index % 2], streams[(index + 1) % 2]
        if index:
            event = Event()
            event.record(other)
            event.wait(stream)
            switch(stream)
        tiny.add_(1.0)
        tiny.add_(1.0)
    streams[0].wait_stream(streams[1])
    switch(streams[0])
    graph.capture_end()
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        graph.replay()
        best = min(best, time.perf_counter() - begin)
        torch.cuda.synchronize(device)
    switch(home)
    return best / nodes


def switch(stream: Any) -> None:
    """Make `stream` the current one, as the executor does."""
    torch._C._cuda_setStream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def copies() -> list[tuple[str, float, float]]:
    """(kind, launch seconds, bytes/s) of pinned copies to and from the device: a line through two sizes."""
    device = require_gpu()
    found = []
    for kind in ("h2d", "d2h"):
        times = []
        for size in PINNED_BYTES:
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            here = torch.empty(size, dtype=torch.uint8, device=device)
            target, source = (here, host) if kind == "h2d" else (host, here)
            times.append(timing.kernel_ms(lambda t=target, s=source: t.copy_(s, non_blocking=True)).p50_ms * 1e-3)  # type: ignore[misc]
        rate = (PINNED_BYTES[-1] - PINNED_BYTES[0]) / (times[-1] - times[0])
        found.append((kind, max(0.0, times[0] - PINNED_BYTES[0] / rate), rate))
    return found


def context_bytes() -> int:
    """Device memory in use that the caching allocator does not hold: context, libraries' handles, compiled code."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())


def sustained_gemm(seconds: float = 4.0) -> float:
    """How many times longer an 8192-cubed bf16 product takes at the end of `seconds` of nothing else than in the short
    runs that kernels are timed in: the clocks of a device at its power limit."""
    device = require_gpu()
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    short_s = timing.kernel_ms(lambda: torch.mm(a, a, out=out), budget_ms=25.0).p50_ms * 1e-3
    many = max(8, int(seconds / short_s))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    for index in range(many):
        if index == many * 3 // 4:
            marks[0].record()
        torch.mm(a, a, out=out)
    marks[1].record()
    torch.cuda.synchronize(device)
    return float(marks[0].elapsed_time(marks[1]) * 1e-3 / (many - many * 3 // 4) / short_s)


def machine_probe() -> dict[str, float]:
    """Seconds of an 8192-cubed bf16 product, of copying 2 GiB, and of launching one tiny kernel."""
    device = require_gpu()
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    tiny = torch.zeros(1, device=device)
    return {
        "gemm_s": timing.kernel_ms(lambda: torch.mm(a, a), budget_ms=200.0).p50_ms * 1e-3,
        "copy_s": 2 * 2**29 * 4 / (timing.copy_tb_s() * 1e12),
        "launch_s": timing.host_us(lambda: tiny.add_(1.0)) * 1e-6,
    }
