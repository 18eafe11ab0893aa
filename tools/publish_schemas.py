"""Publishes a JSON schema for each command's `--json`: `python -m tools.publish_schemas` writes
windtunnel/schemas/*.json.

The schemas are generated from the records the commands print (field names, types and the sentence under each
field); a test holds the files to be up to date. They ship with the package, so that a reader of the JSON can
validate it without Windtunnel.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "windtunnel" / "schemas"


def records() -> dict[str, type]:
    """The record behind each command's JSON; `error` is what every command prints when the input is wrong."""
    from reports.check import Verdict
    from reports.compare import Comparison
    from reports.forecast import Forecast
    from reports.scaling import Scaling
    from validation.score import Scoreboard
    from windtunnel import results
    from windtunnel.commands.doctor import Diagnosis

    return {
        "calibrate": results.Calibrated,
        "check": Verdict,
        "compare": Comparison,
        "demo": results.Demo,
        "doctor": Diagnosis,
        "error": results.Error,
        "export": results.Exported,
        "forecast": Forecast,
        "import": results.Imported,
        "program": results.ProgramResult,
        "scaling": Scaling,
        "schedule": results.ScheduleResult,
        "train": results.Trained,
        "validate": Scoreboard,
    }


def schema(command: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of what `windtunnel COMMAND --json` prints."""
    from pydantic import TypeAdapter

    made = TypeAdapter(records()[command]).json_schema(mode="serialization")
    title = f"windtunnel {command} --json"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": title}


def text(command: str) -> str:
    """The schema file's content."""
    return json.dumps(schema(command), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every schema file."""
    FOLDER.mkdir(exist_ok=True)
    for command in records():
        (FOLDER / f"{command}.json").write_text(text(command), encoding="utf-8")


if __name__ == "__main__":
    main()
