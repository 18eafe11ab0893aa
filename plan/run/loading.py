"""Loads a run: a YAML file or a dict, `--set` overrides laid over it, resolved and checked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plan.run.job import Run
from program.errors import InputError


def load(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Run:
    """The run of a YAML file or dict, with `section.key=value` overrides applied. Raises InputError with every
    problem found."""
    from plan.run.resolve import resolve  # pydantic is imported only when there is something to read

    raw: dict[str, Any] = read_yaml(source) if isinstance(source, str | Path) else {**source}
    return resolve(override(raw, overrides))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file as a mapping. Raises InputError when it cannot be read, is empty, repeats a key or is not a
    mapping."""
    from program.files import mapping_from_yaml

    return mapping_from_yaml(Path(path))


def override(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of `raw` with each `a.b=value` set; the value is read as YAML. A section given as a preset name
    becomes a mapping; `model=NAME` and `cluster=NAME` replace the whole section."""
    from program.files import parse_yaml

    result: dict[str, Any] = dict(raw)
    problems = []
    for text in overrides:
        path, equals, value = text.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys) or (len(keys) < 2 and keys[0] not in Run.__dataclass_fields__):
            problems.append(f"--set {text!r}: write section.key=value, such as plan.tensor_parallel=4")
            continue
        level = result
        for key in keys[:-1]:
            inner = level.get(key)
            level[key] = (
                {"preset": inner} if isinstance(inner, str) else dict(inner) if isinstance(inner, Mapping) else {}
            )
            level = level[key]
        level[keys[-1]] = parse_yaml(value, f"--set {text}")
    if problems:
        raise InputError(problems)
    return result
