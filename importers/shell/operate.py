"""Operations inside `${name…}`: defaults, trimming, replacing, slicing, case."""

import re

from importers.shell.glob import Glob, replaced, wild
from importers.shell.values import Value, Words

SLICE = re.compile(r":\s*(-?[0-9]{1,18})(?::\s*(-?[0-9]{1,18}))?$")


def operate(owner: Words, name: str, value: Value, operation: str) -> Value:
    """`${name operation}` for the operations scripts use; anything else is opaque."""
    unset = name not in owner.variables and not (isinstance(value, list) and value)
    if match := re.match(r"(:?)([-=?+])(.*)$", operation, re.DOTALL):
        colon, sign, word = match.groups()
        missing = unset or (bool(colon) and value in ("", []))
        if sign == "+":
            return "" if missing else owner.text(word)
        if not missing:
            return value
        if sign == "?" or (owner.unread and unset):
            return owner.opaque("undefined", f"${name}", owner.unread)
        default = owner.text(word)
        if sign == "=":
            owner.variables[name] = default
        return default
    if isinstance(value, list) and (match := SLICE.match(operation)) and not owner.why("".join(value)):
        first = int(match[1])
        value = [owner.name, *value] if name in "@*" else value
        first = max(0, first + len(value)) if first < 0 else first
        return value[first : None if match[2] is None else first + max(0, int(match[2]))]
    if not isinstance(value, str):
        return owner.opaque("unsupported", "${" + name + operation + "}")
    if owner.why(value):
        return value
    owner.budget.step()
    if match := re.match(r"(%%|%|##|#)(.*)$", operation, re.DOTALL):
        pattern = owner.pattern(match.group(2))
        return pattern if owner.why(pattern) else _trim(owner, value, match.group(1), pattern)
    if match := re.match(r"//?([^/]*)/?(.*)$", operation, re.DOTALL):
        pattern, replacement = owner.pattern(match.group(1)), owner.text(match.group(2))
        if owner.why(pattern):
            return pattern
        if operation[1] in "#%" and not operation.startswith("//"):  # anchored: at the front or the back only
            pattern = owner.pattern(match.group(1)[1:])
            found = _trim(owner, value, operation[1] * 2, pattern) if pattern else value
            if pattern and found == value:
                return value
            return owner.budget.text(replacement + found if operation[1] == "#" else found + replacement)
        return replaced(value, pattern, replacement, operation.startswith("//"), owner.budget)
    if match := SLICE.match(operation):
        start = int(match.group(1))
        end = (
            None
            if match.group(2) is None
            else (start + int(match.group(2)) if int(match.group(2)) >= 0 else int(match.group(2)))
        )
        return value[start:end]
    if operation in ("^^", ",,"):
        return owner.budget.text(value.upper() if operation == "^^" else value.lower())
    return owner.opaque("unsupported", "${" + name + operation + "}")


def _trim(owner: Words, value: str, sign: str, pattern: str) -> str:
    """Remove the shortest or longest match of a glob from the front (#) or the back (%)."""
    backward = sign.startswith("%")
    if not wild(pattern):
        return value.removesuffix(pattern) if backward else value.removeprefix(pattern)
    length = Glob(pattern, owner.budget, backward).end(value, longest=len(sign) > 1)
    if length is None:
        return value
    return value[: len(value) - length] if backward else value[length:]
