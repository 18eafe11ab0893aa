"""Waiting told apart from transferring, out of a timeline.

A collective that starts on one rank cannot move a byte before its last member starts. So its row is cut at that
moment: *wait* (own start to the last member's start) is somebody's lateness, *transfer* (from there to its end) is
what a profile predicts. Members are the rows of the same step, group, channel and sequence number; a folded rank
stands for the ranks the header says it stands for.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from program.timeline import Timeline

PIPELINE = {"pp_next": 1, "pp_prev": -1}  # where the other end of a transfer stands on the ring of stages
Meeting = tuple[int, str, tuple[int, ...], str, int]  # step, kind of group, who, channel, seq


def split(timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(wait_s, transfer_s) of every row, seconds; they sum to the row's duration, and wait is 0 where nothing is
    communicated.
    """
    start = np.asarray(timeline.columns["start_s"], dtype=np.float64)
    end = np.asarray(timeline.columns["end_s"], dtype=np.float64)
    wait = np.zeros(len(timeline), dtype=np.float64)
    for members in meetings(timeline).values():
        last = start[members].max()
        wait[members] = np.clip(last - start[members], 0.0, end[members] - start[members])
    return wait, end - start - wait


def meetings(timeline: Timeline) -> dict[Meeting, list[int]]:
    """The row numbers of each communication, by what its members have in common."""
    found: dict[Meeting, list[int]] = defaultdict(list)
    who = _Who(timeline)
    names = (timeline.text("group"), timeline.text("channel"))
    columns = zip(timeline.ints("step"), timeline.ints("rank"), *names, timeline.ints("seq"), strict=True)
    for row, (step, rank, role, channel, seq) in enumerate(columns):
        if seq >= 0:
            kind = "pp" if role in PIPELINE else role
            found[(step, kind, who.members(rank, role), channel, seq)].append(row)
    return dict(found)


class _Who:
    """The ranks that meet a rank in a role, folded ranks replaced by the one that stands for them."""

    def __init__(self, timeline: Timeline) -> None:
        self.groups = timeline.header.groups
        self.stand_in = {rank: row for row, ranks in timeline.header.stands_for.items() for rank in ranks}
        self.cache: dict[tuple[int, str], tuple[int, ...]] = {}

    def members(self, rank: int, role: str) -> tuple[int, ...]:
        """Members of the communication a rank has in `role`; a pipeline transfer has two, the earlier stage first."""
        known = self.cache.get((rank, role))
        if known is None:
            known = self.cache[(rank, role)] = self._find(rank, role)
        return known

    def _find(self, rank: int, role: str) -> tuple[int, ...]:
        own = next((group for group in self.groups.get(role, ()) if rank in group), (rank,))
        if role in PIPELINE and len(own) > 1:
            other = own[(own.index(rank) + PIPELINE[role]) % len(own)]
            own = (rank, other) if role == "pp_next" else (other, rank)
        return tuple(self.stand_in.get(member, member) for member in own)
