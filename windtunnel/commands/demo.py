"""`windtunnel demo`: the whole loop on this machine's CPU."""

from typing import Annotated

import typer

from windtunnel.commands import options as o


def demo(
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="DIR", help="Demo folder. Default: runs/demo-<n>.", show_default=False),
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh/--cached", help="Measure this machine anew, or use the cached profile.")
    ] = True,
    as_json: o.Json = False,
) -> int:
    """Calibrate, forecast, train, compare; then a second run from the unchanged profile. A few minutes on 2 cores."""
    from windtunnel.demo import demo_command

    return demo_command(output or None, fresh, as_json)
