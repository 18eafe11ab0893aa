"""`windtunnel train RUN`: executes the step program for real, one process a rank."""

from typing import Annotated

import typer

from windtunnel.commands import options as o


def train(
    run: o.RunFile,
    set_: o.Set = [],  # noqa: B006  typer copies it
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Run folder. Default: a new one under runs/.", show_default=False
        ),
    ] = "",
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    accept_unknown: o.AcceptUnknown = False,
    profile: Annotated[
        str,
        typer.Option(
            metavar="nvtx",
            help="Mark every instruction as an NVTX range and the recorded steps for `nsys profile -t cuda,nvtx"
            " --capture-range=cudaProfilerApi`.",
            show_default=False,
        ),
    ] = "",
    as_json: o.Json = False,
) -> int:
    """Train, one process a rank on this machine, or as a rank of your torchrun. Prints the run folder at the end."""
    from windtunnel.source import RunSource
    from windtunnel.training import train_command

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read), accept_unknown)
    return train_command(source, output or None, as_json, profile)
