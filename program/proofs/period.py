"""The calls of a rank class as a text of letters, and the stretch of it that repeats.

A call's letter is the shape of its block and where its in-ports are bound, counted back from itself: calls with one
letter do the same to the calls around them. 1F1B in steady state repeats a word of about six letters; the storage
proofs read it once. Successive receives go round a ring of slots, so one repetition uses the next slot of the ring: a
run carries the renaming of slots from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from program import RankProgram

Pattern = tuple[
    int, tuple[int, ...], tuple[int, ...]
]  # shape; for each in-port, which of the calls it looks at, and its out-port
Letter = tuple[int, tuple[int | None, ...]]  # pattern; how far back each call it looks at is (None: bound to nothing)
_UNBOUND = np.iinfo(np.int32).min


@dataclass(frozen=True, slots=True)
class Text:
    """`letters[call]` indexes `alphabet`, whose patterns index `patterns`."""

    letters: list[int]
    alphabet: list[Letter]
    patterns: list[Pattern]

    def back(self, call: int) -> tuple[int | None, ...]:
        """How far back each call that a call looks at is."""
        return self.alphabet[self.letters[call]][1]


@dataclass(frozen=True, slots=True)
class Run:
    """Calls start … end - 1 repeat with `period`, slots renamed by `rename` each time. No call from the run on looks
    back farther than `reach` (from the run's end, for calls behind it), unless to before the run.
    """

    start: int
    end: int
    period: int
    reach: int
    rename: dict[str, str]


def text_of(program: RankProgram, shape_of: Sequence[int]) -> Text:
    """Every call's letter; `shape_of[block]` numbers the block's shape."""
    known: dict[tuple[int, bytes], int] = {}
    patterns: dict[Pattern, int] = {}
    alphabet: list[Letter] = []
    letters = []
    data, ends = _relative(program)
    start = 0
    for here, (call, end) in enumerate(zip(program.calls, ends, strict=True)):
        key = (shape_of[call.block], data[start:end])
        start = end
        letter = known.setdefault(key, len(alphabet))
        if letter == len(alphabet):
            pattern, back = _letter(key[0], here, call.bindings)
            alphabet.append((patterns.setdefault(pattern, len(patterns)), back))
        letters.append(letter)
    return Text(letters, alphabet, list(patterns))


def _relative(program: RankProgram) -> tuple[bytes, list[int]]:
    """All bindings as (calls back, out-port) in one string of bytes, and where each call's end: 200,000 of them, so
    numpy.
    """
    counts = np.fromiter((len(call.bindings) for call in program.calls), dtype=np.int64, count=len(program.calls))
    pairs = chain.from_iterable(call.bindings for call in program.calls)
    flat = np.fromiter(chain.from_iterable(pairs), dtype=np.int32, count=2 * int(counts.sum())).reshape(-1, 2)
    here = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    flat[:, 0] = np.where(flat[:, 0] >= 0, here - flat[:, 0], _UNBOUND)
    return flat.tobytes(), (np.cumsum(counts) * flat.itemsize * 2).tolist()


def _letter(shape: int, here: int, bindings: tuple[tuple[int, int], ...]) -> tuple[Pattern, tuple[int | None, ...]]:
    number = {bound: k for k, bound in enumerate(dict.fromkeys(bound for bound, _ in bindings))}
    pattern = (shape, tuple(number[bound] for bound, _ in bindings), tuple(out for _, out in bindings))
    return pattern, tuple(here - bound if bound >= 0 else None for bound in number)


def find_run(program: RankProgram, text: Text, slots: Sequence[tuple[str, ...]]) -> Run | None:
    """The repeating stretch around the middle call, with the shortest period that gives at least four repetitions.

    `slots[block]` are the slots the block names.
    """
    letters = text.letters
    middle = len(letters) // 2
    for period in _distances(letters, middle):
        start, end = middle, middle
        while start > period and letters[start - 1] == letters[start - 1 - period]:
            start -= 1
        while end < len(letters) and letters[end] == letters[end - period]:
            end += 1
        start -= period
        rename = _renaming(program, slots, start, end, period)
        if end - start >= 4 * period and rename is not None:
            return Run(start, end, period, _reach(program, text, start, end), rename)
    return None


def _distances(letters: list[int], middle: int, limit: int = 16) -> list[int]:
    """How far back the middle call's letter stood before, nearest first: the candidate periods."""
    letter = letters[middle]
    found: list[int] = []
    for here in range(middle - 1, -1, -1):
        if letters[here] == letter:
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


def _reach(program: RankProgram, text: Text, start: int, end: int) -> int:
    """How far back calls of the run look, and calls after the run look from its end (what lies before it does not
    move).
    """
    letters = set(text.letters[start:end])
    reach = max((back for letter in letters for back in text.alphabet[letter][1] if back is not None), default=0)
    for call in program.calls[end:]:
        for bound, _ in call.bindings:
            if bound >= start:
                reach = max(reach, end - bound)
    return reach
