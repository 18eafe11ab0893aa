"""Values of a script that cannot be known without running something: markers inside strings, each with its reason.

A marker is spelt in lone surrogates, which no UTF-8 text holds: a script cannot write one, and what replaces plain text
cannot change one.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["undefined", "positional", "command", "condition", "unsupported", "placeholder"]
FIRST, LAST, ZERO = "\ud800", "\ud801", 0xD900
OPAQUE = re.compile(f"{FIRST}([{chr(ZERO)}-{chr(ZERO + 9)}]+){LAST}")
MOST_SHOWN = 200


def marker(number: int) -> str:
    """The marker of the unknown value with a number."""
    return FIRST + "".join(chr(ZERO + int(digit)) for digit in str(number)) + LAST


def number_of(digits: str) -> int:
    """The number that a marker spells."""
    return int("".join(str(ord(digit) - ZERO) for digit in digits))


def plain(text: str) -> str:
    """A text from outside, in which no marker can stand."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Opaque:
    """Why a value is unknown: `detail` names the variable, command or condition."""

    kind: Kind
    detail: str
    beside: str = ""
    """What else to know: the sourced file that may define it."""

    def sentence(self) -> str:
        """The reason, to follow "… is unknown: "."""
        detail = cut(self.detail)
        return {
            "undefined": f"the variable {detail} is not defined in the script"
            + (f" ({self.beside})" if self.beside else ""),
            "positional": f"it comes from the script's argument {detail}",
            "command": f"it is the output of the command {detail}, which is not executed",
            "condition": f"it depends on {detail}",
            "placeholder": f"{detail} stands for a value that is to be filled in",
            "unsupported": f"the expansion {detail} is not supported",
        }[self.kind]


def shown(entry: Opaque) -> str:
    """An unknown value as a user may read it: `$NAME` or `<command>`."""
    detail = cut(entry.detail)
    return detail if entry.kind in ("undefined", "positional", "placeholder") else f"<{detail}>"


def cut(text: str, most: int = MOST_SHOWN) -> str:
    """A text short enough for a sentence."""
    return text if len(text) <= most else f"{text[:most]}…"
