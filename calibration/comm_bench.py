"""What collectives and transfers cost between the processes of this machine: the harness around both kinds of links.

`measure` starts one process a rank, joins them into a group apart from the default one, as a communicator of the
trainer is, and gives what each rank measured. What is measured, and how, is the links' own: gloo between two processes
that compute too (`comm_gloo`), NCCL between GPUs (`comm_nccl`).
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
import torch.multiprocessing as mp

from calibration.loopback import loopback_variables
from calibration.timing import Timed

WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class CommPoint:
    """One measured collective, undisturbed: bytes of the full logical tensor."""

    op: str
    dtype: str
    bytes: int
    timed: Timed


@dataclass(frozen=True, slots=True)
class Delay:
    """Mean seconds an operation takes beyond its undisturbed time: waited for at once, and while every rank
    computes."""

    exposed_s: float
    beside_s: float


class Links(Protocol):
    """A kind of links between `ranks` processes; pickled into each of them."""

    @property
    def ranks(self) -> int: ...

    @property
    def backend(self) -> str:
        """Of torch.distributed."""

    def open(self, rank: int) -> None:
        """Make this process ready, before it joins the others."""

    def measured(self, rank: int, group: Any) -> Any:
        """What this rank finds; the others measure at the same time."""


def measure(links: Links) -> list[Any]:
    """Run the processes. Returns what each rank measured, in the order of ranks. Raises what a process raised."""
    context = mp.get_context("spawn")
    results = context.Queue()
    found: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        arguments = (links, f"file://{folder}/rendezvous", results)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is ours to say and theirs to end by
        try:
            started = mp.spawn(_process, arguments, nprocs=links.ranks, join=False)  # type: ignore[no-untyped-call]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            while len(found) < links.ranks:
                try:
                    rank, mine = results.get(timeout=1.0)
                    found[rank] = mine
                except queue.Empty:
                    started.join(timeout=0.0)  # raises when a process has died
            while not started.join():
                pass
        except KeyboardInterrupt:
            for process in started.processes:
                process.terminate()
            raise
    return [found[rank] for rank in range(links.ranks)]


def _process(rank: int, links: Links, init: str, results: Any) -> None:
    os.environ.update(loopback_variables())  # the ranks meet on this machine, and nobody outside it
    links.open(rank)
    limit = timedelta(seconds=WAIT_S)
    dist.init_process_group(links.backend, init_method=init, rank=rank, world_size=links.ranks, timeout=limit)
    group = dist.new_group(list(range(links.ranks)), timeout=limit, backend=links.backend)
    results.put((rank, links.measured(rank, group)))
    dist.barrier()
    dist.destroy_process_group()
