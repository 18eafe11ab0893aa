"""`windtunnel forecast RUN`: what the run would take, before anyone books the GPUs."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.commands import options as o

if TYPE_CHECKING:
    from windtunnel.source import RunSource


class Flops(StrEnum):
    """How FLOPs are counted for MFU and HFU."""

    exact = "exact"
    megatron = "megatron"
    palm = "palm"


class ScalingKind(StrEnum):
    """What happens to the global batch where there are more nodes."""

    strong = "strong"
    weak = "weak"


def forecast(
    run: o.RunFile,
    set_: o.Set = [],  # noqa: B006  typer copies it
    cluster: o.Cluster = "",
    nodes: Annotated[
        str,
        typer.Option(
            metavar="N[,N...]", help="Nodes of that cluster; several for a scaling table.", show_default=False
        ),
    ] = "",
    scaling: Annotated[
        ScalingKind | None,
        typer.Option(
            help="With several --nodes: the global batch stays (strong, the default) or grows with them (weak).",
            show_default=False,
        ),
    ] = None,
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
    from program.errors import InputError
    from windtunnel import api, output
    from windtunnel.scaling import counts
    from windtunnel.source import RunSource

    many = counts(nodes) if nodes else []
    one = many[0] if len(many) == 1 else None
    source = RunSource(run, tuple(set_), cluster, one, model, tuple(var), tuple(allow_read), accept_unknown)
    if len(many) > 1:
        if timeline or trace or unfold:
            raise InputError("--timeline, --trace and --unfold are of one run; give one count to --nodes")
        return _scaling(source, many, scaling or ScalingKind.strong, profile, flops, as_json)
    if scaling is not None:
        raise InputError(f"--scaling {scaling.value} compares several numbers of nodes: write --nodes 1,2,4,8")
    simulated = api.simulate(source.load(), profile=profile or None, unfold=unfold)
    result = api.forecast_of(
        simulated,
        flops=flops.value,
        notes=source.notes,
        warnings=source.warnings,
        assumptions=source.assumptions,
    )
    yes = result.memory.fits or result.memory.borderline
    if not yes:
        from windtunnel.remedies import remedied

        result = remedied(source, simulated, result)
    if timeline:
        api.save_timeline(simulated, timeline)
    if trace:
        api.save_trace([simulated.timeline()], trace)
    if as_json:
        output.emit_json(result)
    else:
        from reports.forecast_text import forecast_text

        output.emit(forecast_text(result, output.width(), output.colour()))
    return 0 if yes else 1


def _scaling(source: RunSource, nodes: list[int], kind: ScalingKind, profile: str, flops: Flops, as_json: bool) -> int:
    """The scaling table. Exit 1: it fits on none of them."""
    from reports.scaling import Point, scaling_text
    from windtunnel import output
    from windtunnel.scaling import scaled

    found = scaled(source, nodes, kind.value, profile=profile or None, flops=flops.value)
    if as_json:
        output.emit_json(found)
    else:
        output.emit(scaling_text(found, output.width(), output.colour()))
    return (
        0
        if any(isinstance(point, Point) and (point.memory.fits or point.memory.borderline) for point in found.points)
        else 1
    )
