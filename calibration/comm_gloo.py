"""What gloo collectives and transfers cost between two processes of this machine, and what sharing its cores costs.

Each process does what a rank of the trainer does: collectives run as blocking calls on a thread of their own, each
communicator its own group, while the main thread waits or computes (`comm_steps`). Results, gathered from both
processes (the slower counts):

* the undisturbed time of each collective by bytes, between compute, as stamped on the communicating thread;
* each operation's mean delay beyond it, waited for at once and beside compute: what the scheduler makes of it;
* the wake-up: what a waiter pays beyond the collective itself for the hand-over to the thread and back;
* sharing: the same kernels with one process computing, with two, and while a collective runs; and the cores a
  collective takes.

    points, delays, sharing = measure(Gloo(sizes))
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from calibration import comm_bench
from calibration.comm_bench import CommPoint, Delay
from calibration.comm_steps import (
    RANKS,
    Call,
    Rehearsal,
    StreamThread,
    collective,
    compute_call,
    pooled_delay,
    rehearse,
    transfers,
)
from calibration.heap import keep_freed_memory
from calibration.timing import in_turn, summary

SIZES = (64, 1024, 8192, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "send")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
LATENCY_BYTES = 1 << 20  # up to here a delay shows beside the transfer's own spread
ROUNDS = 4  # passes over all cases, so that a burst of other work cannot spoil every sample of one


@dataclass(frozen=True, slots=True)
class Sharing:
    """Relative times. `busy[class]`: a kernel with every process computing over alone; `beside_comm`: a GEMM over
    alone while a collective runs on each process's other thread; `comm_demand`: CPU seconds a process uses per second
    of a collective."""

    busy: dict[str, float]
    beside_comm: float
    comm_demand: float
    wake_s: float
    handover_s: float


Cases = list[tuple[str, str, int]]


def _kernels() -> dict[str, Call]:
    """One kernel of each class that shares what cores share: arithmetic, caches and memory."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    sources = [torch.randn(1 << 20) for _ in range(4)]
    q = torch.randn(1, 8, 256, 64)
    turn = iter(range(1 << 30))

    def memory() -> object:
        i = next(turn) % 4
        return torch.add(sources[i], sources[(i + 1) % 4])

    return {
        "gemm": lambda: torch.mm(a, b),
        "memory": memory,
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True),
    }


def _quiet_s(run: Call, seconds: float) -> float:
    """The undisturbed time of `run`."""
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < 5 or time.perf_counter() < deadline:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return summary(samples).best_s


def _busy(rank: int, kernels: dict[str, Call], seconds: float) -> dict[str, float]:
    """Kernels in turn with both processes computing, over alone, by the threads' own clocks: median over alternating
    rounds, 1 or more."""
    runs = [[run] for run in kernels.values()]
    ratios: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        dist.barrier()
        alone = in_turn(runs, seconds / ROUNDS, time.thread_time) if rank == 0 else []
        dist.barrier()
        together = in_turn(runs, seconds / ROUNDS, time.thread_time)
        for into, one, two in zip(ratios, alone, together, strict=False):
            into.append(two.best_s / one.best_s)
    return {name: max(1.0, summary(found or [1.0]).median_s) for name, found in zip(kernels, ratios, strict=True)}


def _sharing(rank: int, stream: StreamThread, group: Any, seconds: float) -> Sharing:
    kernels = _kernels()
    busy = _busy(rank, kernels, seconds)
    dist.barrier()
    alone = _quiet_s(kernels["gemm"], seconds)
    dist.barrier()
    reduce = collective("all_reduce", 4 << 20, torch.float32, rank, group)
    queued = [stream.submit(reduce) for _ in range(max(10, int(seconds / 5e-3)))]
    samples = []
    while not queued[-1].done():
        start = time.perf_counter()
        kernels["gemm"]()
        samples.append(time.perf_counter() - start)
    beside = summary(samples).median_s / alone if samples else 1.0
    dist.barrier()
    used = time.process_time()
    stamps = [queued.result() for queued in [stream.submit(reduce) for _ in range(20)]]
    demand = (time.process_time() - used) / sum(end - start for start, end in stamps)
    wake_s, handover_s = _wake(stream)
    dist.barrier()
    return Sharing(busy, max(1.0, beside), demand, wake_s, handover_s)


