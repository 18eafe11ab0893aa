"""Assignments of a launch script (`A=1`, `A+=" --x"`, `A=( … )`, `A[2]=x`, `declare -A M=([7b]=32)`), and the numbers
that `{1..8}` counts. An element of an associative array is kept as a variable of the name `M[7b]`.
"""

import re

from importers.shell.budget import Budget
from importers.shell.script import Script
from importers.shell.tree import Assign
from importers.shell.values import HOLE, Value, first
from program.errors import InputError

MOST = 100_000
ITEM_BYTES = 8
"""A place in a list."""


def assigned(script: Script, assign: Assign) -> None:
    """Carry out one assignment, and remember which variables its value was made from."""
    expander = script.expander
    expander.used.clear()
    old = expander.variables.get(assign.name)
    if assign.name in expander.maps:
        _into_map(script, assign)
        return
    if assign.items is not None:
        items = [field for raw in assign.items for field in expander.fields(raw)]
        blank = [item for item in items if item.strip() == ""]
        if blank:
            script.warn(f"array {assign.name}: a backslash followed by a blank adds an empty argument; it is dropped")
        value: Value = [item for item in items if item.strip()]
        if assign.append and old is not None:
            value = [*([old] if isinstance(old, str) else old), *value]
        expander.budget.take(ITEM_BYTES * len(value))
    elif assign.index is not None:
        value = _element(script, assign, old)
    else:
        text = expander.text(assign.value)
        value = text
        if assign.name in expander.integers:
            value = expander.arithmetic(f"{assign.name} + ({text})" if assign.append and old is not None else text)
        elif assign.append and old is not None:
            value = _appended(expander.budget, old, text)
    sources = script.made_from.setdefault(assign.name, set())
    if not assign.append:
        sources.clear()
    sources.update(expander.used)
    expander.variables[assign.name] = value


def _appended(budget: Budget, old: Value, text: str) -> Value:
    """`A+=text`: to the text, or to the first element of an array."""
    if isinstance(old, list):
        budget.take(ITEM_BYTES * len(old))
        return [budget.text(first(old) + text), *old[1:]]
    budget.characters(len(old) + len(text))
    return budget.text(old + text)


def _element(script: Script, assign: Assign, old: Value | None) -> Value:
    """The array with one element set; an index that is not known adds to its end."""
    items = list(old) if isinstance(old, list) else [] if old is None else [old]
    place = script.expander.arithmetic(assign.index or "")
    number = len(items) if script.expander.why(place) else int(place)
    text = script.expander.text(assign.value)
    if not -len(items) <= number <= MOST:
        raise InputError(f"{assign.name}[{assign.index}]: the array has no element {number}")
    script.expander.budget.take(ITEM_BYTES * max(len(items), number + 1))
    items += [HOLE] * (number + 1 - len(items))
    items[number] = text
    return items


def _into_map(script: Script, assign: Assign) -> None:
    expander = script.expander
    if assign.items is None:
        key = expander.text(assign.index or "")
        expander.variables[f"{assign.name}[{key}]"] = expander.text(assign.value)
    for raw in assign.items or ():
        expander.budget.step()
        if match := re.match(r"\[(.*?)\]=(.*)$", raw, re.DOTALL):
            expander.variables[f"{assign.name}[{expander.text(match[1])}]"] = expander.text(match[2])


def counted(raw: str) -> list[str]:
    """`{1..8}` and `{0..100..10}` as bash counts them; empty for any other word."""
    match = re.fullmatch(r"\{(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?\}", raw)
    if match is None:
        return []
    first, last = int(match[1]), int(match[2])
    step = max(1, abs(int(match[3] or 1))) * (1 if last >= first else -1)
    if abs(last - first) // abs(step) > MOST:
        raise InputError(f"{raw} counts more than {MOST:,} steps")
    return [str(number) for number in range(first, last + (1 if step > 0 else -1), step)]
