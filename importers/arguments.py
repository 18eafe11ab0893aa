"""The flags of one Megatron command: which were given, with which values, and what nobody translated.

    arguments = Arguments.parse(words, script.expander, ledger)
    arguments.integer("--num-layers")          # 96; a missing or unknown value is a problem that names it
    arguments.finish()                         # the rest: no effect, not modelled, unknown

Both `--flag value` and `--flag=value` are read. Old flag names are rewritten with a note. A flag given twice takes its
last value, as in argparse, with a warning.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

from importers import flags
from importers.flag_ranges import RANGES
from importers.flag_words import WORDS
from importers.shell.expand import Expander
from plan.ledger import MOST_HINTS, MOST_NAME, Ledger, nearest


@dataclass(slots=True)
class Arguments:
    """Flags as given (new names) and those already translated."""

    ledger: Ledger
    expander: Expander
    given: dict[str, list[str]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    old: dict[str, str] = field(default_factory=dict)
    """For every flag that was written under an old name: that name."""

    @classmethod
    def parse(cls, words: tuple[str, ...], expander: Expander, ledger: Ledger) -> "Arguments":
        """Group the words of a command into flags and values."""
        arguments = cls(ledger, expander)
        queue = deque(words)
        while queue:
            word = queue.popleft()
            if not is_flag(word):
                arguments._stray(word)
                continue
            flag, equals, inline = word.partition("=")
            values = [inline] if equals else []
            limit = flags.arity(flag) or flags.Arity(0, None)
            while queue and not is_flag(queue[0]) and (limit.most is None or len(values) < limit.most):
                values.append(queue.popleft())
            if len(values) < limit.least:
                many = "a value" if limit.least == 1 else f"{limit.least} values"
                (ledger.warn if flag in flags.NO_EFFECT else ledger.problem)(
                    f"{flag} needs {many}, but none follows it"
                )
                continue
            arguments._add(flag, [_unquoted(value) for value in values])
        return arguments

    def _stray(self, word: str) -> None:
        reasons = self.expander.why(word)
        if reasons:
            self.ledger.problem(
                f"the training command contains {self.expander.show(word)}, whose value is unknown:"
                f" {reasons[0].sentence()}; the flags in it would be missing. Define it in the script, or delete it"
            )
        elif word.strip():
            self.ledger.warn(f"{word!r} belongs to no flag; it is not applied")

    def _add(self, flag: str, values: list[str]) -> None:
        if flag in flags.RENAMED:
            flag, values = self._renamed(flag, values)
        if flag in self.given and self.given[flag] != values:
            before, now = (" ".join(map(self.expander.show, each)) or "(none)" for each in (self.given[flag], values))
            self.ledger.warn(f"{flag} is given twice, {before} and {now}: the last one counts")
        self.given[flag] = values

    def _renamed(self, flag: str, values: list[str]) -> tuple[str, list[str]]:
        new, remark = flags.RENAMED[flag]
        first, *rest = new.split()
        self.ledger.note(f"{flag} is an old form of {new}" + (f": {remark}" if remark else ""))
        self.old[first] = flag
        rest = [" ".join(values) if word == "VALUE" else word for word in rest]
        for name, value in zip(rest[1::2], rest[2::2], strict=True):
            self.given.setdefault(name, [value])
        return first, rest[:1] or values

    def override(self, values: dict[str, object]) -> None:
        """What the command line says instead of a flag."""
        self.given |= {flag: [str(value)] for flag, value in values.items()}

    def has(self, flag: str) -> bool:
        """Whether a flag was given; counts as translated."""
        self.read.add(flag)
        return flag in self.given

    def text(self, flag: str, default: str | None = None) -> str | None:
        """The value of a flag; a problem naming the variable when it is unknown."""
        if not self.has(flag):
            return default
        value = " ".join(self.given[flag])
        reasons = self.expander.why(value)
        if reasons:
            sentence = f"{flag} is {self.expander.show(value)}, whose value is unknown: {reasons[0].sentence()}"
            if flag in flags.WITHOUT_TIME and reasons[0].kind != "undefined":
                self.ledger.warn(f"{sentence}; its default is taken, which changes neither step time nor memory")
            else:
                self.ledger.problem(sentence)
            return default
        words = WORDS.get(flag)
        return value if words is None else self.ledger.choice(value, self.old.get(flag, flag), words) or default

    def file(self, flag: str, written: Container[str]) -> str | None:
        """The value of a flag that names a file; a name not fully known serves when the script wrote that file."""
        name = " ".join(self.given.get(flag, []))
        return name if self.has(flag) and name in written else self.text(flag)

    def idle(self, flag: str, reason: str) -> None:
        """Note that a flag, if given, has no effect for `reason`; counts as translated."""
        if self.has(flag):
            self.ledger.note(f"{flag} has no effect {reason}")

    def shown(self, flag: str) -> str | None:
        """The value as a user may read it, unknown parts as their names; for values that only give a hint."""
        return self.expander.show(" ".join(self.given[flag])) if self.has(flag) else None

    def integer(self, flag: str, default: int | None = None) -> int | None:
        """The value as a whole number in the flag's range; None and a problem when it is none."""
        value = self.text(flag)
        least = RANGES.get(flag, {}).get("least")
        return default if value is None else self.ledger.integer(value, self.old.get(flag, flag), least)

    def number(self, flag: str, default: float | None = None) -> float | None:
        """The value as a number in the flag's range; None and a problem when it is none."""
        value = self.text(flag)
        bounds = RANGES.get(flag, {})
        return default if value is None else self.ledger.number(value, self.old.get(flag, flag), **bounds)

    def finish(self, accept_unknown: bool = False) -> None:
        """Account for every flag that was not translated. One that nobody knows is refused where its name says that
        it changes the model, its precision, its layout or its memory, unless `accept_unknown`.
        """
        without: list[str] = []
        refused = 0
        for flag, values in self.given.items():
            if flag in self.read:
                continue
            what = flags.family(flag)
            if flag in flags.UNMODELLED:
                self.ledger.warn(f"{' '.join([flag, *map(self.expander.show, values)])}: {flags.UNMODELLED[flag][1]}")
            elif flag in flags.NO_EFFECT or what is not None or flag in flags.TRANSLATED:
                without.append(flag)
            elif accept_unknown or not flags.MATTERS.search(flag):
                self.ledger.unknown(flag, flags.known_flags(), "flag")
            else:
                refused += 1
                near = nearest(flag, flags.known_flags()) if refused <= MOST_HINTS and len(flag) <= MOST_NAME else None
                written = " ".join([flag, *map(self.expander.show, values)])
                self.ledger.problem(
                    f"unknown flag {written}: it may change the model, its precision, its layout or its memory;"
                    + (f" did you mean --{near.lstrip('-')}?" if near else "")
                    + " --accept-unknown forecasts the run without it"
                )
            self._mention_unknown(flag, values)
        self.ledger.no_effect(without, "flags")

    def _mention_unknown(self, flag: str, values: list[str]) -> None:
        for reason in {each for value in values for each in self.expander.why(value)}:
            if reason.kind == "undefined":
                self.ledger.note(
                    f"{flag} uses {reason.detail}, which is not defined in the script; it does not matter for the"
                    " forecast"
                )


def is_flag(word: str) -> bool:
    """Whether a word is a flag and not a value such as -1 or a lone dash."""
    return (word.startswith("--") and len(word) > 2) or (len(word) > 1 and word[0] == "-" and word[1].isalpha())


def _unquoted(value: str) -> str:
    """Without quotes that survived inside a variable (`ARGS="--method 'type:x'"`)."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
