"""The command tree of a launch script: one small record for each construct of the shell. Words in it stay as they are
written, quotes and `$` included.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Assign:
    """`NAME=value`, `NAME+=value` or, with `items`, an array literal; `index` is what stands in `NAME[index]=`."""

    name: str
    append: bool
    value: str = ""
    items: list[str] | None = None
    index: str | None = None


@dataclass(slots=True)
class Heredoc:
    """Text between `<<EOT` and `EOT`; `quoted` means that variables in it stay as they are."""

    body: str
    quoted: bool


@dataclass(slots=True)
class Simple:
    """One command: leading assignments, raw words, redirections (operator, target) and heredocs."""

    line: int
    assigns: list[Assign] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)
    heredocs: list[Heredoc] = field(default_factory=list)


@dataclass(slots=True)
class Arithmetic:
    """`(( expression ))`."""

    line: int
    expression: str


@dataclass(slots=True)
class Pipeline:
    """`a | b`; `negated` for `! a`."""

    parts: list["Node"]
    negated: bool


@dataclass(slots=True)
class Chain:
    """`a && b || c`: the first node, then (operator, node) pairs."""

    first: "Node"
    rest: list[tuple[str, "Node"]]


@dataclass(slots=True)
class If:
    """`if`/`elif` branches as (condition, body), and the `else` body."""

    line: int
    branches: list[tuple[list["Node"], list["Node"]]]
    otherwise: list["Node"]


@dataclass(slots=True)
class For:
    """`for NAME in words; do body; done`."""

    line: int
    name: str
    words: list[str]
    body: list["Node"]


@dataclass(slots=True)
class While:
    """`while` or `until`; `for (( first; condition; after ))`, where no condition is always true."""

    line: int
    body: list["Node"]
    condition: list["Node"] = field(default_factory=list)
    until: bool = False
    first: list["Node"] = field(default_factory=list)
    after: list["Node"] = field(default_factory=list)


@dataclass(slots=True)
class Case:
    """`case word in pattern) body ;; esac`; an arm ends in `;;`, `;&` (the next body too) or `;;&` (look further)."""

    line: int
    word: str
    arms: list[tuple[list[str], list["Node"], str]]


@dataclass(slots=True)
class Function:
    """`name() { body; }`."""

    name: str
    body: list["Node"]


@dataclass(slots=True)
class Group:
    """`{ ...; }` or, with `apart`, `( ... )` and `... &`, which keep their variables to themselves."""

    body: list["Node"]
    apart: bool = False


Node = Simple | Arithmetic | Pipeline | Chain | If | For | While | Case | Function | Group
