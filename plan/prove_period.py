"""The calls of a rank class as a text of letters, and the stretch of it that repeats.

A call's letter is its block and where its in-ports are bound, counted back from itself: calls with one letter do the
same to the calls around them. 1F1B in steady state repeats a word of a few letters (two micro-batches where rings have
two slots); the proofs read it once.
"""

from __future__ import annotations

from dataclasses import dataclass

from plan.program import RankProgram

Letter = tuple[
    int, tuple[tuple[int, int] | None, ...]
]  # block; for each in-port (calls back, out-port), None if unbound


@dataclass(frozen=True, slots=True)
class Text:
    """`letters[c]` indexes `alphabet`; `back[letter]` is the farthest call it looks back to."""

    letters: list[int]
    alphabet: list[Letter]
    back: list[int]


@dataclass(frozen=True, slots=True)
class Run:
    """Calls start … end - 1 repeat with `period`; no call from the run on looks back more than `reach` beyond its own
    period's start.
    """

    start: int
    end: int
    period: int
    reach: int


def text_of(program: RankProgram) -> Text:
    """Every call's letter."""
    table: dict[Letter, int] = {}
    letters = []
    for here, call in enumerate(program.calls):
        bindings = tuple([(here - bound, out) if bound >= 0 else None for bound, out in call.bindings])
        letters.append(table.setdefault((call.block, bindings), len(table)))
    alphabet = list(table)
    back = [max((b[0] for b in bindings if b is not None), default=0) for _, bindings in alphabet]
    return Text(letters, alphabet, back)


def find_run(program: RankProgram, text: Text) -> Run | None:
    """The repeating stretch around the middle call, with the shortest period that gives at least three repetitions."""
    letters = text.letters
    middle = len(letters) // 2
    for period in _distances(letters, middle):
        start, end = middle, middle
        while start > period and letters[start - 1] == letters[start - 1 - period]:
            start -= 1
        while end < len(letters) and letters[end] == letters[end - period]:
            end += 1
        start -= period
        if end - start >= 4 * period:
            return Run(start, end, period, _reach(program, text, start, end))
    return None


def _distances(letters: list[int], middle: int, limit: int = 8) -> list[int]:
    """How far back the middle call's letter stood before, nearest first: the candidate periods."""
    letter = letters[middle]
    found: list[int] = []
    for here in range(middle - 1, -1, -1):
        if letters[here] == letter:
            found.append(middle - here)
            if len(found) == limit:
                break
    return found


def _reach(program: RankProgram, text: Text, start: int, end: int) -> int:
    """How far back calls of the run look, and calls after the run look from its end (what lies before the run does not
    move).
    """
    reach = max(text.back[letter] for letter in set(text.letters[start:end]))
    for call in program.calls[end:]:
        for bound, _ in call.bindings:
            if bound >= start:
                reach = max(reach, end - bound)
    return reach
