"""Operations inside `${name…}`: defaults, trimming, replacing, slicing, case."""

import fnmatch
import re

from plan.shell.values import Value, Words


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
    if not isinstance(value, str):
        return owner.opaque("unsupported", "${" + name + operation + "}")
    if owner.why(value):
        return value
    if match := re.match(r"(%%|%|##|#)(.*)$", operation, re.DOTALL):
        return _trim(value, match.group(1), owner.text(match.group(2)))
    if match := re.match(r"//?([^/]*)/?(.*)$", operation, re.DOTALL):
        pattern, replacement = owner.text(match.group(1)), owner.text(match.group(2))
        found = re.compile(fnmatch.translate(pattern).removesuffix(r"\z").removesuffix(r"\Z"))
        return found.sub(replacement.replace("\\", r"\\"), value, count=0 if operation.startswith("//") else 1)
    if match := re.match(r":\s*(-?\d+)(?::\s*(-?\d+))?$", operation):
        start = int(match.group(1))
        end = (
            None
            if match.group(2) is None
            else (start + int(match.group(2)) if int(match.group(2)) >= 0 else int(match.group(2)))
        )
        return value[start:end]
    if operation in ("^^", ",,"):
        return value.upper() if operation == "^^" else value.lower()
    return owner.opaque("unsupported", "${" + name + operation + "}")


def _trim(value: str, sign: str, pattern: str) -> str:
    """Remove the shortest or longest match of a glob from the front (#) or the back (%)."""
    cuts = range(len(value) + 1)
    if sign.startswith("#"):
        order = cuts if sign == "#" else reversed(cuts)
        return next((value[cut:] for cut in order if fnmatch.fnmatchcase(value[:cut], pattern)), value)
    order = reversed(cuts) if sign == "%" else cuts
    return next((value[:cut] for cut in order if fnmatch.fnmatchcase(value[cut:], pattern)), value)
