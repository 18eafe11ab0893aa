"""Word splitting of the shell: an unquoted value cut at the characters of IFS."""

import re

BLANKS = " \t\n"


def split(value: str, ifs: str) -> list[str]:
    """The words of an unquoted value: blanks of IFS stand in runs and at the ends, each of its others ends a word."""
    if ifs == BLANKS:
        return value.split()
    blanks, marks = (re.escape("".join(c for c in ifs if c.isspace() == wanted)) for wanted in (True, False))
    around = f"[{blanks}]*" if blanks else ""
    ends = [f"{around}[{marks}]{around}"] if marks else []
    ends += [f"[{blanks}]+"] if blanks else []
    value = value.strip("".join(c for c in ifs if c.isspace())) if blanks else value
    words = re.split("|".join(ends), value) if ends else [value]
    return words if words[-1] else words[:-1]
