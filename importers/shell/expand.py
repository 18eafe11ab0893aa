"""Words of a script expanded: variables, defaults, arrays, arithmetic, quoting and word splitting. Nothing is ever
executed; what cannot be known becomes opaque (`importers.shell.values`).
"""

import re

from importers.shell.arithmetic import evaluate
from importers.shell.budget import Budget, pieces
from importers.shell.grammar import MAXIMUM_NESTING, PLACEHOLDER
from importers.shell.opaque import OPAQUE, cut, plain
from importers.shell.operate import operate
from importers.shell.splitting import BLANKS, split
from importers.shell.substitute import substitute
from importers.shell.values import HOLE, Value, Words, first
from program.errors import InputError

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
BACKQUOTED = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
PLAIN = re.compile(r"""[^\\'"$`]+""")
PLAIN_QUOTED = re.compile(r"""[^\\"$`]+""")
PLAIN_HERE = re.compile(r"""[^\\$`]+""")
FIELD_BYTES = 64
"""What a word takes besides its characters."""
ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))")
"""`X++` and `X += …`."""
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")


def _escaped(match: re.Match[str]) -> str:
    """One escape of `$'…'`."""
    if match[4]:
        return ESCAPES.get(match[4], match[4])
    return chr(int(match[1] or match[2] or match[3], 8 if match[3] else 16))


CLOSERS = {"(": ")", "{": "}", "[": "]", "'": "'", '"': '"', "`": "`"}
SPECIAL = re.compile(r"""\\.|\$[({]|['"`(){}\[\]]""", re.DOTALL)
OPENERS = {")": "'\"`(", "}": "'\"`", "]": "'\"`[", '"': "`", "'": "", "`": ""}
"""What opens something inside each bracket or quote, besides `$(` and `${`."""


def bracketed(raw: str, start: int, line: int) -> int:
    """The place after the partner of the bracket at `start` of a raw word, quotes respected."""
    inside, at = [CLOSERS[raw[start]]], start + 1
    while match := SPECIAL.search(raw, at):
        mark, at, closer = match.group(), match.end(), inside[-1]
        if mark == closer:
            inside.pop()
            if not inside:
                return at
        elif closer == "'":
            at = match.start() + 1
        elif (mark[0] == "$" and closer != "`") or mark in OPENERS[closer]:
            inside.append(CLOSERS[mark[-1]])
            if len(inside) > MAXIMUM_NESTING:
                raise InputError(
                    f"line {line}: brackets and quotes nest {len(inside)} deep; at most {MAXIMUM_NESTING} are read"
                )
    raise InputError(f"{cut(raw[start:], 60)!r}: {raw[start]} is never closed")


class Expander(Words):
    """Expands raw words over the variables of a script."""

    __slots__ = ()

    def text(self, raw: str) -> str:
        """Expand to one string, without word splitting (assignments, heredocs, case words)."""
        return " ".join(_Walk(self, raw, split=False).fields())

    def pattern(self, raw: str) -> str:
        """Expand to a glob, in which a backslash stands before what was quoted."""
        return " ".join(_Walk(self, raw, split=False, glob=True).fields())

    def fields(self, raw: str) -> list[str]:
        """Expand to the fields a command receives, with word splitting of what is unquoted."""
        return _Walk(self, raw, split=True).fields()

    def heredoc(self, body: str) -> str:
        """Expand variables in a heredoc body; quotes are plain characters there."""
        return _Walk(self, body, split=False, here=True).joined()

    def arithmetic(self, expression: str) -> str:
        """Value of `$(( expression ))`; unknown operands make it opaque, with their reason."""
        text = (
            self.text('"' + expression.replace('"', "") + '"') if "$" in expression or "`" in expression else expression
        )
        names: list[str] = []
        pending: list[str] = []

        def lookup(name: str) -> int:
            value = first(self.read(name))
            if self.why(value):
                names.append(value)
                return 1
            if name in pending:
                raise InputError(f"$(({cut(expression.strip(), 60)})): the variable {name} refers to itself")
            pending.append(name)
            number = evaluate(value, lookup, self.budget) if value.strip() else 0
            pending.pop()
            return number

        given: dict[str, int] = {}

        def assign(name: str, value: int) -> None:
            given[name] = value
            self.variables[name] = str(value)

        if self.why(text):
            unknown = next(iter(OPAQUE.finditer(text))).group(0)
            self.variables |= dict.fromkeys(ASSIGNED.findall(text), unknown)
            return unknown
        result = evaluate(text, lookup, self.budget, assign)
        self.variables |= dict.fromkeys(given if names else (), names[0] if names else "")
        return names[0] if names else str(result)


