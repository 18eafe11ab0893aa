"""An implementation is asked for its choices, never for its name: nobody compares names."""

import ast
from pathlib import Path

import pytest

from plan.implementations import IMPLEMENTATIONS, engine
from plan.run import load

ROOT = Path(__file__).parents[2]
ROOMS = ("plan", "simulator", "trainer", "kernels", "reports")
READERS = ("importers", "exporters.py", "implementations")  # what names them: other people's files, and themselves


def _compared(tree: ast.AST) -> list[int]:
    """Lines that compare something with the name of an implementation."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
            found += [node.lineno] if words & set(IMPLEMENTATIONS) else []
    return found


def test_nobody_compares_names_of_implementations() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    files = [file for file in files if not set(file.relative_to(ROOT).parts) & set(READERS)]
    assert len(files) > 100
    assert {str(f): lines for f in files if (lines := _compared(ast.parse(f.read_text(encoding="utf-8"))))} == {}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_implementation_is_found_by_its_name(name: str) -> None:
    """And a plan of it compiles under the choices that its file makes."""
    run = load({"model": "gpt2-124m", "cluster": "cpu", "plan": {"implementation": name}})
    assert engine(run.plan) == IMPLEMENTATIONS[name].engine(run.plan)
