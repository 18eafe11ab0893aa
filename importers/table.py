"""A framework's keys as one table, and the engine that reads a file by it.

    TABLE = table(read='''
        whole 1                   | num_layers=model.layers hidden_size=model.hidden
        number 0 <1               | hidden_dropout
        word full selective       | recompute_granularity
    ''', idle="text | save load")
    values = Values(TABLE, {"num_layers": 24, "sav": "x"}, ledger, asked={"model.layers": 12})
    values.whole("num_layers")             # 12: what --set says of a key's target counts instead of the file
    values.account()                       # what nobody read: without effect, left out of the forecast, unknown

A row is `TYPE BOUNDS | KEY=TARGET …`; the target is the key of a run that the value is, unchanged (`KEY~TARGET`: the
file's word for that key, with a meaning of its own). Types: whole, open
(a count, or -1 for the framework's default), number, switch, word, text, list, object, any. Bounds: `1` at least, `>0`
above, `<1` below, `..1` at most. `untimed` marks keys that change what is learnt or how long, not what a step costs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plan.ledger import MOST_HINTS, MOST_NAME, Ledger, set_path
from program.nearest import nearest_name

Effect = Literal["read", "idle", "left out"]
MATTERS = re.compile(
    r"attention|attn|head|layer|hidden|ffn|mlp|norm|embed|rotary|rope|position|window|expert|moe|glu|relu|gelu|bias"
    r"|vocab|precision|fp[0-9]|bf16|dtype|quant|parallel|pipeline|tensor|shard|fsdp|zero|recompute|activation"
    r"|offload|query|kv|seq|batch|residual|tie|dropout|optimizer"
)
"""Names of keys that change architecture, precision, layout or memory."""
NEUTRAL: tuple[object, ...] = (None, False, 0, 1, -1, "", "none", "null", [], {})
"""Values that leave most keys without effect."""
NEAR = 0.8
"""How alike a known name must be to be suggested."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its type and bounds, the run's key it is, and what becomes of it."""

    name: str
    kind: str
    bounds: dict[str, float] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    target: str = ""
    word_for: str = ""
    untimed: bool = False
    effect: Effect = "read"
    reason: str = ""


Table = dict[str, Key]


def table(read: str, idle: str = "", left_out: Mapping[str, str] | None = None, prefix: str = "") -> Table:
    """The table of rows; `left_out` has the rows of each reason, `prefix` stands before every name."""
    found: Table = {}
    parts: list[tuple[Effect, str, str]] = [("read", "", read), ("idle", "", idle)]
    parts += [("left out", reason, rows) for reason, rows in (left_out or {}).items()]
    for effect, reason, rows in parts:
        form: dict[str, Any] = {}
        for row in rows.splitlines():
            head, bar, names = row.rpartition("|")
            form = _form(head.split()) if bar else form
            for word in names.split():
                name, _, target = word.partition("=")
                name, _, word_for = name.partition("~")
                assert f"{prefix}{name}" not in found, f"{name} stands twice"
                found[f"{prefix}{name}"] = Key(
                    f"{prefix}{name}", **form, target=target, word_for=word_for or target, effect=effect, reason=reason
                )
    return found


def _form(words: list[str]) -> dict[str, Any]:
    """Type, bounds and words of a row."""
    kind, *rest = words
    untimed = "untimed" in rest
    rest = [word for word in rest if word != "untimed"]
    if kind == "word":
        return {"kind": kind, "words": tuple(rest), "untimed": untimed}
    signs = {">": "above", "<": "below", "..": "most", "": "least"}
    bounds = {}
    for word in rest:
        sign = next(sign for sign in signs if word.startswith(sign))
        bounds[signs[sign]] = float(word[len(sign) :]) if "." in word[len(sign) :] else int(word[len(sign) :])
    return {"kind": kind, "bounds": bounds, "untimed": untimed}


def words(keys: Table) -> dict[str, str]:
    """The run's keys and the file's words for them."""
    return {key.word_for: key.name for key in keys.values() if key.word_for}


