"""`windtunnel program RUN` prints the step program, `windtunnel import FILE` the run file that a foreign file means,
`windtunnel export RUN` the launch script of another framework.
"""

from enum import StrEnum
from typing import Annotated

import typer

from windtunnel.commands import options as o


def program(
    run: o.RunFile,
    set_: o.Set = [],  # noqa: B006  typer copies it
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, metavar="R", help="Whose program.")] = 0,
    csv: Annotated[
        bool, typer.Option("--csv", help="The pipeline schedule of all stages in PyTorch's CSV form.")
    ] = False,
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    as_json: o.Json = False,
) -> int:
    """Print the step program of a rank: every instruction, in host issue order, with waits and kernel calls."""
    from windtunnel.programs import program_command
    from windtunnel.source import RunSource

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read))
    return program_command(source, rank, csv, as_json)


def import_(
    run: o.RunFile,
    set_: o.Set = [],  # noqa: B006  typer copies it
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    output: o.Output = "",
    as_json: o.Json = False,
) -> int:
    """Print the run file that a launch script or another framework's configuration means."""
    from windtunnel.programs import import_command
    from windtunnel.source import RunSource

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read))
    return import_command(source, output or None, as_json)


class Framework(StrEnum):
    """Whose launch script to write."""

    megatron = "megatron"


def export(
    run: o.RunFile,
    to: Annotated[Framework, typer.Option(help="Whose launch script.")] = Framework.megatron,
    set_: o.Set = [],  # noqa: B006  typer copies it
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    output: o.Output = "",
    as_json: o.Json = False,
) -> int:
    """Print the launch script that starts this run under another framework; what it cannot say is refused."""
    from windtunnel.programs import export_command
    from windtunnel.source import RunSource

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read))
    return export_command(source, to.value, output or None, as_json)
