"""The calls of a rank class as a text of letters, and the stretch of it that repeats.

A call's letter is the shape of its block and where its in-ports are bound, counted back from itself: calls with one
letter do the same to the calls around them. 1F1B in steady state repeats a word of about six letters; the storage
proofs read it once. Successive receives go round a ring of slots, so one repetition uses the next slot of the ring: a
run carries the renaming of slots from one to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plan.program import RankProgram

Letter = tuple[
    int, tuple[tuple[int, int] | None, ...]
]  # shape; for each in-port (calls back, out-port), None if unbound


@dataclass(frozen=True, slots=True)
class Text:
    """`letters[call]` indexes `alphabet`; `back[letter]` are the distances it looks back, without repetition."""

    letters: list[int]
    alphabet: list[Letter]
    back: list[tuple[int, ...]]


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
    table: dict[Letter, int] = {}
    letters = []
    for here, call in enumerate(program.calls):
        bindings = tuple([(here - bound, out) if bound >= 0 else None for bound, out in call.bindings])
        letters.append(table.setdefault((shape_of[call.block], bindings), len(table)))
    alphabet = list(table)
    back = [tuple(dict.fromkeys(b[0] for b in bindings if b is not None)) for _, bindings in alphabet]
    return Text(letters, alphabet, back)


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
    reach = max((max(text.back[letter], default=0) for letter in set(text.letters[start:end])), default=0)
    for call in program.calls[end:]:
        for bound, _ in call.bindings:
            if bound >= start:
                reach = max(reach, end - bound)
    return reach
