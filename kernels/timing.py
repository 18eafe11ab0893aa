"""How a kernel is timed: on the device, without the host, with a cold L2; and how the host is timed without the device.

- `kernel_ms`: between two events, after a write that evicts the L2 and a wait of HEAD_START_CYCLES that lets the host
  run ahead, so that a slow Python path (ours or a peer's) is not charged to the kernels. For tensors of several times
  the L2.
- `warm_ms`: many copies of the call in one graph, L2 warm: the fixed time t0 of a small call.
- `host_us`: host time to issue a call, over many calls on a tiny tensor while the device is idle enough to keep up.
- `peak_gib`: memory above what was allocated before the call.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

FLUSH_BYTES = 256 * 2**20
"""Written between measurements: four times the L2 of an H200."""
HEAD_START_CYCLES = 500_000
"""About 0.3 ms at 1.8 GHz: more than any contestant takes to issue a call."""


@dataclass(frozen=True, slots=True)
class Time:
    """Quantiles of one measurement, ms."""

    p20_ms: float
    p50_ms: float
    p80_ms: float


_FLUSH: list[torch.Tensor] = []


def _flush_buffer() -> torch.Tensor:
    if not _FLUSH:
        _FLUSH.append(torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda"))
    return _FLUSH[0]


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


def kernel_ms(call: Callable[[], object], *, budget_ms: float = 60.0) -> Time:
    """Device time of `call` with a cold L2, as many times as `budget_ms` of it allows."""
    flush = _flush_buffer()

    def once() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        flush.zero_()
        torch.cuda._sleep(HEAD_START_CYCLES)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        return start, end

    pairs = [once() for _ in range(3)]
    torch.cuda.synchronize()
    estimate = max(1e-3, pairs[-1][0].elapsed_time(pairs[-1][1]))
    repeats = int(min(200, max(7, budget_ms / estimate)))
    pairs = [once() for _ in range(repeats)]
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) for start, end in pairs)
    cut = statistics.quantiles(times, n=5, method="inclusive")
    return Time(cut[0], statistics.median(times), cut[3])


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


def host_us(call: Callable[[], object], calls: int = 200) -> float:
    """Host time of one `call` in the best of eight batches, in microseconds (other work on the host only adds)."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    samples = []
    for _ in range(8):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - begin) / calls * 1e6)
        torch.cuda.synchronize()
    return min(samples)


def peak_gib(call: Callable[[], object]) -> float:
    """Peak memory that `call` allocates above what is held before it, its results included."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def copy_tb_s() -> float:
    """Copy bandwidth, bytes read plus written, of a 2 GiB tensor."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    time_ms = kernel_ms(lambda: target.copy_(source), budget_ms=100.0).p50_ms
    return 2 * source.numel() * 4 / time_ms / 1e9
