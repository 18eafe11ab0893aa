"""Times the kernels a step calls on one device, through the same registry the trainer uses, and what issuing an
instruction costs its host.

    Cpu(threads).points(calls, 0.025)      one KernelPoint a call, by the processor's clock, calls in turn
    Cuda("triton").points(calls)           between events behind a cold L2, with the implementation a run would use

`probe` is the short check of the day: a GEMM, a copy and a launch, to be compared with those in the profile. What a
GPU's host takes is measured and priced apart from the device, so that a slow Python path is not charged to a kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from calibration.heap import keep_freed_memory
from calibration.timing import Event, Timed, copy_tb_s, host_us, in_turn, kernel_ms, repeat, switch
from kernels import registry
from program import KernelCall
from program.errors import InputError
from program.ops import OPERATORS

ROTATE_BYTES = 8 << 20  # inputs rotate through at least this much, beyond a core's own caches
MOST_SETS = 6
IN_TURN = 16
ANY_THREADS = 0
ISSUE_BATCH = 20
PINNED_BYTES = (1 << 20, 64 << 20, 512 << 20)


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One measured call at a thread count (a GPU: ANY_THREADS)."""

    call: KernelCall
    threads: int
    timed: Timed


def made_inputs(call: KernelCall, device: torch.device | str, generator: torch.Generator) -> tuple[object, ...]:
    """Arguments of a call; tensors that it is given twice are copied: copying one onto itself moves nothing."""
    seen: set[int] = set()
    apart: list[object] = []
    for value in registry.OPERATIONS[call.op].make_inputs(call, device, generator):
        again = isinstance(value, torch.Tensor) and id(value) in seen
        apart.append(value.clone() if again and isinstance(value, torch.Tensor) else value)
        seen.add(id(value))
    return tuple(apart)


# ---------------------------------------------------------------- the CPU


