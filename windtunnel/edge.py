"""Where a command meets the outside: exit codes, error messages, `--json` errors, closed pipes.

`guarded` wraps every command. Wrong input (`InputError`) ends in exit 2 with every problem on stderr and, under
`--json`, as `{"error": {"problems": [...]}}` on stdout. A reader that went away (`| head`) ends quietly. Anything
else is a fault of ours: one line, exit 3, and the traceback when WINDTUNNEL_DEBUG is set.
"""

import errno
import functools
import json
import os
import sys
from collections.abc import Callable, Container, Sequence
from typing import Any

import typer

from program.errors import EXIT_FAULT, WindtunnelError

Command = Callable[..., int | None]

MOST_PRINTED = 40


def guarded(command: Command) -> Command:
    """The command as typer should call it: returns nothing, exits with the code that the command returned or that
    its error means."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        code = outcome(lambda: command(*args, **kwargs), bool(kwargs.get("as_json")))
        if code:
            raise typer.Exit(code)

    return run


def outcome(action: Callable[[], int | None], as_json: bool) -> int:
    """Run `action` and turn what happens into an exit code and messages."""
    try:
        return action() or 0
    except WindtunnelError as error:
        if error.exit_code == EXIT_FAULT:
            return _fault(error, as_json)
        problems = list(getattr(error, "problems", None) or [str(error)])
        report(problems, as_json)
        return error.exit_code
    except BrokenPipeError:
        return broken_pipe()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except typer.Exit:
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _fault(error, as_json)
        broken_pipe()  # what is left in stdout's buffer has nowhere to go
        report([f"the output cannot be written: {error.strerror}"], False)
        return 2
    except Exception as error:
        return _fault(error, as_json)


def report(problems: Sequence[str], as_json: bool) -> None:
    """The problems on stderr, as many as somebody reads; as JSON on stdout, all of them, when asked for."""
    if as_json:
        print(json.dumps({"error": {"problems": list(problems)}}, indent=2, ensure_ascii=False))
    if len(problems) == 1:
        print(f"error: {problems[0]}", file=sys.stderr)
        return
    print(f"{len(problems)} problems:", file=sys.stderr)
    for number, problem in enumerate(problems[:MOST_PRINTED], 1):
        print(f"  {number}. {problem}", file=sys.stderr)
    if len(problems) > MOST_PRINTED:
        print(f"  … and {len(problems) - MOST_PRINTED:,} more; --json lists all of them", file=sys.stderr)


def report_usage(error: Exception, arguments: Sequence[str], commands: Container[str]) -> int:
    """A command line that cannot be parsed: typer's own message, as a problem. (typer carries its own copy of
    click, so the error is known by what it can do.)"""
    message = getattr(error, "format_message", None)
    if message is None:
        return _fault(error, "--json" in arguments)
    command = f"{arguments[0]} " if arguments and arguments[0] in commands else ""
    said = message().replace("Value error, ", "")  # how pydantic, inside typer, begins
    report([f"{said} (windtunnel {command}--help says what there is)"], "--json" in arguments)
    return int(getattr(error, "exit_code", 2))


def broken_pipe() -> int:
    """The reader of our output is gone: point stdout elsewhere so that the interpreter's last flush is quiet too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fault(error: Exception, as_json: bool) -> int:
    if os.environ.get("WINDTUNNEL_DEBUG"):
        import traceback

        traceback.print_exc()
    report([f"a fault of Windtunnel itself, {type(error).__name__}: {error} (WINDTUNNEL_DEBUG=1 shows where)"], as_json)
    return EXIT_FAULT