def reworded(sentence: str, names: Mapping[str, str]) -> str:
    """A sentence about a run in the words of its file: `tensor_parallel 3` as `--tensor-model-parallel-size 3`."""
    for key, word in names.items():
        last = key.rpartition(".")[2]
        bare = rf"(?<![\w.-]){re.escape(last)}(?![\w-])" + ("" if "_" in last else r"(?= \d)")
        sentence = re.sub(rf"(?<![\w-]){re.escape(key)}(?!\w)|{bare}", word, sentence)
    return sentence


class Values:
    """The keys of one file. A value is read when it is asked for, once; a wrong one is a problem under the name that
    was written, and None. Null is not given."""

    kind = "key"
    sections: str | None = None
    """Where an unknown key may be refused, as a pattern of names; None: nowhere."""

    def __init__(
        self,
        keys: Table,
        given: Mapping[str, Any],
        ledger: Ledger,
        asked: Mapping[str, Any] | None = None,
        written: Mapping[str, str] | None = None,
    ) -> None:
        self.table, self.ledger, self.written = keys, ledger, dict(written or {})
        self.given: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.wrong: set[str] = set()
        self.touched: set[str] = set()
        self.cache: dict[str, Any] = {}
        self.lay(asked or {})

    def lay(self, asked: Mapping[str, Any]) -> None:
        """What the command line says instead of the file."""
        for key in self.table.values():
            if key.target in asked and isinstance(asked[key.target], bool | int | float | str):
                self.given[key.name] = asked[key.target]

    def name(self, key: str) -> str:
        """A key as the file writes it."""
        return self.written.get(key, key)

    def has(self, key: str) -> bool:
        """Whether a key is given; counts as read."""
        self.touched.add(key)
        return key in self.given

    def whole(self, key: str, default: int | None = None) -> int | None:
        """A whole number in the key's bounds; `default` where it is not given or left open, None where it is wrong."""
        found = self._read(key, default)
        return None if found is None else int(found)

    def number(self, key: str, default: float | None = None) -> float | None:
        """A number in the key's bounds."""
        found = self._read(key, default)
        return found if found is None or isinstance(found, int | float) else None

    def on(self, key: str, default: bool = False) -> bool:
        """Whether a switch is on."""
        return bool(self._read(key, default))

    def text(self, key: str, default: str | None = None) -> str | None:
        """A word or a text; `default` also where it is wrong."""
        found = self._read(key, default)
        return default if found is None else str(found)

    def run(self, *sections: str) -> dict[str, Any]:
        """The values that keys of a run are, unchanged: {"layers": 24, "rope": {"theta": 10000}} of section "model"."""
        found: dict[str, Any] = {}
        for key in self.table.values():
            section, _, rest = key.target.partition(".")
            if section in sections and key.name in self.given:
                set_path(found, rest if len(sections) == 1 else key.target, self._read(key.name, None))
        return found

    def check(self) -> None:
        """Read every key now, so that a wrong value is a problem whether or not it is asked for."""
        before = set(self.touched)
        for name in self.given:
            if name in self.table and self.table[name].effect != "idle":
                self._read(name, None)
        self.touched = before

    def _read(self, name: str, default: Any) -> Any:
        if not self.has(name):
            return default
        if name not in self.cache:
            self.cache[name] = found = self.legal(self.table[name], self.given[name])
            if found is None:
                self.wrong.add(name)
        return None if name in self.wrong else default if self.cache[name] is OPEN else self.cache[name]

    def legal(self, key: Key, value: Any) -> Any:
        """A value as its type; None and a problem where it is none; OPEN where the file leaves it to the framework."""
        where, ledger = self.name(key.name), self.ledger
        match key.kind:
            case "open" if value == -1:
                return OPEN
            case "whole" | "open":
                number = ledger.integer(value, where, int(key.bounds.get("least", 1)))
                most = key.bounds.get("most", number)
                if number is not None and most is not None and number > most:
                    ledger.problem(f"{where} is {number}; it must be at most {most}")
                    return None
                return number
            case "number":
                return ledger.number(value, where, **key.bounds)
            case "switch":
                return OPEN if value == "" else ledger.boolean(value, where)
            case "word":
                return ledger.choice(value, where, key.words)
            case "list" | "any" | "text" | "object" | "section":
                return value
        raise AssertionError(key.kind)

    def idle(self, key: str, reason: str) -> None:
        """Note that a key, if given, has no effect for `reason`."""
        if self.has(key):
            self.ledger.note(f"{self.name(key)} has no effect {reason}")

    def account(self, accept_unknown: bool = False) -> None:
        """Speak of every key that was not read. One that nobody knows is refused where its name says that it changes
        the model, its precision, its layout or its memory, unless `accept_unknown`."""
        if not accept_unknown:
            strange = {key: self.said(key) for key in self.given if key not in self.touched and self.find(key) is None}
            self.touched |= refuse(
                self.kind, {key: said for key, said in strange.items() if self.may_matter(key)}, self
            )
        rest = [name for name in self.given if name not in self.touched]
        found = {name: key for name in rest if (key := self.find(name)) is not None}
        reasons: dict[str, list[str]] = {}
        for name, key in found.items():
            if key.effect == "left out":
                reasons.setdefault(key.reason, []).append(self.said(name))
        for reason, names in reasons.items():
            self.ledger.warn(f"{', '.join(names)}: {reason}")
        self.ledger.no_effect(
            [self.name(each) for each, key in found.items() if key.effect != "left out"], f"{self.kind}s"
        )
        unknown(self.kind, [self.name(name) for name in rest if name not in found], list(self.table), self.ledger)

    def may_matter(self, name: str) -> bool:
        """Whether an unknown key is in a section where it must not be left out, and has a value that does something."""
        inside = self.sections is not None and re.match(self.sections, name)
        return bool(inside and MATTERS.search(name) and self.given[name] not in NEUTRAL)

    def find(self, name: str) -> Key | None:
        """The row of a key, or of the section that it is in, if all else in that section is without effect."""
        if name in self.table or "." not in name:
            return self.table.get(name)
        above = self.find(name.rpartition(".")[0])
        return above if above is not None and (above.effect != "read" or above.kind == "section") else None

    def said(self, key: str) -> str:
        """A key with its value, for a sentence."""
        return self.name(key)


