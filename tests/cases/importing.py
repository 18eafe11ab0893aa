"""Helpers of the importer cases: a case's input, its import, and what was said about it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from importers import ImportResult, import_file
from plan.run import Run, load
from program.errors import InputError

DATA = Path(__file__).parent / "data"
DGX = "dgx-a100-80gb"


def case(number: str) -> dict[str, Any]:
    """The `input` of a case by its number."""
    (path,) = DATA.glob(f"{number}-*.yaml")
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["input"])


def read(folder: Path, text: str, name: str, **request: Any) -> ImportResult:
    """Import a case's text; problems are returned."""
    (folder / name).write_text(text, encoding="utf-8")
    return import_file(folder / name, refuse=False, **request)


def said(result: ImportResult, *words: str) -> bool:
    """Whether one sentence of the import holds all the words."""
    assumed = [f"{each.subject}: {each.value}; {each.flag} changes {each.moves}" for each in result.assumptions]
    sentences = (*result.notes, *result.warnings, *result.problems, *assumed)
    return any(all(word in each for word in words) for each in sentences)


def refused(run: dict[str, Any], *words: str) -> None:
    """The loader refuses a run with one sentence that holds all the words."""
    with pytest.raises(InputError) as error:
        load(run)
    assert any(all(word in problem for word in words) for problem in error.value.problems), str(error.value)


def loaded(run: dict[str, Any]) -> Run:
    """A run whose plan is forecast already, or its shape with the plan's open features switched off."""
    return load({**run, "plan": {"implementation": "megatron"}})
