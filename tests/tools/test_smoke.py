"""Every tool starts as its document says, from the repository's root, and is not installed."""

import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tools

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(tools.__path__)])
def test_a_tool_is_imported(name: str) -> None:
    assert importlib.import_module(f"tools.{name}").__doc__


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["bench", "--help"], 0, "python -m tools.bench"),
        (["bench", "speed"], 2, "unknown group speed"),
        (["tune", "speed"], 2, "unknown sweep speed; accepted: norm-forward"),
    ],
)
def test_a_tool_answers(arguments: list[str], code: int, said: str) -> None:
    command = [sys.executable, "-m", f"tools.{arguments[0]}", *arguments[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_no_tool_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert not [name for name in project["tool"]["setuptools"]["packages"] if name.startswith("tools")]
    for tool in tools.__doc__.splitlines():
        if "tools." in tool:
            assert (ROOT / "tools" / (tool.split("tools.")[1].split()[0] + ".py")).is_file(), tool
