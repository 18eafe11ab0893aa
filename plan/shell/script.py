"""What the evaluator learns from a launch script: commands, files, variables, warnings."""

from dataclasses import dataclass, field
from pathlib import Path

from plan.shell.expand import Expander


@dataclass(frozen=True, slots=True)
class Command:
    """One command the script would start: its words, the line it stands in, and the unknown condition that decides
    about it (empty: none does).
    """

    words: tuple[str, ...]
    line: int
    condition: str = ""


@dataclass(slots=True)
class Script:
    """What was learnt from a script."""

    text: str
    folder: Path | None = None
    """Where the script stands: files beside it may be read."""
    expander: Expander = field(default_factory=Expander)
    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    made_from: dict[str, set[str]] = field(default_factory=dict)
    """For every variable, the variables its value was made from."""
