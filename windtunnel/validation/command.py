"""What `windtunnel validate` does: read the rows, fly them behind a progress bar, print the board."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from plan.errors import InputError
from plan.nearest import did_you_mean
from windtunnel import output
from windtunnel.validation import published
from windtunnel.validation.conventions import CONVENTIONS, convention
from windtunnel.validation.feasibility import feasibility
from windtunnel.validation.flying import Flyer
from windtunnel.validation.published import Published
from windtunnel.validation.rows import Case
from windtunnel.validation.score import scoreboard


def validate_command(
    sources: Sequence[str] = (),
    ids: Sequence[str] = (),
    all_rows: bool = False,
    profile: str | None = None,
    as_json: bool = False,
    failed: bool = False,
    as_markdown: bool = False,
) -> int:
    """Score the chosen rows (all of them by default) and print the board; with `failed` also hold runs that failed
    against the forecast of memory. Raises InputError for unknown names."""
    rows, flyer = chosen(published.read(), sources, ids), Flyer(profile)
    board = scoreboard(rows, flyer, _progress)
    if failed:
        board = replace(board, feasibility=feasibility(rows, flyer))
    if as_json:
        output.emit_json(board)
    else:
        from windtunnel.validation import table

        output.emit(table.markdown(board) if as_markdown else table.text(board, output.width(), rows=all_rows))
    return 0


def chosen(rows: Sequence[Published], sources: Sequence[str], ids: Sequence[str]) -> tuple[Published, ...]:
    """Rows of these sources and with these ids, each once; every row when neither is given."""
    names = [known.name for known in CONVENTIONS]
    unknown = [name for name in sources if name not in names]
    if unknown:
        raise InputError(f"--source {name!r}: {did_you_mean(name, names)}" for name in unknown)
    picked = tuple(row for row in rows if (known := convention(row)) is not None and known.name in sources)
    picked += published.named(rows, ids)
    return tuple({row.id: row for row in picked}.values()) if sources or ids else tuple(rows)


def _progress(cases: Iterable[Case]) -> Iterable[Case]:
    """The cases, with a bar on a terminal."""
    if not sys.stderr.isatty():
        return cases
    from rich.console import Console
    from rich.progress import track

    return track(list(cases), description="flying", console=Console(stderr=True), transient=True)
