"""Process groups: one communicator for each (role, channel) a rank's program communicates on.

Streams never share a communicator, so what runs on one stream is ordered on its communicators by host order alone.
Members find their communicator by (members, role, channel); all ranks make all of them in the same order. What is said
on them is in `trainer.collectives`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

from program import Comm, StepProgram, expand

Tensor = torch.Tensor
Key = tuple[tuple[int, ...], str, str]  # members, role, channel


class Communicators:
    """Process groups by (members, role, channel), made once and kept; `wait_s` bounds every operation."""

    def __init__(self, backend: str, wait_s: float) -> None:
        self.backend, self.wait_s = backend, wait_s
        self._groups: dict[Key, Any] = {}

    def join(self, program: StepProgram, rank: int) -> dict[tuple[str, str], Any]:
        """The communicators of this rank by (role, channel). Every process of the job calls this, members or not: torch
        numbers groups."""
        mine: dict[tuple[str, str], Any] = {}
        for role, channel in channels(program):
            for group in program.groups[role]:
                if len(group.ranks) > 1:
                    made = self._group((group.ranks, role, channel))
                    if rank in group.ranks:
                        mine[role, channel] = made
        return mine

    def warm_up(self, program: StepProgram, rank: int, device: torch.device) -> None:
        """Use every communicator once, in one order for all ranks. NCCL connects on first use and blocks the host until
        the peer does the same, which in the middle of a pipeline would be a wait that no program mentions."""
        token = torch.zeros(1, device=device)
        for role, channel in channels(program):
            for members_ in (
                group.ranks for group in program.groups[role] if rank in group.ranks and len(group.ranks) > 1
            ):
                group = self._groups[members_, role, channel]
                if role == "pp_next":
                    _pass_along(group, members_, rank, token)
                else:
                    group.allreduce([token], AllreduceOptions()).wait()
        torch.cuda.synchronize(device)

    def _group(self, key: Key) -> Any:
        if key not in self._groups:
            self._groups[key] = dist.new_group(
                list(key[0]), timeout=timedelta(seconds=self.wait_s), backend=self.backend
            )
        return self._groups[key]


def channels(program: StepProgram) -> list[tuple[str, str]]:
    """(role, channel) of every communicator, in one order for all ranks. A ring's two directions are one role here."""
    found = set()
    for rank_program in program.classes:
        for block in rank_program.blocks:
            found |= {(_ring(i.comm.role), i.comm.channel) for i in block.instructions if i.comm is not None}
    return sorted(found)


def _ring(role: str) -> str:
    return "pp_next" if role == "pp_prev" else role


def members(program: StepProgram, role: str, rank: int) -> tuple[int, ...] | None:
    """Ranks of this rank's group of a role, in order; None when it has none."""
    return next((g.ranks for g in program.groups.get(_ring(role), ()) if rank in g.ranks), None)


def _pass_along(group: Any, ranks: tuple[int, ...], rank: int, token: Tensor) -> None:
    """One transfer over every edge of a ring, edge by edge."""
    me = ranks.index(rank)
    for source in range(len(ranks)):
        target = (source + 1) % len(ranks)
        if me == source:
            group.send([token], target, 0).wait()
        elif me == target:
            group.recv([token], source, 0).wait()


def communications(program: StepProgram, rank: int) -> dict[tuple[str, str], list[Comm]]:
    """What a rank communicates on each (role, channel), in host order: what conformance holds the trainer to."""
    found: dict[tuple[str, str], list[Comm]] = {}
    for placed in expand(program.classes[program.class_of[rank]]):
        comm = placed.instruction.comm
        if comm is not None:
            found.setdefault((comm.role, comm.channel), []).append(comm)
    return found
