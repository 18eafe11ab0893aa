"""What the evaluator learns from a launch script: commands, files, variables, warnings, problems."""

from dataclasses import dataclass, field

from plan.importers.shell_expand import Expander


@dataclass(frozen=True, slots=True)
class Command:
    """One command the script would start: its words, the line it stands in, and whether that depends on an unknown
    condition.
    """

    words: tuple[str, ...]
    line: int
    conditional: bool = False


@dataclass(slots=True)
class Script:
    """What was learnt from a script."""

    text: str
    expander: Expander = field(default_factory=Expander)
    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    made_from: dict[str, set[str]] = field(default_factory=dict)
    """For every variable, the variables its value was made from."""