@dataclass(frozen=True, slots=True)
class Cpu:
    """This machine's CPU at a number of threads. One thread is timed by its own processor clock, several by the
    wall."""

    threads: int = 1
    name: ClassVar[str] = "cpu"

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds."""
        return time.thread_time if self.threads == 1 else time.perf_counter

    def points(self, calls: Sequence[KernelCall], budget_s: float) -> Iterator[KernelPoint]:
        """Seconds of each call, IN_TURN of them in turn, each for about `budget_s`."""
        keep_freed_memory()
        for first in range(0, len(calls), IN_TURN):
            chosen = calls[first : first + IN_TURN]
            with self._threads(), torch.no_grad():
                timed = in_turn([_executions(call) for call in chosen], budget_s, self.clock)
            for call, found in zip(chosen, timed, strict=True):
                yield KernelPoint(call, self.threads, found)

    def probe(self, seconds: float = 5.0) -> dict[str, float]:
        """Seconds of a 512-cubed fp32 GEMM, of copying 16 MiB, and of launching one tiny kernel: medians over about
        `seconds`."""
        with self._threads():
            a, b = torch.randn(512, 512), torch.randn(512, 512)
            source, target = torch.randn(4 << 20), torch.empty(4 << 20)
            tiny = torch.zeros(1)
            share, clock = seconds / 3, self.clock
            return {
                "gemm_s": repeat([lambda: torch.mm(a, b)], share, clock, most=2000).best_s,
                "copy_s": repeat([lambda: target.copy_(source)], share, clock, most=2000).best_s,
                "launch_s": repeat([lambda: tiny.add_(1.0)], share, clock, most=2000).best_s,
            }

    def instruction_s(self, instructions: int = 200) -> float:
        """Host seconds of one instruction with an empty body: what an executor does around a piece's function.

        Per instruction: fetch the function by (kind, piece), gather its arguments from the buffer table, stamp the
        status record, check waits, call, store results, drop what is freed, and stamp the clock twice.
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

    def context_bytes(self) -> int:
        """Memory the process holds; asked before its first tensor of a step."""
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        except OSError:
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    @contextmanager
    def _threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _executions(call: KernelCall) -> list[Callable[[], object]]:
    """Ready executions of `call` on several sets of inputs, to rotate through."""
    bytes_ = max(1, OPERATORS[call.op].bytes_(call))
    sets = max(1, min(MOST_SETS, ROTATE_BYTES // bytes_))
    generator, function = torch.Generator().manual_seed(0), registry.OPERATIONS[call.op].function
    many = [made_inputs(call, "cpu", generator) for _ in range(sets)]
    return [lambda inputs=inputs: function(*inputs) for inputs in many]  # type: ignore[misc]


def machine_probe(seconds: float = 5.0, threads: int = 1) -> dict[str, float]:
    """`Cpu.probe`, as a training run asks it."""
    return Cpu(threads).probe(seconds)


# ---------------------------------------------------------------- a GPU


def require_gpu() -> torch.device:
    """The GPU to measure. Raises InputError where there is none."""
    if not torch.cuda.is_available():
        raise InputError(
            "no GPU is visible to torch; `windtunnel calibrate` measures the CPU, `doctor` says what is here"
        )
    return torch.device("cuda", torch.cuda.current_device())


@dataclass(frozen=True, slots=True)
class Cuda:
    """The current GPU under a kind of kernels (eager, compiled or triton)."""

    kernels: str = "eager"
    name: ClassVar[str] = "cuda"

    def points(self, calls: Iterable[KernelCall], budget_ms: float = 25.0) -> Iterator[KernelPoint]:
        """Device seconds of each call. A call that does not fit is left out."""
        device = require_gpu()
        torch._dynamo.config.recompile_limit = 256  # one compilation a shape; the default is eager after eight
        ops = registry.bind(self.kernels, "cuda")
        for call in calls:
            try:
                yield KernelPoint(call, ANY_THREADS, _device_time(call, ops, device, budget_ms))
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()

    def issue_costs(self, calls: Iterable[KernelCall]) -> dict[str, float]:
        """Host seconds to issue one execution of each operator of `calls`, on its smallest shape, so that nothing is
        compiled anew. An eager operator launches up to 28 kernels: batches of `ISSUE_BATCH` calls stay within the
        driver's queue, where the host would wait for the device."""
        device, ops = require_gpu(), registry.bind(self.kernels, "cuda")
        smallest: dict[str, KernelCall] = {}
        for call in calls:
            known = smallest.get(call.op)
            if known is None or OPERATORS[call.op].bytes_(call) < OPERATORS[known.op].bytes_(known):
                smallest[call.op] = call
        found = {}
        with torch.no_grad():
            for op, call in smallest.items():
                inputs = registry.OPERATIONS[op].make_inputs(call, device, None)
                found[op] = float(f"{host_us(partial(registry.run_call, call, inputs, ops), ISSUE_BATCH) * 1e-6:.4g}")
        return found

    def probe(self) -> dict[str, float]:
        """Seconds of an 8192-cubed bf16 product, of copying 2 GiB, and of launching one tiny kernel."""
        device = require_gpu()
        a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        tiny = torch.zeros(1, device=device)
        return {
            "gemm_s": kernel_ms(lambda: torch.mm(a, a), budget_ms=200.0).p50_ms * 1e-3,
            "copy_s": 2 * 2**29 * 4 / (copy_tb_s() * 1e12),
            "launch_s": host_us(lambda: tiny.add_(1.0)) * 1e-6,
        }

    def instruction_s(self, instructions: int = 2000) -> float:
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

    def graph_node_s(self, nodes: int = 4000) -> float:
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

    def context_bytes(self) -> int:
        """Device memory in use that the caching allocator does not hold: context, libraries' handles, compiled
        code."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free - torch.cuda.memory_reserved())

    def copies(self) -> list[tuple[str, float, float]]:
        """(kind, launch seconds, bytes/s) of pinned copies to and from the device: a line through two sizes."""
        device = require_gpu()
        found = []
        for kind in ("h2d", "d2h"):
            times = []
            for size in PINNED_BYTES:
                host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                here = torch.empty(size, dtype=torch.uint8, device=device)
                target, source = (here, host) if kind == "h2d" else (host, here)
                times.append(kernel_ms(partial(target.copy_, source, non_blocking=True)).p50_ms * 1e-3)
            rate = (PINNED_BYTES[-1] - PINNED_BYTES[0]) / (times[-1] - times[0])
            found.append((kind, max(0.0, times[0] - PINNED_BYTES[0] / rate), rate))
        return found

    def sustained_gemm(self, seconds: float = 4.0) -> float:
        """How many times longer an 8192-cubed bf16 product takes at the end of `seconds` of nothing else than in the
        short runs that kernels are timed in: the clocks of a device at its power limit."""
        device = require_gpu()
        a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(a)
        short_s = kernel_ms(lambda: torch.mm(a, a, out=out), budget_ms=25.0).p50_ms * 1e-3
        many = max(8, int(seconds / short_s))
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for index in range(many):
            if index == many * 3 // 4:
                marks[0].record()
            torch.mm(a, a, out=out)
        marks[1].record()
        torch.cuda.synchronize(device)
        return float(marks[0].elapsed_time(marks[1]) * 1e-3 / (many - many * 3 // 4) / short_s)


def _device_time(call: KernelCall, ops: SimpleNamespace, device: torch.device, budget_ms: float) -> Timed:
    """Its inputs are gone before the next call's are made."""
    inputs = made_inputs(call, device, torch.Generator(device).manual_seed(0))
    with torch.no_grad():
        found = kernel_ms(lambda: registry.run_call(call, inputs, ops), budget_ms=budget_ms)
    spread = (found.p80_ms - found.p20_ms) / 2 / found.p50_ms
    return Timed(found.p50_ms * 1e-3, spread, 7, 7, found.p50_ms * 1e-3)
