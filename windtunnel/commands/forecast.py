"""`windtunnel forecast RUN`: what the run would take, before anyone books the GPUs."""

from enum import StrEnum
from typing import Annotated

import typer

from windtunnel.commands import options as o


class Flops(StrEnum):
    """How FLOPs are counted for MFU and HFU."""

    exact = "exact"
    megatron = "megatron"
    palm = "palm"


def forecast(
    run: o.RunFile,
    set_: o.Set = [],  # noqa: B006  typer copies it
    cluster: o.Cluster = "",
    nodes: o.Nodes = None,
    model: o.Model = "",
    var: o.Var = [],  # noqa: B006
    allow_read: o.AllowRead = [],  # noqa: B006
    accept_unknown: o.AcceptUnknown = False,
    profile: o.Profile = "",
    flops: Annotated[
        Flops, typer.Option(help="FLOP convention of MFU and HFU; exact counts causal attention at half.")
    ] = Flops.exact,
    unfold: Annotated[
        bool, typer.Option("--unfold", help="Simulate every rank instead of one of each kind (slow, equal).")
    ] = False,
    timeline: Annotated[
        str, typer.Option(metavar="FILE", help="Also save the predicted timeline (.json.gz).", show_default=False)
    ] = "",
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="Also save it as a Chrome/Perfetto trace.", show_default=False)
    ] = "",
    as_json: o.Json = False,
) -> int:
    """Step time, throughput, MFU, memory per stage, where the time goes, cost. Exit 1: does not fit."""
    from windtunnel import api, output
    from windtunnel.source import RunSource

    source = RunSource(run, tuple(set_), cluster, nodes, model, tuple(var), tuple(allow_read), accept_unknown)
    simulated = api.simulate(source.load(), profile=profile or None, unfold=unfold)
    result = api.forecast_of(simulated, flops=flops.value, notes=source.notes, warnings=source.warnings)
    if timeline:
        api.save_timeline(simulated, timeline)
    if trace:
        api.save_trace([simulated.timeline()], trace)
    if as_json:
        output.emit_json(result)
    else:
        from reports.forecast_text import forecast_text

        output.emit(forecast_text(result, output.width(), output.colour()))
    return 0 if result.memory.fits else 1
