"""Everything that can go wrong with what a user gave us, as one tree.

    WindtunnelError                 the base: catch this to catch all of ours
    ├── UnsoundProgram              a plan that the rules accept compiled to a program that must not run  (exit 3)
    ├── Stopped                     somebody stopped the command (Ctrl-C, a scheduler)            (exit 128 + signal)
    └── InputError                  the input is wrong: file, key, number, or a plan no machine can run   (exit 2)
        └── NotYetForecast          the input is legal, but Windtunnel does not forecast it yet           (exit 2)

An `InputError` carries *every* problem found, not the first one, because a user with four mistakes in a run file
wants one answer:

    try:
        run = plan.run.load("run.yaml")
    except InputError as error:
        for problem in error.problems: ...

Each problem is a sentence that names the value given, the rule it breaks and the nearest value that would do. The
command line prints `str(error)` and exits with `error.exit_code`; a user never sees a traceback for his own input.

Exit codes: 0 success · 1 the answer is "no" (does not fit, regression found) · 2 the input is wrong ·
3 a fault of Windtunnel itself.
"""

from collections.abc import Iterable

EXIT_NO = 1
EXIT_INPUT = 2
EXIT_FAULT = 3


class WindtunnelError(Exception):
    """Base of every error Windtunnel raises on purpose. `exit_code` is what the command line exits with."""

    exit_code = EXIT_NO


class UnsoundProgram(WindtunnelError):
    """A proof refused the program compiled for a run that the rules accept: the compiler is wrong, not the run."""

    exit_code = EXIT_FAULT


class Stopped(WindtunnelError):
    """Somebody stopped the command by a signal; the exit code is the one a shell gives, 130 for Ctrl-C."""

    def __init__(self, message: str, signal: int) -> None:
        self.exit_code = 128 + signal
        super().__init__(message)


class InputError(WindtunnelError):
    """The input is wrong. Takes one sentence or several; duplicates are dropped, order is kept."""

    exit_code = EXIT_INPUT

    def __init__(self, problems: str | Iterable[str]) -> None:
        given = (problems,) if isinstance(problems, str) else tuple(problems)
        self.problems: tuple[str, ...] = tuple(dict.fromkeys(given))
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = [f"{number}. {problem}" for number, problem in enumerate(self.problems, 1)]
        return f"{len(lines)} problems:\n" + "\n".join(lines)


class NotYetForecast(InputError):
    """The input means something real that Windtunnel does not forecast yet; each problem names the nearest
    supported plan."""
