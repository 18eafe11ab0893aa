"""`windtunnel compare` and `windtunnel check`: predicted against measured, and the gate for CI."""

from typing import Annotated

import typer

from windtunnel.commands import options as o


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR | PREDICTED", help="A run folder, or a predicted timeline.", show_default=False
        ),
    ],
    second: Annotated[
        str, typer.Argument(metavar="[MEASURED]", help="A measured timeline or run folder.", show_default=False)
    ] = "",
    profile: o.Profile = "",
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many of the worst instructions to list.")] = 12,
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="Write both timelines as one Chrome/Perfetto trace.", show_default=False)
    ] = "",
    max_input_gib: o.MaxInput = 1.0,
    as_json: o.Json = False,
) -> int:
    """Predicted against measured: step time, operation classes, instructions, worst first; skew apart.

    With a run folder, its run.yaml is simulated with the profile named in the header of the measured timeline.
    """
    from program.files import reading_up_to
    from windtunnel.comparing import compare_command

    with reading_up_to(max_input_gib):
        return compare_command(first, second or None, profile or None, top, trace or None, as_json)


def check(
    baseline: Annotated[
        str,
        typer.Argument(
            metavar="BASELINE", help="Run folder to hold against (same plan, or fewer ranks).", show_default=False
        ),
    ],
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="Run folder to judge.", show_default=False)],
    tolerance: Annotated[float, typer.Option(metavar="SHARE", help="Slowdown allowed, 0 to 10.")] = 0.1,
    profile: o.Profile = "",
    max_input_gib: o.MaxInput = 1.0,
    as_json: o.Json = False,
) -> int:
    """Scaling-efficiency gate: step time, classes and T(1)/(N·T(N)) against the twin. Exit 1: a regression;
    2: too few steps to tell."""
    from program.files import reading_up_to
    from windtunnel.comparing import check_command

    with reading_up_to(max_input_gib):
        return check_command(baseline, run_dir, tolerance, profile or None, as_json)
