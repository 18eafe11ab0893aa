"""Timing one thing well: on a CPU that others use, and on a GPU whose host is slow.

On a CPU other work on the cores is met in two ways. A kernel on one thread is timed by its thread's processor clock,
which stands still while another process has the core. What must be timed by the wall (several threads, two processes)
keeps the samples within `NEAR` of the tenth percentile: other work only ever adds, and a lost time slice adds
milliseconds. Kernels are timed in turn with others (`in_turn`), never one alone in a loop: inside a step a kernel finds
the caches full of what ran before it, and memory-bound ones then take up to twice as long as in a loop.

On a GPU `kernel_ms` times between two events, after a write that evicts the L2 and a wait of HEAD_START_CYCLES that
lets the host run ahead, so that a slow Python path is not charged to the kernels. `host_us` times issuing a call, over
many calls on a tiny tensor while the device keeps up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

NEAR = 1.3
TICK_S = 20e-6  # calls shorter than this are timed several to a sample, so that the clock does not count
FLUSH_BYTES = 256 * 2**20  # written between measurements: four times the L2 of an H200
HEAD_START_CYCLES = 500_000  # about 0.3 ms at 1.8 GHz: more than any contestant takes to issue a call
Event = torch._C._CudaEventBase  # as the executor uses them: torch.cuda.Event without the Python around it
Clock = Callable[[], float]
Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one execution. `best_s`: median of the undisturbed samples, the number to use; `spread`: their
    relative standard deviation; `kept` of `repetitions` were undisturbed; `median_s`: of all samples."""

    best_s: float
    spread: float
    kept: int
    repetitions: int
    median_s: float

    @property
    def uncertainty(self) -> float:
        """Relative standard error of `best_s`."""
        return float(self.spread / self.kept**0.5)


def summary(samples_s: Sequence[float]) -> Timed:
    """What samples say, other work apart."""
    ordered = sorted(samples_s)
    last = len(ordered) - 1
    near = [s for s in ordered if s <= NEAR * ordered[round(0.1 * last)]]
    middle = near[(len(near) - 1) // 2]
    mean = sum(near) / len(near)
    deviation = (sum((s - mean) ** 2 for s in near) / len(near)) ** 0.5
    return Timed(middle, deviation / mean if mean > 0 else 0.0, len(near), len(ordered), ordered[last // 2])


def repeat(
    runs: Sequence[Run],
    budget_s: float,
    clock: Clock = time.perf_counter,
    least: int = 3,
    most: int = 40,
) -> Timed:
    """Time `runs` in rotation by `clock` for about `budget_s` seconds of the wall, `least` to `most` samples."""
    for run in runs:
        run()
    start = clock()
    runs[0]()
    once_s = max(clock() - start, 1e-7)
    inner = max(1, min(32, int(TICK_S / once_s)))
    samples: list[float] = []
    deadline = time.perf_counter() + budget_s
    index = 0
    while len(samples) < least or (len(samples) < most and time.perf_counter() < deadline):
        begin = clock()
        for _ in range(inner):
            runs[index % len(runs)]()
            index += 1
        samples.append((clock() - begin) / inner)
    return summary(samples)


def in_turn(
    many: Sequence[Sequence[Run]],
    budget_s: float,
    clock: Clock = time.perf_counter,
    least: int = 5,
    most: int = 40,
) -> list[Timed]:
    """Time several calls in turn, each with its own rotation of inputs, for about `budget_s` seconds of the wall each,
    `least` to `most` samples. One result a call."""
    for runs in many:
        for run in runs:
            run()
    samples: list[list[float]] = [[] for _ in many]
    deadline = time.perf_counter() + budget_s * len(many)
    turn = 0
    while turn < least or (turn < most and time.perf_counter() < deadline):
        for runs, found in zip(many, samples, strict=True):
            run = runs[turn % len(runs)]
            begin = clock()
            run()
            found.append(clock() - begin)
        turn += 1
    return [summary(found) for found in samples]


# ---------------------------------------------------------------- GPUs


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


def copy_tb_s() -> float:
    """Copy bandwidth of a GPU, bytes read plus written, of a 2 GiB tensor."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    time_ms = kernel_ms(lambda: target.copy_(source), budget_ms=100.0).p50_ms
    return 2 * source.numel() * 4 / time_ms / 1e9


def switch(stream: Any) -> None:
    """Make `stream` the current one, as the executor does."""
    torch._C._cuda_setStream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
