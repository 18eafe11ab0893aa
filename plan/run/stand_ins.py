"""Rules between values while some values of a run file are wrong: two stand-ins for each wrong value, and only what the
rules say of both.

    stand_in(PlanSpec, {"tensor_parallel": "x", "zero_stage": 2}, "plan", which=0).tensor_parallel == 64

A sentence names the values it is about, so one that follows from a stand-in differs between the two and is dropped; one
that is the same for both would be said whatever the right value is. A run file with a misspelt number and an impossible
plan is so answered at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from plan.run.reading import correct_keys, keys_of
from plan.run.schema import Spec

S = TypeVar("S", bound=Spec)
NUMBERS = ((64, 96), (96, 64), (48, 80), (80, 32), (32, 112), (112, 48))
"""For the first wrong number, the second, …: neither their order nor a ratio is the same in both stand-ins."""


def stand_in(spec: type[S], raw: Mapping[str, Any], where: str, which: int) -> S | None:
    """The section with stand-in number `which` (0 or 1) for each wrong value; None where no stand-in would do."""
    corrected, _ = correct_keys(spec, raw, where)
    try:
        return spec.model_validate(corrected)
    except ValidationError as error:
        details = error.errors(include_url=False)
    for number, detail in enumerate(details):
        corrected = _replaced(corrected, keys_of(detail, corrected), _candidates(detail, number)[which])
    try:
        return spec.model_validate(corrected)
    except ValidationError:
        return None


def said_of_both(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The sentences of both, in the order of the first."""
    return [sentence for sentence in first if sentence in second]


def _candidates(detail: Any, number: int) -> tuple[object, object]:
    """Two values that differ, of the kind asked for, for wrong value `number`."""
    if detail["type"] == "literal_error":
        options = detail["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return options[0], options[-1]
    return (False, True) if detail["type"].startswith("bool") else NUMBERS[number % len(NUMBERS)]


def _replaced(raw: dict[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    """`raw` with the value at a path, as deep as there are mappings."""
    head, *rest = path
    inner = raw.get(head)
    return {**raw, head: _replaced(dict(inner), rest, value) if rest and isinstance(inner, Mapping) else value}
