"""From what a run file says to a `Run`: sections read, presets filled in, every rule checked.

All problems of all sections are collected before anything is raised, so that one load shows them all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plan import presets
from plan.pipeline import rows_of
from plan.run import rules
from plan.run.assemble import assemble
from plan.run.job import Run
from plan.run.reading import read_section
from plan.run.schema import SECTIONS, Spec
from plan.run.stand_ins import said_of_both, stand_in
from program.errors import InputError, NotYetForecast
from program.files import text_of
from program.nearest import did_you_mean, nearest_name


def resolve(raw: Mapping[str, Any]) -> Run:
    """A checked Run. Raises InputError with every problem, or NotYetForecast when being unsupported is all that is
    wrong."""
    specs, problems = _read(raw)
    if any(spec is None for spec in specs.values()):
        raise InputError(problems + _whatever_they_are(raw, specs))
    run, more = assemble(specs)
    illegal, unsupported = rules.check(run)
    problems += more + illegal
    if problems:
        raise InputError(problems + unsupported)
    if unsupported:
        raise NotYetForecast(unsupported)
    return run


def _read(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Each section's spec (None: unusable), and what was wrong."""
    problems: list[str] = []
    sections: dict[str, Any] = {}
    for key, value in raw.items():
        name: str | None = str(key)
        if name not in SECTIONS:
            problems.append(f"unknown section {key!r}: {did_you_mean(str(key), list(SECTIONS))}")
            name = nearest_name(str(key), SECTIONS)
        if name is not None and name not in sections:
            sections[name] = value
    specs: dict[str, Any] = {}
    for name, spec in SECTIONS.items():
        if name in _EXAMPLE and (name not in sections or (sections[name] is None and name != "plan")):
            problems.append(f"the section {name}: is {'empty' if name in sections else 'missing'}; {_EXAMPLE[name]}")
            specs[name] = None
            continue
        specs[name], wrong = _read_one(name, spec, sections.get(name))
        problems += wrong
    return specs, problems


def _whatever_they_are(raw: Mapping[str, Any], specs: Mapping[str, Any]) -> list[str]:
    """What the rules say whatever the right values are, while some are wrong (`plan.run.stand_ins`)."""
    said: list[list[str]] = []
    for which in (0, 1):
        found = {name: spec or _stand_in(name, raw.get(name), which) for name, spec in specs.items()}
        if any(spec is None for spec in found.values()):
            return []
        run, more = assemble(found)
        illegal, unsupported = rules.check(run)
        said.append(more + illegal + unsupported)
    return said_of_both(*said)


def _stand_in(name: str, raw: object, which: int) -> Spec | None:
    filled, problems = _filled(name, raw)
    return stand_in(SECTIONS[name], filled, name, which) if not problems and isinstance(filled, Mapping) else None


_EXAMPLE = {
    "model": "for example `model: llama-3-8b`",
    "cluster": "for example `cluster: {preset: dgx-h100, nodes: 1}`",
    "plan": "for example `plan: {tensor_parallel: 8}`",
}


def _read_one(name: str, spec: type[Spec], raw: object) -> tuple[Spec | None, list[str]]:
    filled, problems = _filled(name, raw)
    if problems:
        return None, problems
    return read_section(spec, filled, name)


def _filled(name: str, raw: object) -> tuple[object, list[str]]:
    """A section with its preset or config.json filled in, and what was wrong with the name."""
    if name == "plan":
        return _schedule_file(raw)
    if name not in ("model", "cluster"):
        return raw, []
    if isinstance(raw, Mapping) and raw.get("gpus") is not None and "nodes" not in raw:
        raw = {**raw, "nodes": "auto"}  # `gpus: 20` stands instead of the preset's node count
    filled, problems = _config_json(raw) if name == "model" else (raw, [])
    return (filled, problems) if problems else presets.fill(name, filled)


def _schedule_file(raw: object) -> tuple[object, list[str]]:
    """A plan whose `schedule` is the path of a CSV, with the file's rows in its place; any other unchanged."""
    path = raw.get("schedule") if isinstance(raw, Mapping) else None
    if not (isinstance(raw, Mapping) and isinstance(path, str) and path.endswith(".csv")):
        return raw, []
    try:
        return {**raw, "schedule": rows_of(text_of(Path(path)), path)}, []
    except InputError as error:
        return None, list(error.problems)


def _config_json(raw: object) -> tuple[object, list[str]]:
    """A model given as the path of a Hugging Face config.json, as the numbers in it; anything else unchanged."""
    from plan.huggingface import in_model
    from plan.ledger import Ledger

    ledger = Ledger()
    try:
        filled = in_model(raw, ledger)
        ledger.refuse()
    except InputError as error:
        return None, list(error.problems)
    return filled, []
