"""What the evaluator learns from a launch script: commands, files, variables, warnings."""

from dataclasses import dataclass, field

from importers.shell.expand import Expander
from program.confined import Confined


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
    beside: Confined = field(default_factory=Confined)
    """The files that the script may name."""
    expander: Expander = field(default_factory=Expander)
    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)
    made_from: dict[str, set[str]] = field(default_factory=dict)
    """For every variable, the variables its value was made from."""

    def warn(self, sentence: str) -> None:
        """Something to look at, said once."""
        if sentence not in self.warned:
            self.expander.budget.text(sentence)
            self.warned.add(sentence)
            self.warnings.append(sentence)
