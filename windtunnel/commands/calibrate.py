"""`windtunnel calibrate`: measures this machine into a profile."""

from typing import Annotated

import typer

from windtunnel.commands import options as o


def calibrate(
    device: Annotated[str, typer.Option(metavar="DEVICE", help="What to measure: cpu, or cuda.")] = "cpu",
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write. Default: the cache.", show_default=False),
    ] = "",
    base: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="cuda: the profile that links and network are taken from. Default: h200-published."
        ),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(metavar="KINDS", help="cuda: some of eager,compiled,triton. Default: compiled.")
    ] = None,
    as_json: o.Json = False,
) -> int:
    """Measure this machine into a profile (under 90 s on 2 cores); prints where it wrote and the residuals."""
    from windtunnel.calibrating import calibrate_command

    return calibrate_command(device, output or None, as_json, base, kernels)
