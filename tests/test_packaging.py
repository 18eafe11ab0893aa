"""The project installs what it consists of, and nothing else."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = (
    "program", "plan", "compiler", "importers", "kernels", "calibration", "simulator", "trainer", "reports",
    "validation", "windtunnel",
)  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_folder_with_code_is_a_listed_package() -> None:
    """Packages are listed by hand, so a new folder is easily forgotten, and then missing only where it is installed."""
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_package_is_typed_and_opens_with_its_purpose() -> None:
    for room in ROOMS:
        assert (ROOT / room / "py.typed").exists(), room
        assert (ROOT / room / "__init__.py").read_text().startswith('"""'), room


def test_a_forecast_needs_no_torch() -> None:
    base = " ".join(PROJECT["project"]["dependencies"])
    assert {re.split(r"[><= ]", d)[0] for d in PROJECT["project"]["dependencies"]} == {
        "numpy", "simpy", "pydantic", "pyyaml", "typer", "rich", "tree-sitter", "tree-sitter-bash",
    }  # fmt: skip
    assert "torch" not in base
