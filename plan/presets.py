"""Presets: published models, GPUs and node types by name, from the YAML files in `plan/presets/`.

A run file names one (`model: gpt3-175b`, `cluster: {preset: dgx-h100, nodes: 4}`) and may override its keys one by
one; nested mappings are merged (`nics: {count: 4}` keeps the preset's bandwidth). Each file says where its numbers
were published.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from program.files import mapping_from_yaml
from program.nearest import did_you_mean

FOLDER = Path(__file__).parent / "presets"


@cache
def _table(kind: str) -> dict[str, dict[str, Any]]:
    return mapping_from_yaml(FOLDER / f"{kind}.yaml")


def names(kind: str) -> list[str]:
    """The names of every preset of a kind: 'models', 'clusters' or 'gpus'."""
    return list(_table(kind))


def preset(kind: str, name: str) -> dict[str, Any]:
    """A preset's keys, `name` included. Raises ValueError naming the nearest preset."""
    table = _table(kind)
    if name not in table:
        raise ValueError(f"{name!r} is not one of the preset {kind}: {did_you_mean(name, list(table))}")
    return {"name": name, **table[name]}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, key by key; where both hold a mapping they are merged in turn."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def fill(section: str, raw: object) -> tuple[object, list[str]]:
    """A `model:` or `cluster:` section with its preset filled in, and what was wrong with the name."""
    kind = f"{section}s"
    if isinstance(raw, str):
        raw = {"preset": raw}
    if not isinstance(raw, Mapping) or "preset" not in raw:
        return raw, []
    over = {key: value for key, value in raw.items() if key != "preset"}
    try:
        base = preset(kind, str(raw["preset"]))
        if over.get("gpu", base.get("gpu")) != base.get("gpu"):
            base.pop("profile", None)  # it was named for the preset's own card: another card has another
        return merge(base, over), []
    except ValueError as error:
        return None, [f"{section}.preset: {error}"]
