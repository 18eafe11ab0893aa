"""The commands in the documents run as written: those that need no training and no measuring, here."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windtunnel.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/command-line.md", "docs/architecture.md")
QUICK = ("forecast", "program", "import", "export", "doctor")


def commands() -> list[str]:
    """Every `windtunnel ...` line of a code block, without pipes."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:console)?\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
            found += re.findall(r"^(?:\$ )?(?:\.venv/bin/)?windtunnel ([^|#\n]+)", block, re.MULTILINE)
    return sorted({line.strip() for line in found})


def test_there_are_commands_and_all_exist() -> None:
    assert len(commands()) > 10
    assert {line.split()[0] for line in commands()} <= set(COMMANDS)


@pytest.mark.parametrize("line", [line for line in commands() if line.split()[0] in QUICK])
def test_a_documented_command_runs(line: str, wt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    called = wt(*shlex.split(line))
    assert called.code == 0, called.err
    assert called.out


@pytest.mark.parametrize("line", [line for line in commands() if line.split()[0] not in QUICK])
def test_a_documented_slow_command_parses(line: str, wt: Callable[..., Any]) -> None:
    words = shlex.split(line)
    options = [word for word in words if word.startswith("--")]
    text = wt(words[0], "--help").out
    assert all(option in text for option in options)
