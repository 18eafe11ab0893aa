"""What is known of a script's variables, why what is not known is not, and what words can be asked.

What cannot be known without running something (an unset variable, the output of a command, a value that depends on an
unknown condition) becomes an *opaque* value: a marker inside the string that remembers why. Opaque values travel
harmlessly through paths and log options; whoever needs the value of one calls `why` and gets the sentence for the user.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from importers.shell.budget import Budget
from importers.shell.opaque import OPAQUE, Kind, Opaque, marker, number_of, shown

Value = str | list[str]
HOLE = "\udfff"
"""An element that an array does not have: `A[5]=x` alone."""
OPAQUE_BYTES = 300
"""What the record of one unknown value takes."""
SHELL_OWN = frozenset({"RANDOM", "SECONDS", "HOSTNAME", "PWD", "HOME", "USER", "UID", "PPID"})
"""Variables the shell itself sets: known to exist, not known in value."""


def first(value: Value) -> str:
    """What `$A` is: the text, or the first element of an array."""
    if isinstance(value, str):
        return value
    return value[0] if value and value[0] != HOLE else ""


@dataclass(slots=True)
class Values:
    """The variables of a script as it is walked; `used` names those that values were made from."""

    variables: dict[str, Value] = field(default_factory=dict)
    opaques: dict[Opaque, int] = field(default_factory=dict)
    """What is unknown, numbered."""
    used: set[str] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)
    tested: list[Opaque] = field(default_factory=list)
    """Why the conditions of the current command are unknown."""
    maps: set[str] = field(default_factory=set)
    """Names of associative arrays."""
    integers: set[str] = field(default_factory=set)
    """Names declared with `-i`: what they are given is arithmetic."""
    asked: bool = False
    """Whether the current condition asked how many arguments the script has, which were not given."""
    nounset: bool = False
    """Whether `set -u` is on."""
    unread: str = ""
    """A sourced file that nobody could read, as a sentence: what it defines is unknown."""
    budget: Budget = field(default_factory=Budget)
    file: Callable[[str], str | None] = lambda name: None
    """The text of a file by the name the script uses, where it is known."""
    called: Callable[[str, list[str]], str | None] = lambda name, arguments: None
    """What a function of the script prints; None for any other name, and where nobody knows."""
    name: str = "./script.sh"
    """What `$0` is: the script, seen from its folder."""

    def opaque(self, kind: Kind, detail: str, beside: str = "") -> str:
        """A marker string standing for an unknown value."""
        entry = Opaque(kind, detail, beside)
        if entry not in self.opaques:
            self.budget.take(OPAQUE_BYTES + len(detail))
            self.opaques[entry] = len(self.opaques)
        return marker(self.opaques[entry])

    def why(self, text: str) -> list[Opaque]:
        """The reasons a string is not fully known, in order; empty when it is."""
        found = dict.fromkeys(OPAQUE.findall(text))
        if not found:
            return []
        entries = list(self.opaques)
        self.budget.step(len(found))
        return [entries[number_of(digits)] for digits in found]

    def show(self, text: str) -> str:
        """The string as a user may read it: unknown parts as `$NAME` or `<command>`."""
        entries = list(self.opaques) if OPAQUE.search(text) else []
        return OPAQUE.sub(lambda match: shown(entries[number_of(match[1])]), text)

    def read(self, name: str) -> Value:
        """Value of a variable, opaque when unset."""
        self.budget.step()
        self.used.add(name)
        if name in self.variables:
            return self.variables[name]
        if name in "@*":
            if "@" in self.variables:
                return self.variables["@"]
            self.notes["extra arguments of the script ($@) are taken as none"] = None
            return []
        if name == "#":
            self.asked |= "@" not in self.variables
            return str(len(self.variables.get("@", [])))
        if name in "?!$-":
            return self.opaque("unsupported", f"${name}")
        if name in ("0", "BASH_SOURCE"):
            return self.name
        if name in SHELL_OWN:
            return self.opaque("command", f"${name}")
        if name.isdigit():
            return self.opaque("positional", f"${name}")
        return self.opaque("undefined", f"${name}", self.unread)


class Words(Values, ABC):
    """Values, and raw words expanded over them: what the operations inside a word (`${name…}`, `$(command)`) ask for.
    `importers.shell.expand.Expander` is the one there is.
    """

    __slots__ = ()

    @abstractmethod
    def text(self, raw: str) -> str:
        """Expand to one string, without word splitting (assignments, heredocs, case words)."""

    @abstractmethod
    def pattern(self, raw: str) -> str:
        """Expand to a glob, in which a backslash stands before what was quoted."""

    @abstractmethod
    def fields(self, raw: str) -> list[str]:
        """Expand to the fields a command receives, with word splitting of what is unquoted."""

    @abstractmethod
    def heredoc(self, body: str) -> str:
        """Expand variables in a heredoc body; quotes are plain characters there."""

    @abstractmethod
    def arithmetic(self, expression: str) -> str:
        """Value of `$(( expression ))`; unknown operands make it opaque, with their reason."""
