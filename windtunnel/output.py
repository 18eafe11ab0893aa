"""What a command prints. Results go to stdout, progress and notes to stderr; progress only when a person is
watching.

Text is made first and written in one piece: `windtunnel program RUN | head` then ends on a closed pipe in one known
place (`edge`), and a piped table is 100 columns of plain text, the same on every machine.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any

WIDTH = 100


def width() -> int:
    """Columns to use: 100 in a pipe, and at most 100 on a terminal."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 40)).columns) if sys.stdout.isatty() else WIDTH


def colour() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def emit(text: str) -> None:
    """Print a finished text."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def emit_lines(lines: Iterable[str]) -> None:
    """Print lines as they come, in blocks, so that a long program starts to show at once."""
    block: list[str] = []
    for line in lines:
        block.append(line)
        if len(block) == 2000:
            emit("\n".join(block))
            block.clear()
    if block:
        emit("\n".join(block))


def emit_json(result: Any) -> None:
    """Print a result as one JSON object."""
    emit(json_text(result))


def json_text(result: Any) -> str:
    """A dataclass or mapping as JSON. NaN is no JSON: a number that could not be computed is null."""
    return json.dumps(plain(result), indent=2, ensure_ascii=False, allow_nan=False)


def plain(result: Any) -> Any:
    """A dataclass or mapping as JSON has it."""
    return _finite(asdict(result) if is_dataclass(result) and not isinstance(result, type) else result)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def note(text: str) -> None:
    """One line for the person at the keyboard."""
    print(text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """One line about long work: shown on a terminal, silent in a pipe."""
    if sys.stderr.isatty():
        note(text)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on a terminal while something long runs; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
