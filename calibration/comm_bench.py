"""What gloo collectives and transfers cost between two processes of this machine, and what sharing its cores costs.

Each process does what a rank of the trainer does: collectives run as blocking calls on a thread of their own, each
communicator its own group, while the main thread waits or computes. Three results, gathered from both processes (the
slower counts):

* the time of each collective by bytes, with the main threads idle, as stamped on the communicating thread;
* the wake-up: what a waiter pays beyond the collective itself for the hand-over to the thread and back;
* sharing: the same kernels with one process computing, with two, and while a collective runs; and the cores a
  collective takes.

Started by `calibrate` with torch.multiprocessing; `measure` is the entry.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from calibration.timing import Timed, summary

SIZES = (64, 1024, 8192, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "send")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
RANKS = 2
ROUNDS = 4  # passes over all cases, so that a burst of other work cannot spoil every sample of one


@dataclass(frozen=True, slots=True)
class CommPoint:
    """One measured collective: bytes of the full logical tensor."""

    op: str
    dtype: str
    bytes: int
    timed: Timed


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


Call = Callable[[], object]
Stamp = tuple[float, float]  # (start, end) on the clock both processes share
Stamps = list[Stamp]


class StreamThread:
    """A communication stream: runs callables in order on one thread and stamps their start and end."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Call, Future[Stamp]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, run: Call) -> Future[Stamp]:
        """Queue `run`; the future gives its start and end."""
        done: Future[Stamp] = Future()
        self._work.put((run, done))
        return done

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            run, done = item
            try:
                start = time.perf_counter()
                run()
                done.set_result((start, time.perf_counter()))
            except BaseException as error:
                done.set_exception(error)


def collective(op: str, bytes_: int, dtype: torch.dtype, rank: int, group: Any) -> Call:
    """A blocking call of `op` whose full logical tensor has `bytes_`."""
    count = max(RANKS, bytes_ // dtype.itemsize)
    full = torch.zeros(count - count % RANKS, dtype=dtype)
    part = torch.zeros(full.numel() // RANKS, dtype=dtype)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    if op == "all_reduce":
        return lambda: dist.all_reduce(full, group=group)
    if op == "all_gather":
        return lambda: gather(full, part, group=group)
    if op == "reduce_scatter":
        return lambda: scatter(part, full, group=group)
    if rank == 0:
        return lambda: dist.send(full, 1, group=group)
    return lambda: dist.recv(full, 0, group=group)


def _time_collective(stream: StreamThread, run: Call, work: Call, budget_s: float) -> Stamps:
    """As a rank does it: compute a little, hand the collective to its thread, wait. Both processes agree how often."""
    for _ in range(2):
        stream.submit(run).result()
    first = stream.submit(run).result()
    probe = torch.tensor([first[1] - first[0]])
    dist.all_reduce(probe, op=dist.ReduceOp.MAX)
    repetitions = max(3, min(30, int(budget_s / max(float(probe), 1e-6))))
    stamps = []
    for _ in range(repetitions):
        work()
        stamps.append(stream.submit(run).result())
    return stamps


def _transfers(ours: Stamps, theirs: Stamps) -> Timed:
    """From the last member's start to the last member's end: what a collective costs once everybody is there."""
    return summary([max(a[1], b[1]) - max(a[0], b[0]) for a, b in zip(ours, theirs, strict=True)])


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


def _busy(rank: int, run: Call, seconds: float, rounds: int = 4) -> float:
    """A kernel with both processes computing, over alone: median over alternating rounds."""
    ratios = []
    for _ in range(rounds):
        dist.barrier()
        alone = _quiet_s(run, seconds / rounds) if rank == 0 else 0.0
        dist.barrier()
        together = _quiet_s(run, seconds / rounds)
        ratios.append(together / alone if rank == 0 else 1.0)
    return max(1.0, summary(ratios).median_s)


def _sharing(rank: int, stream: StreamThread, group: Any, seconds: float) -> Sharing:
    kernels = _kernels()
    busy = {}
    for name, run in kernels.items():
        run()
        busy[name] = _busy(rank, run, seconds)
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
    demand = (time.process_time() - used) / (20 * summary([end - start for start, end in stamps]).best_s)
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


def _process(rank: int, init: str, sizes: tuple[int, ...], budget_s: float, share_s: float, results: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))
    group = dist.new_group(list(range(RANKS)), timeout=timedelta(seconds=120))
    stream = StreamThread()
    a = torch.randn(256, 256)
    found: list[Stamps] = [[] for _ in cases(sizes)]
    for _ in range(ROUNDS):
        for stamps, (op, dtype, bytes_) in zip(found, cases(sizes), strict=True):
            run = collective(op, bytes_, DTYPES[dtype], rank, group)
            stamps += _time_collective(stream, run, lambda: torch.mm(a, a), budget_s / ROUNDS)
    results.put((rank, found, _sharing(rank, stream, group, share_s)))
    dist.barrier()
    stream.close()
    dist.destroy_process_group()


def cases(sizes: tuple[int, ...] = SIZES) -> list[tuple[str, str, int]]:
    """(operation, dtype, bytes): every operation in fp32; reductions in other dtypes at a few sizes (they add more
    slowly)."""
    found = [(op, "fp32", size) for op in OPERATIONS for size in sizes]
    return found + [
        (op, d, size) for d in ("bf16", "fp64") for op in ("all_reduce", "reduce_scatter") for size in sizes[2::2]
    ]


def measure(
    sizes: tuple[int, ...] = SIZES, budget_s: float = 0.15, share_s: float = 0.4
) -> tuple[list[CommPoint], Sharing]:
    """Run the two processes. Returns the points and the sharing as process 0 saw it. Raises what a process raised."""
    context = mp.get_context("spawn")
    results = context.Queue()
    found: dict[int, tuple[list[Stamps], Sharing]] = {}
    with tempfile.TemporaryDirectory() as folder:
        args = (f"file://{folder}/rendezvous", sizes, budget_s, share_s, results)
        started = mp.spawn(_process, args, nprocs=RANKS, join=False)  # type: ignore[no-untyped-call]
        while len(found) < RANKS:
            try:
                rank, stamps, sharing = results.get(timeout=1.0)
                found[rank] = (stamps, sharing)
            except queue.Empty:
                started.join(timeout=0.0)  # raises when a process has died
        while not started.join():
            pass
    pairs = zip(cases(sizes), found[0][0], found[1][0], strict=True)
    return [CommPoint(*case, _transfers(ours, theirs)) for case, ours, theirs in pairs], found[0][1]
