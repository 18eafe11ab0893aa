"""The command line: `windtunnel COMMAND`. Try `windtunnel --help`, then `windtunnel demo`.

Importing this file imports typer and nothing heavier: each command imports what it needs when it is called (numpy,
pydantic and rich for a forecast, torch only for training and calibrating). Exit codes: 0 success, 1 the answer is
"no", 2 the input is wrong, 3 a fault of ours.
"""

import os
import sys
from collections.abc import Sequence

import typer

from windtunnel import commands
from windtunnel.edge import broken_pipe, guarded, report_usage

HELP = """Forecast a large-model training run, execute the same run, and hold the two against each other.

RUN is a run file (YAML), or a Megatron launch script, DeepSpeed JSON, torchtitan TOML, Hugging Face config.json or
GPT-NeoX YAML, which need --cluster PRESET --nodes N (and --model PRESET when they name none).
--set plan.tensor_parallel=4 overrides any key.
Every command takes --json. Exit codes: 0 success; 1 the answer is "no"; 2 the input is wrong;
3 a fault of Windtunnel."""

app = typer.Typer(
    name="windtunnel",
    help=HELP,
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing rich would cost more than printing it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _name, (_command, _summary) in commands.COMMANDS.items():
    app.command(_name, short_help=_summary)(guarded(_command))


def _version(given: bool) -> None:
    if given:
        from windtunnel import __version__

        typer.echo(f"windtunnel {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


root.__doc__ = HELP


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `windtunnel` command; exits the process."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # started with it closed: `windtunnel … >&-`
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal prints ? for ·, and never a traceback
    try:
        code = app(args=given, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        code = broken_pipe()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = 130
    except Exception as error:
        code = report_usage(error, given, commands.COMMANDS)
    sys.exit(code if isinstance(code, int) else 0)
