"""`--set` of a command line, which counts instead of what a file says before anything is derived from it."""

from collections.abc import Sequence
from typing import Any

from program.errors import InputError
from program.files import parse_yaml


def flat(overrides: Sequence[str]) -> dict[str, Any]:
    """`--set` texts as dotted keys and values. What is no `section.key=value` is left to whoever loads the run."""
    found: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if equals:
            try:
                found[key.strip()] = parse_yaml(value, f"--set {text}")
            except InputError:
                continue
    return found
