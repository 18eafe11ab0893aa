"""The command line itself: help, usage errors, exit codes, closed pipes, and what is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from compiler import compile_run
from plan.run import Run
from program import StepProgram
from program.errors import InputError
from tests.program.edit import drop_wait, find
from tests.windtunnel.conftest import Called
from tests.windtunnel.run_folders import profile_file
from windtunnel import __main__, cli, demo
from windtunnel.commands import COMMANDS
from windtunnel.edge import EXIT_FAULT, MOST_PRINTED, outcome, report
from windtunnel.output import json_text

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., object]


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in the checkout."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment, timeout=60, check=False
    )


def test_help_names_every_command(wt: Call) -> None:
    called = wt("--help")
    assert called.code == 0
    assert all(f"  {name} " in called.out for name in COMMANDS)
    assert "..." not in called.out.partition("Commands:")[2]  # every summary fits its line


def test_without_a_command_it_helps(wt: Call) -> None:
    assert wt() == wt("--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_takes_json(command: str, wt: Call) -> None:
    called = wt(command, "--help")
    assert called.code == 0
    assert "--json" in called.out


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    heavy = ("numpy", "pydantic", "yaml", "rich", "simpy", "torch", "plan.run", "calibration", "simulator", "trainer",
             "tree_sitter", "tree_sitter_bash")  # fmt: skip
    done = python(f"import sys, windtunnel.cli; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("forecst",), "Did you mean 'forecast'?"),
        (("forecast",), "Missing argument"),
        (("forecast", "x.yaml", "--nope"), "No such option: --nope"),
        (("forecast", "x.yaml", "--nodes", "many"), "valid integer"),
        (("forecast", "x.yaml", "--flops", "linpack"), "'exact', 'megatron', 'palm'"),
        (("check", "a"), "Missing argument"),
    ],
)
def test_a_wrong_command_line_is_exit_2_with_a_way_out(arguments: tuple[str, ...], said: str, wt: Call) -> None:
    called = wt(*arguments)
    assert called.code == 2
    assert said in called.err
    assert "--help says what there is" in called.err
    problems = wt(*arguments, "--json").json["error"]["problems"]
    assert len(problems) == 1
    assert said in problems[0]


def test_every_problem_is_reported_and_exit_codes_come_from_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> int:
        raise InputError(["first", "second"])

    assert outcome(wrong, as_json=True) == 2
    seen = capsys.readouterr()
    assert json.loads(seen.out) == {"error": {"problems": ["first", "second"]}}
    assert seen.err == "2 problems:\n  1. first\n  2. second\n"


def test_thousands_of_problems_are_counted_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    report([f"problem {number}" for number in range(3_000)], as_json=True)
    seen = capsys.readouterr()
    assert len(json.loads(seen.out)["error"]["problems"]) == 3_000
    assert seen.err.splitlines()[-1] == f"  … and {3_000 - MOST_PRINTED:,} more; --json lists all of them"
    assert len(seen.err.splitlines()) == MOST_PRINTED + 2


def test_a_fault_of_ours_is_one_line_and_another_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(lambda: 1 // 0, as_json=False) == EXIT_FAULT
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_program_that_no_proof_accepts_is_a_fault_of_ours(
    wt: Callable[..., Called], run_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler with one wait left out: the rules accept the plan, the proof refuses the program."""

    def wrong(run: Run) -> StepProgram:
        program = compile_run(run)
        block, local = find(program, 0, lambda _, i: i.stream == "compute" and bool(i.waits))[0]
        return drop_wait(program, 0, block, local)

    monkeypatch.setattr("compiler.compile_checked.compile_run", wrong)
    called = wt("forecast", run_file(), "--profile", profile_file(run_file().parent / "profile.yaml"))
    assert called.code == EXIT_FAULT
    assert called.err.startswith("error: a fault of Windtunnel itself, UnsoundProgram: the rules accept this plan, but")
    assert "proof failed" in called.err


def test_json_has_no_nan() -> None:
    assert json.loads(json_text({"a": float("nan"), "b": (1, float("inf")), 3: "x"})) == {
        "a": None,
        "b": [1, None],
        "3": "x",
    }


def test_a_reader_that_goes_away_is_not_an_error() -> None:
    """`windtunnel program … | head -1`: the program is larger than a pipe holds."""
    command = (
        f"{sys.executable} -m windtunnel program examples/gpt3-175b.yaml --rank 3 | head -1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("> /dev/full", 2, "error: the output cannot be written: No space left on device\n"),
    ],
)
def test_streams_that_are_closed_or_full(streams: str, code: int, said: str) -> None:
    command = f"{sys.executable} -m windtunnel program examples/cpu-tp2.yaml {streams}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_an_ascii_terminal_gets_question_marks_and_no_traceback() -> None:
    code = "from windtunnel.cli import main; main(['program', 'examples/cpu-tp2.yaml'])"
    done = python(code, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout


def test_ctrl_c_is_one_line_from_the_first_import_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is interrupted: the import of the command line, or a command."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped\n"


class Child:
    """A process that is waited for when Ctrl-C comes; it has an exit code or none yet."""

    def __init__(self, code: int | None) -> None:
        self.code, self.terminated = code, False

    def communicate(self) -> tuple[str, str]:
        raise KeyboardInterrupt

    def wait(self, timeout_s: float | None = None) -> int:
        if self.code is None and timeout_s is not None:
            raise subprocess.TimeoutExpired("calibrate", timeout_s)
        return self.code or -15

    def terminate(self) -> None:
        self.terminated = True


def test_the_demo_lets_its_calibration_say_that_it_was_stopped() -> None:
    """A terminal interrupts both; one line is enough. A child that was not interrupted is ended."""
    spoke, silent = Child(130), Child(None)
    with pytest.raises(typer.Exit) as ended:
        demo._finished(spoke)  # type: ignore[arg-type]
    assert (ended.value.exit_code, spoke.terminated) == (130, False)
    with pytest.raises(KeyboardInterrupt):
        demo._finished(silent)  # type: ignore[arg-type]
    assert silent.terminated
