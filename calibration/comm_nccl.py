"""What NCCL collectives and transfers cost between the GPUs of this machine, and what issuing one costs the host.

One process a GPU. A collective is called as the trainer calls it: on the group's backend, in the current stream, with
torch's flight recorder off. Its device time is that of one in a row of them between two events, behind a head start for
the host, the slowest rank counting. Its host time is that of issuing a small one with all that an instruction of
another stream needs: a switch there and back, the wait before it and the event after it.

    points, issue_s = measure(Nccl(ranks))      # where more than one GPU is visible
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, ReduceScatterOptions

from calibration import comm_bench
from calibration.comm_bench import CommPoint
from calibration.timing import Event, Timed, switch

SIZES = tuple(1 << power for power in range(12, 30, 2))  # 4 KiB to 256 MiB
INSTRUCTIONS = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "send": "SEND"}
"""Operations measured, and the kind of instruction that each is the host cost of."""
IN_A_ROW = 20
HEAD_START_CYCLES = 4_000_000  # about 2 ms, in which the host issues the row
BATCHES = 5


@dataclass(frozen=True, slots=True)
class Nccl:
    """The links between `ranks` GPUs of this machine."""

    ranks: int
    sizes: tuple[int, ...] = SIZES
    backend: ClassVar[str] = "nccl"

    def open(self, rank: int) -> None:
        """This rank's GPU; no multicast and no flight recorder, as in the trainer."""
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
        torch.cuda.set_device(rank)

    def measured(self, rank: int, group: Any) -> tuple[dict[tuple[str, int], list[float]], dict[str, float]]:
        """(device seconds of each batch by operation and bytes, host seconds by kind of instruction)."""
        backend = group._get_backend(torch.device("cuda"))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        times, issue_s = {}, {}
        for op, kind in INSTRUCTIONS.items():
            for size in self.sizes:
                times[op, size] = _device_s(_call(op, size, rank, self.ranks, backend), stream)
            issue_s[kind] = _host_s(_call(op, self.sizes[0], rank, self.ranks, backend), stream)
        return times, issue_s


def measure(links: Nccl) -> tuple[list[CommPoint], dict[str, float]]:
    """(points by operation and bytes of the full tensor, host seconds by kind of instruction). Raises what a process
    raised."""
    found = comm_bench.measure(links)
    points = [CommPoint(op, "*", size, _slowest([times[op, size] for times, _ in found])) for op, size in found[0][0]]
    issue_s = {kind: max(host[kind] for _, host in found) for kind in found[0][1]}
    return points, issue_s | {"RECV": issue_s["SEND"]}


def _slowest(ranks: Sequence[Sequence[float]]) -> Timed:
    batches = sorted(max(times) for times in zip(*ranks, strict=True))
    median_s = batches[len(batches) // 2]
    spread = (batches[-1] - batches[0]) / 2 / median_s
    return Timed(median_s, spread, len(batches), len(batches), median_s)


def _call(op: str, size: int, rank: int, ranks: int, group: Any) -> Callable[[], object]:
    """One collective over `size` bytes of bf16; a transfer goes from an even rank to the next."""
    whole = torch.zeros(size // 2 // ranks * ranks, dtype=torch.bfloat16, device="cuda")
    share = torch.zeros(whole.numel() // ranks, dtype=torch.bfloat16, device="cuda")
    options: Any
    if op == "all_reduce":
        options = AllreduceOptions()
        options.asyncOp = False
        return lambda: group.allreduce([whole], options)
    if op == "all_gather":
        options = AllgatherOptions()
        options.asyncOp = False
        return lambda: group._allgather_base(whole, share, options)
    if op == "reduce_scatter":
        options = ReduceScatterOptions()
        options.asyncOp = False
        return lambda: group._reduce_scatter_base(share, whole, options)
    if rank % 2 == 0 and rank + 1 < ranks:
        return lambda: group.send([whole], rank + 1, 0).wait()
    return (lambda: group.recv([whole], rank - 1, 0).wait()) if rank % 2 else (lambda: None)


def _device_s(run: Callable[[], object], stream: Any) -> list[float]:
    """Seconds of one execution in a row of them, for each batch."""
    found = []
    for batch in range(BATCHES + 1):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        dist.barrier()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
            marks[0].record()
            for _ in range(IN_A_ROW):
                run()
            marks[1].record()
        torch.cuda.synchronize()
        if batch:  # the first connects
            found.append(marks[0].elapsed_time(marks[1]) * 1e-3 / IN_A_ROW)
    return found


def _host_s(run: Callable[[], object], stream: Any) -> float:
    """Host seconds to issue one, in the best batch; a row of them fits the queue, so that nothing waits for the
    device."""
    home, best = torch.cuda.current_stream(), float("inf")
    before, after = Event(), Event()
    before.record(home)
    for _ in range(BATCHES):
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(IN_A_ROW):
            before.wait(stream)
            switch(stream)
            run()
            after.record(stream)
            switch(home)
        best = min(best, (time.perf_counter() - begin) / IN_A_ROW)
        torch.cuda.synchronize()
    return best
