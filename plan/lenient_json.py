"""JSON as people write it: comments, trailing commas, Python's True/False/None, underscores in numbers; repeated keys
are refused.

read_json('{"a": 1_000, // note\\n "b": True,}', "x.json")  ->  {"a": 1000, "b": True}
"""

import json
import re
from typing import Any

from program.errors import InputError
from program.files import parsing, refuse_long, refuse_unreadable
from program.nearest import kind_of, shown

PIECES = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|#[^\n]*|[A-Za-z_$][\w$]*|[-+]?\d[\d_.]*(?:[eE][-+]?\d+)?|\s+|.', re.DOTALL
)
WORDS = {"True": "true", "False": "false", "None": "null"}


def read_json(text: str, where: str) -> dict[str, Any]:
    """The object in a relaxed JSON text. Raises `InputError` with line and column of what cannot be read."""
    text = text.removeprefix("\ufeff")  # Windows editors begin a file with it
    if not text.strip():
        raise InputError(f"{where} is empty; a JSON object was expected")
    refuse_long(text, where, ",:[{\n")
    with parsing(where, "objects"):
        try:
            value = json.loads(
                _strict(text, where),
                object_pairs_hook=lambda pairs: _unique(pairs, where),
                parse_constant=lambda name: _refuse(name, where),
            )
        except json.JSONDecodeError as error:
            at = f"line {error.lineno}, column {error.colno}"
            raise InputError(f"{where} is not JSON: {error.msg} ({at})") from None
    if not isinstance(value, dict):
        raise InputError(f"{where} holds {kind_of(value)}; a JSON object was expected")
    refuse_unreadable(value, where)
    return value


def _strict(text: str, where: str) -> str:
    """The same text as strict JSON. Line breaks stay, so that errors name the right line."""
    pieces = [_piece(match.group(), text, match.start(), where) for match in PIECES.finditer(text)]
    kept: list[str] = []
    for piece in pieces:
        if piece in ("}", "]"):
            last = next((i for i in range(len(kept) - 1, -1, -1) if kept[i].strip()), None)
            if last is not None and kept[last] == ",":
                kept[last] = ""
        kept.append(piece)
    return "".join(kept)


def _piece(piece: str, text: str, at: int, where: str) -> str:
    if piece.startswith(("//", "#")):
        return ""
    if piece.startswith("/*"):
        return "\n" * piece.count("\n")
    if piece.startswith("$"):
        line = text.count("\n", 0, at) + 1
        raise InputError(f"{where} line {line}: {piece} is a shell variable that nobody has filled in; write its value")
    if piece[0].isdigit() or (piece[0] in "+-" and len(piece) > 1):
        return piece.replace("_", "").lstrip("+")
    return WORDS.get(piece, piece)


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result and result[key] != value:
            raise InputError(
                f"{where}: the key {key!r} stands twice, with {shown(result[key])} and {shown(value)}; keep one"
            )
        result[key] = value
    return result


def _refuse(name: str, where: str) -> float:
    raise InputError(f"{where} contains {name}, which is not a number")