class _Walk:
    """One pass over one raw word."""

    def __init__(self, owner: Expander, raw: str, split: bool, here: bool = False, glob: bool = False) -> None:
        self.owner, self.raw, self.split, self.here, self.glob = owner, raw, split, here, glob
        self.at = 0
        self.done: list[str] = []
        self.current: list[str] = []
        self.started = False
        self.length = 0
        self.budget: Budget = owner.budget
        self.budget.step()

    def joined(self) -> str:
        self.fields()
        return "".join(self.done)

    def fields(self) -> list[str]:
        plain = PLAIN_HERE if self.here else PLAIN
        if not self.here and "<" in self.raw and (match := PLACEHOLDER.search(self.raw)):
            self.raw = self.raw.replace(match[0], self.owner.opaque("placeholder", match[0]))
        while self.at < len(self.raw):
            char = self.raw[self.at]
            if match := plain.match(self.raw, self.at):
                self._literal(match.group())
                self.at = match.end()
            elif char == "\\":
                self._escape(quoted=self.here)
            elif char == "'":
                end = self._closing("'", self.at + 1)
                self._literal(self.raw[self.at + 1 : end], quoted=True)
                self.at = end + 1
            elif char == '"':
                self._double()
            elif char == "$" and self.raw[self.at + 1 : self.at + 2] in ("'", '"') and not self.here:
                self._ansi()
            else:
                self._spread(self._dollar(), quoted=self.here)
        self._close()
        return self.done

    def _closing(self, quote: str, start: int) -> int:
        """Where a quote ends that began before `start`."""
        end = self.raw.find(quote, start)
        if end < 0:
            raise InputError(f"{cut(self.raw, 60)!r}: the {quote} opened here is never closed")
        return end

    def _ansi(self) -> None:
        """`$'a\\tb'` with its escapes; `$"text"` (for translation) is `"text"`."""
        self.at += 1
        if self.raw[self.at] == '"':
            return
        match = ANSI.match(self.raw, self.at - 1)
        if match is None:
            raise InputError(f"{cut(self.raw, 60)!r}: the $' opened here is never closed")
        self._literal(plain(ESCAPE.sub(_escaped, match[1])), quoted=True)
        self.at = match.end()

    def _literal(self, text: str, quoted: bool = False) -> None:
        if quoted and self.glob:
            text = re.sub(r"([*?\[\]\\])", r"\\\1", text)
        self.length += len(text)
        self.budget.step()
        self.budget.characters(self.length)  # A=$A$A, some thirty times
        self.budget.take(len(text))
        self.current.append(text)
        self.started = True

    def _close(self) -> None:
        if self.started:
            self.budget.take(FIELD_BYTES)
            self.done.append(self.budget.text("".join(self.current)))
        self.current, self.started = [], False

    def _escape(self, quoted: bool) -> None:
        following = self.raw[self.at + 1 : self.at + 2]
        if following == "\n":
            pass
        elif quoted and following not in '$`"\\':
            self._literal("\\" + following)
        else:
            self._literal(following, quoted=True)
        self.at += 2

    def _double(self) -> None:
        self.at += 1
        self.started = True
        while self.raw[self.at : self.at + 1] != '"':
            if match := PLAIN_QUOTED.match(self.raw, self.at):
                self._literal(match.group(), quoted=True)
                self.at = match.end()
            elif self.raw[self.at : self.at + 1] == "\\":
                self._escape(quoted=True)
            elif self.at >= len(self.raw):
                raise InputError(f'{cut(self.raw, 60)!r}: a " opened here is never closed')
            else:
                start, value = self.at, self._dollar()
                written = self.raw[start : self.at]
                if isinstance(value, list) and (written.startswith(("$*", "${*")) or "[*]" in written):
                    value = self._ifs()[:1].join(value)  # "$*" is one word, "$@" as many as there are
                self._spread(value, quoted=True)
        self.at += 1

    def _spread(self, value: Value, quoted: bool) -> None:
        """Put an expanded value into the fields: arrays as several, unquoted strings split at IFS."""
        if isinstance(value, str):
            parts = [value] if quoted or not self.split else self._words(value)
        elif not self.split or self.here:
            parts = [" ".join(value)]
        else:
            parts = value if quoted else [part for item in value for part in self._words(item)]
        if isinstance(value, str) and not quoted and self.split:
            if value and value[0].isspace() and value[0] in self._ifs():
                self._close()
            self._parts(parts)
            if value and value[-1] in self._ifs():
                self._close()
            return
        self._parts(parts, quoted)

    def _parts(self, parts: list[str], quoted: bool = False) -> None:
        for number, part in enumerate(parts):
            if number:
                self._close()
            self._literal(part, quoted or not part)  # two commas in an IFS of commas have an empty word between

    def _ifs(self) -> str:
        """The characters that separate words. Raises InputError where the script leaves them unknown."""
        value = first(self.owner.variables.get("IFS", BLANKS))
        if OPAQUE.search(value):
            raise InputError(f"words are split at IFS, which is unknown: {self.owner.why(value)[0].sentence()}")
        return value

    def _words(self, value: str) -> list[str]:
        """The words of an unquoted value."""
        ifs = "".join(dict.fromkeys(self._ifs()))
        self.budget.take(len(value) + len(ifs))
        return split(value, ifs)

    def _dollar(self) -> Value:
        raw, start = self.raw, self.at
        if raw[start] == "`":
            match = BACKQUOTED.match(raw, start)
            if match is None:
                raise InputError(f"{cut(raw[start:], 60)!r}: the ` opened here is never closed")
            self.at = match.end()
            return substitute(self.owner, re.sub(r"\\([`$\\])", r"\1", match[1]))
        if raw.startswith("$[", start):
            return self.owner.arithmetic(self._bracketed(start + 1))
        if raw.startswith("$((", start):
            body = self._bracketed(start + 1)
            if body.startswith("(") and body.endswith(")"):
                return self.owner.arithmetic(body[1:-1])
            return substitute(self.owner, body)
        if raw.startswith("$(", start):
            return substitute(self.owner, self._bracketed(start + 1))
        if raw.startswith("${", start):
            return self._braced(self._bracketed(start + 1))
        match = NAME.match(raw, start + 1)
        if not match:
            self.at += 1
            return "$"
        self.at = match.end()
        value = self.owner.read(match.group())
        return value if match.group() in "@*" else first(value)

    def _bracketed(self, start: int) -> str:
        """What stands between the bracket at `start` and its partner."""
        end = bracketed(self.raw, start, self.budget.line)
        self.budget.step(pieces(end - start, 4))
        self.at = end
        return self.raw[start + 1 : end - 1]

    def _braced(self, body: str) -> Value:
        if body.startswith("#") and len(body) > 1:
            value = self._element(body[1:])
            return str(len(value)) if not isinstance(value, str) or not self.owner.why(value) else value
        match = re.match(r"(!?)([A-Za-z_]\w*|[0-9@*]+)(\[[^\]]*\])?(.*)$", body, re.DOTALL)
        if not match:
            return self.owner.opaque("unsupported", "${" + body + "}")
        indirect, name, index, operation = match.groups()
        if indirect:
            target = self.owner.read(name)
            if operation or index or not isinstance(target, str) or self.owner.why(target):
                return self.owner.opaque("unsupported", "${" + body + "}")
            return self.owner.read(target)
        value = self._element(name + (index or ""))
        return operate(self.owner, name, value, operation) if operation else value

    def _element(self, reference: str) -> Value:
        name, _, index = reference.partition("[")
        index = index.rstrip("]")
        if not index:
            value = self.owner.read(name)
            return value if name in "@*" else first(value)
        if name in self.owner.maps:
            return self._of_map(name, index)
        value = self.owner.read(name)
        items = [value] if isinstance(value, str) else value
        if index in "@*":
            return [item for item in items if item != HOLE] if HOLE in items else items
        place = self.owner.arithmetic(index)
        if self.owner.why(place):
            return place
        found = items[int(place)] if -len(items) <= int(place) < len(items) else ""
        return "" if found == HOLE else found

    def _of_map(self, name: str, index: str) -> Value:
        if index in "@*":
            self.budget.step(pieces(len(self.owner.variables), 16))
            found = [value for key, value in self.owner.variables.items() if key.startswith(f"{name}[")]
            return [value for value in found if isinstance(value, str)]
        key = self.owner.text(index)
        reasons = self.owner.why(key)
        return OPAQUE.search(key).group() if reasons else self.owner.read(f"{name}[{key}]")  # type: ignore[union-attr]
