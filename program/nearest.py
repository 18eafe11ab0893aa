"""Parts of error messages: the nearest legal value to a misspelt key or a degree that does not divide, and a value as
its file spells it."""

import json
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from math import gcd, isqrt, log10

LONGEST = 300  # characters of a value in a message
LARGEST = 10**18  # in size, of any number of an input: what is computed of a few such is still finite
TOO_LARGE = "is beyond every number read here; the most is 10^18 in size"


def nearest_name(given: str, known: Iterable[str], cutoff: float = 0.55) -> str | None:
    """The known name most like `given` ('tensor_paralel' → 'tensor_parallel'), or None when nothing is alike."""
    plain = given[:LONGEST].lower().replace("-", "_")
    scored = [(SequenceMatcher(None, plain, name.lower().replace("-", "_")).ratio(), name) for name in known]
    best = max(scored, default=(0.0, ""), key=lambda pair: pair[0])
    return best[1] if best[0] >= cutoff else None


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown name: the nearest one, or all of them."""
    near = nearest_name(given, known)
    return f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"


def shown(value: object) -> str:
    """A value as a file spells it: true, null, 1024, 'wide', {"a": 1}; of a long one its start, of a long number its
    size."""
    if isinstance(value, int) and abs(value).bit_length() > 100:
        return f"{'-' if value < 0 else ''}10^{int(abs(value).bit_length() * log10(2))}"
    named = value is None or isinstance(value, bool | list | dict)
    text = json.dumps(value, default=str) if named else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def kind_of(value: object) -> str:
    """What a value is, in the words of a file and not of Python: text, a list, null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    kinds: dict[type, str] = {str: "text", list: "a list", dict: "a mapping", int: "a number", float: "a number"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def divisors(*numbers: int) -> list[int]:
    """Every whole number that divides all of `numbers`, ascending. Takes √ of their greatest common divisor steps."""
    common = gcd(*numbers)
    small = [d for d in range(1, isqrt(common) + 1) if common % d == 0]
    return small + [common // d for d in reversed(small) if d * d != common]


def nearest_number(given: float, legal: Iterable[int]) -> int:
    """The legal number closest to `given`; of two equally close the smaller."""
    return min(legal, key=lambda n: (abs(n - given), n))
