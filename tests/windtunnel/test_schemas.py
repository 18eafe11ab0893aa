"""Every command's JSON has a published schema, and what commands print obeys it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from tools.publish_schemas import FOLDER, records, schema
from windtunnel.commands import COMMANDS

Call = Callable[..., Any]


def obeys(command: str, value: object) -> None:
    """Validate against the record behind the schema: no key missing, none unknown."""
    TypeAdapter(records()[command]).validate_json(json.dumps(value))


def keys(node: Any) -> Any:
    """What a reader depends on in a schema: structure without titles and descriptions."""
    if isinstance(node, dict):
        return {k: keys(v) for k, v in node.items() if k not in ("title", "description", "$schema")}
    return [keys(item) for item in node] if isinstance(node, list) else node


@pytest.mark.parametrize("command", records())
def test_the_published_schema_is_up_to_date(command: str) -> None:
    published = json.loads((FOLDER / f"{command}.json").read_text())
    assert keys(published) == keys(schema(command)), "run python -m tools.publish_schemas"


def test_every_command_is_published() -> None:
    assert set(COMMANDS) <= set(records())


def test_real_outputs_obey_their_schemas(run_file: Call, wt: Call) -> None:
    path = run_file()
    obeys("program", wt("program", path, "--json").json)
    obeys("schedule", wt("program", path, "--csv", "--json").json)
    obeys("import", wt("import", path, "--json").json)
    obeys("error", wt("program", path, "--rank", 9, "--json").json)
    obeys("doctor", wt("doctor", "--json").json)
