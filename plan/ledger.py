"""What an importer says about its input: notes, warnings and problems, and the reading of single values.

Nothing in an imported file may vanish silently. Every key ends in exactly one of four ways: translated, named among
those without effect on the forecast, reported unknown with the nearest known name, or refused. `Ledger` collects these
sentences; `refuse()` raises the problems together as one `InputError`.

    ledger = Ledger()
    micro = ledger.integer("5e8", "reduce_bucket_size")      # 500000000; a bad value becomes a problem and None
    ledger.unknown("gradient_clipp1ng", KNOWN_KEYS, "DeepSpeed key")
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from program import numbers
from program.errors import InputError, NotYetForecast
from program.nearest import nearest_name, shown

TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "0"})
MOST_NUMBER = 2**63
"""Counts of more than 64 bits are mistakes, and their products are no floats."""
MOST_HINTS, MOST_NAME = 50, 100
"""Unknown names, and characters in one, for which the nearest known name is looked for: it takes milliseconds each."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """What the file left open and how it was decided: `flag` in the words of the user's file (or `--set KEY=VALUE`)
    changes it, and `moves` says what would change: "memory and step time"."""

    subject: str
    value: str
    flag: str
    moves: str


@dataclass(slots=True)
class Ledger:
    """Collected sentences about one input. `strict` turns unknown names into problems instead of warnings."""

    strict: bool = False
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    not_forecast: list[str] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)
    unknowns: list[str] = field(default_factory=list)
    """The warnings about unknown names: a refusal repeats them, because a misspelt key may be its cause."""
    said: set[tuple[int, str]] = field(default_factory=set, repr=False)
    """Each sentence with the list that it is in, so that saying it again takes no search."""

    def note(self, sentence: str) -> None:
        """A fact about the translation that changes nothing for the reader's trust."""
        self._say(self.notes, sentence)

    def warn(self, sentence: str) -> None:
        """Something the reader probably did not mean, or that was assumed."""
        self._say(self.warnings, sentence)

    def problem(self, sentence: str) -> None:
        """Something that makes the input wrong."""
        self._say(self.problems, sentence)

    def assume(self, subject: str, value: str, flag: str, moves: str) -> None:
        """The file left `subject` open; the answer's first block lists it. The last word on a subject counts."""
        self.assumptions[:] = [found for found in self.assumptions if found.subject != subject]
        self.assumptions.append(Assumption(subject, value, flag, moves))

    def _say(self, kind: list[str], sentence: str) -> None:
        if (id(kind), sentence) not in self.said:
            self.said.add((id(kind), sentence))
            kind.append(sentence)

    def not_yet(self, what: str, nearest: str) -> None:
        """Something real that is not forecast yet, with the nearest supported plan."""
        sentence = f"not yet forecast: {what}; nearest supported: {nearest}"
        if sentence not in self.not_forecast:
            self.not_forecast.append(sentence)

    def unknown(self, name: str, known: Iterable[str], kind: str, inside: str = "") -> None:
        """An unknown name (in the section `inside`): a warning with the nearest known one; a problem when strict."""
        name = str(name)  # a key of a YAML file may be a number
        searched = len(self.unknowns) < MOST_HINTS and len(name) <= MOST_NAME
        hint = nearest(name, known) if searched else None
        dashes = name[: len(name) - len(name.lstrip("-"))]
        sentence = f"unknown {kind} {inside}{'.' if inside else ''}{name}: it is not applied" + (
            f"; did you mean {dashes}{hint}?" if hint else ""
        )
        self.unapplied(sentence)

    def unapplied(self, sentence: str) -> None:
        """A sentence about an unknown name: a warning that a refusal repeats; a problem when strict."""
        (self.problem if self.strict else self.warn)(sentence)
        if not self.strict:
            self._say(self.unknowns, sentence)

    def no_effect(self, names: Iterable[str], kind: str) -> None:
        """One note that lists the known names that do not change the forecast."""
        listed = sorted(set(names))
        if listed:
            self.note(f"no effect on the forecast ({kind}): {', '.join(listed)}")

    def reword(self, say: Callable[[str], str]) -> None:
        """Every sentence as `say` says it."""
        for kind in (self.notes, self.warnings, self.problems, self.not_forecast, self.unknowns):
            kind[:] = map(say, kind)
        self.assumptions[:] = [replace(each, value=say(each.value), flag=say(each.flag)) for each in self.assumptions]

    def refuse(self) -> None:
        """Raise what is wrong, all at once: `InputError`, or `NotYetForecast` when nothing is wrong but something is
        not forecast.
        """
        if self.problems:
            raise InputError([*self.problems, *self.not_forecast, *self.unknowns])
        if self.not_forecast:
            raise NotYetForecast([*self.not_forecast, *self.unknowns])

    def integer(self, value: object, where: str, least: int | None = None) -> int | None:
        """Read an integer of at least `least`; accepts 5e8, "5e8", 1_000_000 and 1e9 as a float. None and a problem
        otherwise."""
        number = self.number(value, where, least=least)
        if number is None:
            return None
        if isinstance(number, float) and not number.is_integer():
            near = round(number) if least is None else max(least, round(number))
            self.problem(f"{where} is {value}, but must be a whole number (nearest: {near})")
            return None
        return int(number)

    def number(
        self,
        value: object,
        where: str,
        *,
        least: float | None = None,
        above: float | None = None,
        most: float | None = None,
        below: float | None = None,
    ) -> int | float | None:
        """Read a finite number from a number or a string, within the bounds given. None and a problem otherwise."""
        number = value if isinstance(value, int) and not isinstance(value, bool) else as_number(value)
        if number is None:
            self.problem(f"{where} is {shown(value)}, but must be a number")
            return None
        if abs(number) >= MOST_NUMBER:
            digits = str(value)
            given = digits if len(digits) <= 40 else f"a number of {len(digits)} characters"
            self.problem(f"{where} is {given}; it must be below 2^63, which is {MOST_NUMBER}")
            return None
        broken = {
            f"at least {least}": least is not None and number < least,
            f"above {above}": above is not None and number <= above,
            f"at most {most}": most is not None and number > most,
            f"below {below}": below is not None and number >= below,
        }
        for rule in (rule for rule, is_broken in broken.items() if is_broken):
            self.problem(f"{where} is {value}; it must be {rule}")
        return None if any(broken.values()) else number

    def boolean(self, value: object, where: str) -> bool | None:
        """Read a boolean from true/false, yes/no, on/off, 1/0 in any case."""
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
        self.problem(f"{where} is {shown(value)}, but must be true or false")
        return None

    def choice(self, value: object, where: str, known: Sequence[str]) -> str | None:
        """Read one of the words that are `known`; None and a problem with the nearest of them otherwise."""
        if isinstance(value, str) and value in known:
            return value
        near = nearest_name(value, known) if isinstance(value, str) else None
        hint = f"; the nearest is {near!r}" if near else ""
        self.problem(f"{where} is {shown(value)}; it must be one of {', '.join(known)}{hint}")
        return None


def as_number(value: object) -> int | float | None:
    """A finite number from an int, float or string such as "5e8", "1_000_000", "0.97e-4"; None when it is not one."""
    try:
        return numbers.number(value)
    except ValueError:
        return None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when nothing is close."""
    return nearest_name(name.lstrip("-"), [each.lstrip("-") for each in known], cutoff=0.55)


def set_path(run: dict[str, object], dotted: str, value: object) -> None:
    """Set `run["a"]["b"]` from "a.b", making the dictionaries between."""
    *parents, last = dotted.split(".")
    here = run
    for parent in parents:
        inner = here.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InputError(f"{dotted}: {parent} is already {inner!r}, not a group of keys")
        here = inner
    here[last] = value