def _wake(stream: StreamThread) -> tuple[float, float]:
    """(round trip to an idle thread and back less the work, time the queueing call itself takes)."""
    trips, puts = [], []
    for _ in range(200):
        start = time.perf_counter()
        future = stream.submit(lambda: time.sleep(1e-4))
        put = time.perf_counter()
        begin, end = future.result()
        trips.append(time.perf_counter() - start - (end - begin))
        puts.append(put - start)
    return summary(trips).best_s, summary(puts).best_s


@dataclass(frozen=True, slots=True)
class Gloo:
    """The links between two processes. `repetitions` of each collective in each round, and seconds for each kernel that
    shares the cores."""

    sizes: tuple[int, ...] = SIZES
    repetitions: int = 3
    share_s: float = 0.4
    ranks: ClassVar[int] = RANKS
    backend: ClassVar[str] = "gloo"

    def open(self, rank: int) -> None:
        """One thread a process, and no memory given back."""
        torch.set_num_threads(1)
        keep_freed_memory()
        warnings.simplefilter("ignore", FutureWarning)

    def measured(self, rank: int, group: Any) -> tuple[list[list[Rehearsal]], Sharing]:
        """(rehearsals of each case, sharing of the cores)."""
        stream, compute = StreamThread(), compute_call()
        found: list[list[Rehearsal]] = [[] for _ in cases(self.sizes)]
        for _ in range(ROUNDS):
            for rounds, (op, dtype, bytes_) in zip(found, cases(self.sizes), strict=True):
                run = collective(op, bytes_, DTYPES[dtype], rank, group)
                rounds.append(rehearse(stream, run, compute, self.repetitions if bytes_ <= LATENCY_BYTES else 1))
        sharing = _sharing(rank, stream, group, self.share_s)
        stream.close()
        return found, sharing


def cases(sizes: tuple[int, ...] = SIZES) -> Cases:
    """(operation, dtype, bytes): every operation in fp32; reductions in other dtypes at a few sizes (they add more
    slowly)."""
    found = [(op, "fp32", size) for op in OPERATIONS for size in sizes]
    return found + [
        (op, d, size) for d in ("bf16", "fp64") for op in ("all_reduce", "reduce_scatter") for size in sizes[2::2]
    ]


def measure(links: Gloo) -> tuple[list[CommPoint], dict[str, Delay], Sharing]:
    """The points, each operation's delays, and the sharing as process 0 saw it. Raises what a process raised."""
    (ours, sharing), (theirs, _) = comm_bench.measure(links)
    points, delays = _evaluate(cases(links.sizes), ours, theirs)
    return points, delays, sharing


def _evaluate(
    measured: Cases, ours: Sequence[Sequence[Rehearsal]], theirs: Sequence[Sequence[Rehearsal]]
) -> tuple[list[CommPoint], dict[str, Delay]]:
    """Undisturbed times by case; delays by operation, pooled over the fp32 sizes whose own time is short."""
    points: list[CommPoint] = []
    exposed: dict[str, list[list[float]]] = {}
    beside: dict[str, list[list[float]]] = {}
    for (op, dtype, bytes_), a, b in zip(measured, ours, theirs, strict=True):
        waited = [transfers(x.exposed, y.exposed) for x, y in zip(a, b, strict=True)]
        covered = [transfers(x.beside, y.beside) for x, y in zip(a, b, strict=True)]
        timed = summary([s for samples in waited for s in samples])
        points.append(CommPoint(op, dtype, bytes_, timed))
        if dtype == "fp32" and bytes_ <= LATENCY_BYTES:
            for pool, samples in ((exposed, waited), (beside, covered)):
                rounds = pool.setdefault(op, [[] for _ in samples])
                for into, values in zip(rounds, samples, strict=True):
                    into += [value - timed.best_s for value in values]
    return points, {op: Delay(pooled_delay(exposed[op]), pooled_delay(beside[op])) for op in exposed}
