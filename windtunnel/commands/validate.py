"""`windtunnel validate`: the scoreboard against published measurements."""

from typing import Annotated

import typer

from windtunnel.commands import options as o


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
    from windtunnel.validation.command import validate_command

    return validate_command(tuple(source), tuple(row), all_rows, profile or None, as_json, failed, markdown)
