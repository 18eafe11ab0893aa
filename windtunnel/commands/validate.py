"""`windtunnel validate`: the scoreboard against published measurements."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.commands import options as o

if TYPE_CHECKING:
    from validation.rows import Case


def validate(
    source: Annotated[
        list[str],
        typer.Option("--source", metavar="NAME", help="Only this source. Repeat it.", show_default=False),
    ] = [],  # noqa: B006  typer copies it
    row: Annotated[
        list[str], typer.Option("--row", metavar="ID", help="Only this row. Repeat it.", show_default=False)
    ] = [],  # noqa: B006
    all_rows: Annotated[bool, typer.Option("--all-rows", help="Name every row, not only the worst.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Also hold runs that failed against the forecast of memory.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print one Markdown table, as in the README.")] = False,
    profile: o.Profile = "",
    as_json: o.Json = False,
) -> int:
    """Published training runs, forecast and held against what was measured, source by source.

    Every row is scored or counted under the reason why not. Only step time and memory are compared.
    """
    from dataclasses import replace

    from validation import published, table
    from validation.conventions import chosen
    from validation.feasibility import feasibility
    from validation.forecaster import Forecaster
    from validation.score import scoreboard
    from windtunnel import output

    rows, forecaster = chosen(published.read(), source, row), Forecaster(profile or None)
    board = scoreboard(rows, forecaster, _progress)
    if failed:
        board = replace(board, feasibility=feasibility(rows, forecaster))
    if as_json:
        output.emit_json(board)
    else:
        output.emit(table.markdown(board) if markdown else table.text(board, output.width(), rows=all_rows))
    return 0


def _progress(cases: Iterable[Case]) -> Iterable[Case]:
    """The cases, with a bar on a terminal."""
    if not sys.stderr.isatty():
        return cases
    from rich.console import Console
    from rich.progress import track

    return track(list(cases), description="simulating", console=Console(stderr=True), transient=True)
