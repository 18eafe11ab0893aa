"""The flags of one Megatron command: which were given, with which values, and what nobody translated.

    arguments = Arguments.parse(words, script.expander, ledger)
    arguments.whole("--num-layers")            # 96; a missing or unknown value is a problem that names it
    arguments.account()                        # the rest: no effect, not modelled, unknown

Both `--flag value` and `--flag=value` are read. Old flag names are rewritten with a note. A flag given twice takes its
last value, as in argparse, with a warning.
"""

from collections import deque
from collections.abc import Container, Mapping
from typing import Any

from importers import megatron_table as flags
from importers.shell.expand import Expander
from importers.table import MATTERS, OPEN, Key, Values
from plan.ledger import Ledger


class Arguments(Values):
    """Flags as given (new names) and those already translated; `written`: new name → the old one that was written."""

    kind = "flag"

    def __init__(self, expander: Expander, ledger: Ledger) -> None:
        super().__init__(flags.FLAGS, {}, ledger)
        self.expander = expander

    @classmethod
    def parse(
        cls, words: tuple[str, ...], expander: Expander, ledger: Ledger, asked: Mapping[str, Any] | None = None
    ) -> "Arguments":
        """Group the words of a command into flags and values; `asked` counts instead of the flags."""
        arguments = cls(expander, ledger)
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
                idle = flag in flags.FLAGS and flags.FLAGS[flag].effect == "idle"
                (ledger.warn if idle else ledger.problem)(f"{flag} needs {many}, but none follows it")
                continue
            arguments._add(flag, [_unquoted(value) for value in values])
        arguments.lay({target: str(value) for target, value in (asked or {}).items()})
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
        value = " ".join(values)
        if flag in self.given and self.given[flag] != value:
            before, now = (self.expander.show(each) or "(none)" for each in (self.given[flag], value))
            self.ledger.warn(f"{flag} is given twice, {before} and {now}: the last one counts")
        self.given[flag] = value

    def _renamed(self, flag: str, values: list[str]) -> tuple[str, list[str]]:
        new, remark = flags.RENAMED[flag]
        first, *rest = new.split()
        self.ledger.note(f"{flag} is an old form of {new}" + (f": {remark}" if remark else ""))
        self.written[first] = flag
        rest = [" ".join(values) if word == "VALUE" else word for word in rest]
        for name, value in zip(rest[1::2], rest[2::2], strict=True):
            self.given.setdefault(name, value)
        return first, rest[:1] or values

    def legal(self, key: Key, value: Any) -> Any:
        """The value as its type; a problem that names the variable where it is unknown."""
        if key.kind == "switch":
            return True
        reasons = self.expander.why(str(value))
        if not reasons:
            return super().legal(key, value)
        sentence = f"{key.name} is {self.expander.show(str(value))}, whose value is unknown: {reasons[0].sentence()}"
        if not key.untimed or reasons[0].kind == "undefined":
            self.ledger.problem(sentence)
            return None
        self.ledger.warn(f"{sentence}; its default is taken, which changes neither step time nor memory")
        return OPEN

    def file(self, flag: str, written: Container[str]) -> str | None:
        """The value of a flag that names a file; a name not fully known serves when the script wrote that file."""
        name = self.given.get(flag, "")
        return name if self.has(flag) and name in written else self.text(flag)

    def shown(self, flag: str) -> str | None:
        """The value as a user may read it, unknown parts as their names; for values that only give a hint."""
        return self.expander.show(self.given[flag]) if self.has(flag) else None

    def said(self, key: str) -> str:
        """A flag with its value."""
        return " ".join([key, *([self.expander.show(self.given[key])] if self.given[key] else [])])

    def find(self, name: str) -> Key | None:
        """The row of a flag; one that is known by its family only has no effect."""
        return flags.FLAGS.get(name) or (Key(name, "list", effect="idle") if flags.family(name) else None)

    def may_matter(self, name: str) -> bool:
        """A flag that stands there does something, whatever its value."""
        return bool(MATTERS.search(name))

    def account(self, accept_unknown: bool = False) -> None:
        """Account for every flag that was not translated, and for what is unknown in its value."""
        for flag in self.given:
            if flag not in self.touched:
                self._mention_unknown(flag)
        super().account(accept_unknown)

    def _mention_unknown(self, flag: str) -> None:
        for reason in self.expander.why(self.given[flag]):
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
