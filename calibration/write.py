"""Writing a profile file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml


def write_profile(data: dict[str, Any], path: Path, comment: str) -> None:
    """Write a profile file, in one move so that a reader never sees half of it."""
    text = "".join(f"# {line}\n" for line in comment.splitlines())
    text += yaml.dump(data, Dumper=yaml.CSafeDumper, default_flow_style=None, sort_keys=False, width=118)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(partial, 0o644)
    os.replace(partial, path)
