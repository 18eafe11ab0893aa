"""The calls of a rank class as a sequence of keys, and its steady state: the stretch that repeats.

A call's key is the shape of its block and where its in-ports are bound, counted back from itself: calls with one key
do the same to the calls around them. 1F1B in steady state repeats about six calls; the storage proofs step through
them once. Successive receives take the slots of a ring in turn, so one repetition uses the next slot of the ring: a
steady state carries the renaming of slots from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from program import RankProgram, columns

Pattern = tuple[
    int, tuple[int, ...], tuple[int, ...]
]  # shape; for each in-port, which of the calls it looks at, and its out-port
CallKey = tuple[int, tuple[int | None, ...]]  # pattern; how far back each call it looks at is (None: bound to nothing)
_UNBOUND = np.iinfo(np.int32).min


@dataclass(frozen=True, slots=True)
class CallSequence:
    """`keys[call]` indexes `distinct`, whose patterns index `patterns`."""

    keys: list[int]
    distinct: list[CallKey]
    patterns: list[Pattern]

    def back(self, call: int) -> tuple[int | None, ...]:
        """How far back each call that a call looks at is."""
        return self.distinct[self.keys[call]][1]


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Calls start … end - 1 repeat with `period`, slots renamed by `rename` each time. No call from the start on
    looks back farther than `reach` (from the end, for calls behind it), unless to before the start.
    """

    start: int
    end: int
    period: int
    reach: int
    rename: dict[str, str]


def call_sequence(program: RankProgram, shape_of: Sequence[int]) -> CallSequence:
    """The keys of all calls; `shape_of[block]` numbers the block's shape."""
    known: dict[tuple[int, bytes], int] = {}
    patterns: dict[Pattern, int] = {}
    distinct: list[CallKey] = []
    keys = []
    data, ends = _relative(program)
    start = 0
    for here, (call, end) in enumerate(zip(program.calls, ends, strict=True)):
        raw = (shape_of[call.block], data[start:end])
        start = end
        key = known.setdefault(raw, len(distinct))
        if key == len(distinct):
            pattern, back = _key(raw[0], here, call.bindings)
            distinct.append((patterns.setdefault(pattern, len(patterns)), back))
        keys.append(key)
    return CallSequence(keys, distinct, list(patterns))


def _relative(program: RankProgram) -> tuple[bytes, list[int]]:
    """All bindings as (calls back, out-port) in one string of bytes, and where each call's end: 200,000 of them, so
    numpy.
    """
    found = columns(program.calls)
    here = np.repeat(np.arange(len(found.counts), dtype=np.int32), found.counts)
    back = np.where(found.bound >= 0, here - found.bound, _UNBOUND)
    flat = np.stack([back, found.port], axis=1)
    return flat.tobytes(), (np.cumsum(found.counts) * flat.itemsize * 2).tolist()


def _key(shape: int, here: int, bindings: tuple[tuple[int, int], ...]) -> tuple[Pattern, tuple[int | None, ...]]:
    number = {bound: k for k, bound in enumerate(dict.fromkeys(bound for bound, _ in bindings))}
    pattern = (shape, tuple(number[bound] for bound, _ in bindings), tuple(out for _, out in bindings))
    return pattern, tuple(here - bound if bound >= 0 else None for bound in number)


def find_steady_state(
    program: RankProgram, sequence: CallSequence, slots: Sequence[tuple[str, ...]]
) -> SteadyState | None:
    """The repeating stretch around the middle call, with the shortest period that gives at least four repetitions.

    `slots[block]` are the slots the block names.
    """
    keys = sequence.keys
    middle = len(keys) // 2
    for period in _distances(keys, middle):
        start, end = middle, middle
        while start > period and keys[start - 1] == keys[start - 1 - period]:
            start -= 1
        while end < len(keys) and keys[end] == keys[end - period]:
            end += 1
        start -= period
        rename = _renaming(program, slots, start, end, period)
        if end - start >= 4 * period and rename is not None:
            return SteadyState(start, end, period, _reach(program, sequence, start, end), rename)
    return None


def _distances(keys: list[int], middle: int, limit: int = 16) -> list[int]:
    """How far back the middle call's key stood before, nearest first: the candidate periods."""
    key = keys[middle]
    found: list[int] = []
    for here in range(middle - 1, -1, -1):
        if keys[here] == key:
            found.append(middle - here)
            if len(found) == limit:
                break
    return found


def _renaming(
    program: RankProgram, slots: Sequence[tuple[str, ...]], start: int, end: int, period: int
) -> dict[str, str] | None:
    """Which slot takes which one's place a period later, or None when no one renaming does."""
    blocks = [call.block for call in program.calls[start:end]]
    rename: dict[str, str] = {}
    for before, after in set(zip(blocks, blocks[period:], strict=False)):
        for old, new in zip(slots[before], slots[after], strict=True):
            if rename.setdefault(old, new) != new:
                return None
    return rename if set(rename) == set(rename.values()) else None


def _reach(program: RankProgram, sequence: CallSequence, start: int, end: int) -> int:
    """How far back calls of the steady state look, and calls after it look from its end (what lies before it does not
    move).
    """
    keys = set(sequence.keys[start:end])
    reach = max((back for key in keys for back in sequence.distinct[key][1] if back is not None), default=0)
    for call in program.calls[end:]:
        for bound, _ in call.bindings:
            if bound >= start:
                reach = max(reach, end - bound)
    return reach
