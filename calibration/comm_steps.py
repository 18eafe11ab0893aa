"""Collectives in the conditions of a training step, between two processes.

A step never runs a collective in a loop of its own. It computes for some milliseconds, hands the collective to a
communication thread, and either waits for it at once (*exposed*) or goes on computing (*beside*). Each process has more
threads than a core (main, stream, the library's worker and its socket loop), and on a machine whose cores all compute a
thread that a collective needs has to wait for a time slice of the scheduler. `rehearse` runs that rhythm around one
collective and stamps both kinds; what they cost beyond the undisturbed time is a delay in seconds, much the same
for small and large messages, and a bimodal one, so that its mean is what a step pays.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

RANKS = 2
ROTATE_BYTES = 8 << 20  # inputs rotate through at least this much, as in `microbench`
MOST_SETS = 6
COMPUTE_SHAPE = (1024, 704, 256)  # a GEMM of milliseconds on one core: about a time slice of the scheduler

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


@dataclass(slots=True)
class Rehearsal:
    """Stamps of one process: collectives that were waited for at once, and those that ran beside compute."""

    exposed: Stamps = field(default_factory=list)
    beside: Stamps = field(default_factory=list)


def collective(op: str, bytes_: int, dtype: torch.dtype, rank: int, group: Any) -> Call:
    """A blocking call of `op` whose full logical tensor has `bytes_`; inputs rotate, outputs are newly allocated."""
    count = max(RANKS, bytes_ // dtype.itemsize)
    count -= count % RANKS
    sets = max(1, min(MOST_SETS, ROTATE_BYTES // (count * dtype.itemsize)))
    full = [torch.zeros(count, dtype=dtype) for _ in range(sets)]
    part = [torch.zeros(count // RANKS, dtype=dtype) for _ in range(sets)]
    turn = iter(range(1 << 30))
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def run() -> object:
        i = next(turn) % sets
        if op == "all_reduce":
            return dist.all_reduce(full[i], group=group)
        if op == "all_gather":
            return gather(torch.empty_like(full[i]), part[i], group=group)
        if op == "reduce_scatter":
            return scatter(torch.empty_like(part[i]), full[i], group=group)
        if rank == 0:
            return dist.send(full[i], 1, group=group)
        return dist.recv(torch.empty_like(full[i]), 0, group=group)

    return run


def compute_call() -> Call:
    """The kernel a rehearsal computes with."""
    m, n, k = COMPUTE_SHAPE
    a, b = torch.randn(m, k), torch.randn(n, k)
    return lambda: torch.mm(a, b.t())


def rehearse(stream: StreamThread, run: Call, compute: Call, repetitions: int) -> Rehearsal:
    """The rhythm of a layer: exposed after compute; a second one exposed with a third queued behind it, which then runs
    beside compute; a fourth beside compute issued while both processes compute."""
    found = Rehearsal()
    for _ in range(2):
        stream.submit(run).result()
    for _ in range(repetitions):
        compute()
        found.exposed.append(stream.submit(run).result())
        first, behind = stream.submit(run), stream.submit(run)
        found.exposed.append(first.result())
        compute()
        compute()
        last = stream.submit(run)
        compute()
        found.beside.append(behind.result())
        compute()
        found.beside.append(last.result())
    return found


def transfers(ours: Stamps, theirs: Stamps) -> list[float]:
    """From the last member's start to the last member's end: what a collective costs once everybody is there."""
    return [max(a[1], b[1]) - max(a[0], b[0]) for a, b in zip(ours, theirs, strict=True)]


def pooled_delay(rounds: Sequence[Sequence[float]]) -> float:
    """Seconds beyond the undisturbed time: the mean in each round, the lower middle one of the rounds, so that a burst
    of other work in one round does not count."""
    return max(0.0, statistics.median_low([statistics.fmean(samples) for samples in rounds if samples]))
