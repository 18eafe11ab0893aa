"""How far each rank's clock is from the first rank's: measured once, before the first step, so that timelines can be
laid over each other.

Stamps are `time.perf_counter`, which on Linux is one clock for the whole machine. Ranks of one boot of one kernel share
it: offset and error are 0. Others exchange time stamps with the first rank; the exchange with the shortest round trip
gives the offset, half of it the error.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist

from program.timeline import Clock

ROUNDS = 25
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def clocks(rank: int, world: int) -> dict[int, Clock]:
    """Offsets of every rank, the same on all; collective over the default group (gloo)."""
    boots: list[str] = [""] * world
    dist.all_gather_object(boots, _boot(rank))
    mine = Clock()
    for other in (r for r in range(1, world) if boots[r] != boots[0]):
        if rank == other:
            mine = _ask()
        elif rank == 0:
            _answer(other)
    found: list[Clock] = [mine] * world
    dist.all_gather_object(found, mine)
    return dict(enumerate(found))


def _boot(rank: int) -> str:
    """What two ranks have in common when they share a clock; unknown machines share with nobody."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"rank {rank}"


def _ask() -> Clock:
    best = Clock(0.0, float("inf"))
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        sent = time.perf_counter()
        dist.send(stamp, 0)
        dist.recv(stamp, 0)
        back = time.perf_counter()
        error = (back - sent) / 2
        if error < best.error_s:
            best = Clock((sent + back) / 2 - float(stamp[0]), error)
    return best


def _answer(other: int) -> None:
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        dist.recv(stamp, other)
        stamp[0] = time.perf_counter()
        dist.send(stamp, other)