def nested(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        path = f"{prefix}{key}"
        flat |= nested(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


class _Open:
    """The value of a key that the file leaves to the framework."""


OPEN = _Open()


def refuse(kind: str, names: Mapping[str, str], values: Values) -> set[str]:
    """A problem about each unknown name that may matter; `names`: the names and how they are shown."""
    for number, (name, said) in enumerate(names.items()):
        near = hint(name, list(values.table)) if number < MOST_HINTS else None
        values.ledger.problem(
            f"unknown {kind} {said}: it may change the model, its precision, its layout or its memory;"
            + (f" did you mean {near}?" if near else "")
            + " --accept-unknown forecasts the run without it"
        )
    return set(names)


def unknown(kind: str, names: list[str], known: list[str], ledger: Ledger) -> None:
    """One sentence about all unknown names, each with the known one that is near."""
    if not names:
        return
    parts = []
    for number, name in enumerate(names):
        near = hint(name, known) if number < MOST_HINTS else None
        parts.append(f"{name}{f' (did you mean {near}?)' if near else ''}")
    plural = len(names) > 1
    ledger.unapplied(
        f"unknown {kind}{'s' if plural else ''} {', '.join(parts)}: {'they are' if plural else 'it is'} not applied"
    )


def hint(name: str, known: list[str]) -> str | None:
    """The known name that is near an unknown one, if any is: by the whole name, else by its last part, in any order of
    words."""
    if len(name) > MOST_NAME:
        return None
    bare = {each.lstrip("-"): each for each in known}
    near = nearest_name(name.lstrip("-"), bare, NEAR)
    if near is None:
        section, dot, last = name.rpartition(".")
        beside = {_sorted(each.rpartition(".")[2]): each for each in bare if each.startswith(f"{section}{dot}")}
        alike = nearest_name(_sorted(last), beside, NEAR)
        near = alike and beside[alike]
    return near and f"{'--' if name.startswith('--') else ''}{near}"


def _sorted(name: str) -> str:
    return "_".join(sorted(name.strip("-").replace("-", "_").split("_")))
