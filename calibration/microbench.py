"""Times the kernels a step calls, one process, one thread count after another, through the same registry the trainer
uses.

`measure_kernels(calls, threads)` gives one `KernelPoint` a call. `host_costs` measures what issuing one instruction
costs the host of a CPU run. `machine_probe` is the short check of the day: a GEMM, a copy and a launch, to be
compared with those in the profile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from calibration.heap import keep_freed_memory
from calibration.timing import Timed, in_turn, repeat
from kernels import registry
from plan.ops import OPERATORS
from plan.program import KernelCall

ROTATE_BYTES = 8 << 20  # inputs rotate through at least this much, beyond a core's own caches
MOST_SETS = 6


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One measured call at a thread count."""

    call: KernelCall
    threads: int
    timed: Timed


def prepared(call: KernelCall, seed: int = 0) -> list[Callable[[], object]]:
    """Ready executions of `call` on several sets of inputs; rotate through them."""
    bytes_ = max(1, OPERATORS[call.op].bytes_(call))
    sets = max(1, min(MOST_SETS, ROTATE_BYTES // bytes_))
    generator = torch.Generator().manual_seed(seed)
    operation = registry.OPERATIONS[call.op]
    runs: list[Callable[[], object]] = []
    for _ in range(sets):
        inputs = apart(operation.make_inputs(call, "cpu", generator))
        runs.append(lambda inputs=inputs: operation.function(*inputs))  # type: ignore[misc]
    return runs


def apart(inputs: tuple[object, ...]) -> tuple[object, ...]:
    """The same arguments with tensors that were given twice copied: copying a tensor onto itself moves nothing."""
    seen: set[int] = set()
    apart: list[object] = []
    for value in inputs:
        again = isinstance(value, torch.Tensor) and id(value) in seen
        apart.append(value.clone() if again and isinstance(value, torch.Tensor) else value)
        seen.add(id(value))
    return tuple(apart)


def measure_kernels(calls: Iterable[KernelCall], threads: int, budget_s: float) -> list[KernelPoint]:
    """Time the calls in turn, each for about `budget_s`, with `threads` threads; one thread by its own processor
    clock."""
    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    chosen = list(calls)
    try:
        with torch.no_grad():
            timed = in_turn([prepared(call) for call in chosen], budget_s, clock)
    finally:
        torch.set_num_threads(before)
    return [KernelPoint(call, threads, found) for call, found in zip(chosen, timed, strict=True)]


def host_costs(instructions: int = 200) -> float:
    """Host seconds of one instruction with an empty body: what an executor does around a piece's function.

    Per instruction: fetch the function by (kind, piece), gather its arguments from the buffer table, stamp the status
    record, check waits, call, store results, drop what is freed, and stamp the clock twice.
    """
    functions: dict[tuple[str, str], Callable[..., tuple[object, ...]]] = {("F", "piece"): lambda *args: args[:2]}
    buffers: dict[int, object] = dict(enumerate(torch.empty(1).expand(6) for _ in range(16)))
    status = bytearray(64)
    done = [True] * 8
    reads, writes, frees, waits = (0, 1, 2, 3), (4, 5), (6,), (1, 2)

    def issue() -> None:
        rows: list[tuple[int, float, float]] = []
        for index in range(instructions):
            function = functions["F", "piece"]
            arguments = [buffers[ref] for ref in reads]
            status[:16] = index.to_bytes(8, "little") + index.to_bytes(8, "little")
            if all(done[wait] for wait in waits):
                begin = time.perf_counter()
                results = function(*arguments)
                rows.append((index, begin, time.perf_counter()))
                buffers.update(zip(writes, results, strict=True))
            for ref in frees:
                buffers[ref] = None

    return repeat([issue], 0.2, time.thread_time).best_s / instructions


def machine_probe(seconds: float = 5.0, threads: int = 1) -> dict[str, float]:
    """Seconds of a 512-cubed fp32 GEMM, of copying 16 MiB, and of launching one tiny kernel: medians over about
    `seconds`."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    source, target = torch.randn(4 << 20), torch.empty(4 << 20)
    tiny = torch.zeros(1)
    share = seconds / 3
    clock = time.thread_time if threads == 1 else time.perf_counter
    try:
        return {
            "gemm_s": repeat([lambda: torch.mm(a, b)], share, clock, most=2000).best_s,
            "copy_s": repeat([lambda: target.copy_(source)], share, clock, most=2000).best_s,
            "launch_s": repeat([lambda: tiny.add_(1.0)], share, clock, most=2000).best_s,
        }
    finally:
        torch.set_num_threads(before)
