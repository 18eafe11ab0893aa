"""Truth of the conditions in a launch script: `[ ]`, `test`, `[[ ]]`. Three-valued: None when it depends on what is not
known.

Asking whether an undefined variable is empty has an answer: `if [ -z "$NNODES" ]; then NNODES=1; fi` means what it
says, and so do `[ "$X" ]`, `[ "$X" = "" ]` and `[ x$X = x ]`. Comparing it with anything else has none, because its
value was to come from outside; the variable is remembered in `Expander.tested`. Under `set -u` an undefined variable
stops the script, so it must come from outside, and even its emptiness is unknown; so it is after a sourced file that
nobody could read. Tests of files and of command output are unknown.
"""

import re
from functools import partial

from importers.shell.arithmetic import whole
from importers.shell.budget import pieces
from importers.shell.expand import Expander
from importers.shell.glob import matches
from importers.shell.opaque import OPAQUE

FILE_TESTS = frozenset("-f -d -e -s -r -w -x -L -h -p -S -nt -ot -t -v -o".split())
QUOTED = r"""(\\.|'[^']*'|"[^"]*")"""
CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s"}
INTEGER_TESTS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def truth(words: list[str], expander: Expander, double: bool) -> bool | None:
    """Truth of the raw words of one test, brackets included; `double` for `[[ ]]`, where words are not split and `==`
    is a glob.
    """
    inner = words[1:-1] if words and words[-1] in ("]", "]]") else words[1:]
    tokens: list[str] = []
    for raw in inner:
        if double and tokens[-1:] in (["=="], ["="], ["!="]):
            tokens.append(expander.pattern(raw))
            continue
        if double and tokens[-1:] == ["=~"]:
            tokens.append("".join(map(partial(_of_expression, expander), re.split(QUOTED, raw))))
            continue
        tokens += (
            [expander.text(raw)]
            if double or raw.startswith('"')
            else (expander.fields(raw) or [""] * ("$" in raw and '"' in raw))
        )
    return _Or(tokens, expander, double).parse()


def _of_expression(expander: Expander, part: str) -> str:
    """A part of a regular expression: what is quoted means itself."""
    if part[:1] == "\\":
        return part
    return re.escape(expander.text(part)) if part[:1] in ("'", '"') else expander.text(part) if part else ""


class _Or:
    """Precedence: || (or -o) < && (or -a) < ! < primary."""

    def __init__(self, tokens: list[str], expander: Expander, double: bool) -> None:
        self.tokens, self.expander, self.double = tokens, expander, double
        self.at = 0

    def _follows(self, *tokens: str) -> bool:
        """Whether one of the tokens comes next; it is passed over then."""
        found = self.tokens[self.at : self.at + 1]
        if not found or found[0] not in tokens:
            return False
        self.expander.budget.step()
        self.at += 1
        return True

    def parse(self) -> bool | None:
        result = self._and()
        while self._follows("||", "-o"):
            result = either(result, self._and())
        return result

    def _and(self) -> bool | None:
        result = self._not()
        while self._follows("&&", "-a"):
            result = both(result, self._not())
        return result

    def _not(self) -> bool | None:
        if self._follows("!"):
            return negate(self._not())
        if self.double and self._follows("("):
            result = self.parse()
            self._follows(")")
            return result
        return self._primary()

    def _primary(self) -> bool | None:
        tokens = self.tokens[self.at : self.at + 3]
        if not tokens:
            return False
        if len(tokens) == 3 and (tokens[1] in ("=", "==", "!=", "=~", "<", ">") or tokens[1] in INTEGER_TESTS):
            self.at += 3
            return self._compare(*tokens)
        if tokens[0] in ("-z", "-n") and len(tokens) > 1 and tokens[1] not in ("&&", "||"):
            self.at += 2
            value = self._known(tokens[1])
            return None if value is None else (value == "") == (tokens[0] == "-z")
        if tokens[0] in FILE_TESTS and len(tokens) >= 2:
            self.at += 2
            return None
        self.at += 1
        value = self._known(tokens[0])
        return None if value is None else value != ""

    def _known(self, text: str) -> str | None:
        """The text with undefined variables as empty; None when anything else in it is unknown."""
        reasons = self.expander.why(text)
        if self.expander.nounset or self.expander.unread or any(entry.kind != "undefined" for entry in reasons):
            self.expander.tested += reasons
            return None if reasons else text
        return OPAQUE.sub("", text)

    def _compare(self, left: str, operator: str, right: str) -> bool | None:
        known_left, known_right = self._known(left), self._known(right)
        if known_left is None or known_right is None or operator in ("<", ">"):
            return None
        if operator == "=~":
            return None if self.expander.why(left + right) else self._search(known_left, known_right)
        reasons = self.expander.why(left + right)
        if reasons and (operator in INTEGER_TESTS or known_left != known_right):  # not the question whether it is empty
            self.expander.tested += reasons
            return None
        if operator in INTEGER_TESTS:
            numbers = [self._integer(known_left), self._integer(known_right)]
            return None if None in numbers else bool(INTEGER_TESTS[operator](*numbers))
        if self.double:
            same = matches(known_left, known_right, self.expander.budget)
        else:
            same = known_left == known_right
        return same == (operator != "!=")

    def _search(self, text: str, pattern: str) -> bool | None:
        """`=~`: whether an extended regular expression is found, its groups in BASH_REMATCH; unknown where it has what
        Python spells otherwise, or could take long."""
        for name, signs in CLASSES.items():
            pattern = pattern.replace(f"[:{name}:]", signs)
        loose = len(re.findall(r"[*+{]", pattern))
        nested = re.search(r"\)[*+{]", pattern) and (loose > 1 or "?" in pattern or "|" in pattern)
        if "[:" in pattern or "(?" in pattern or loose > 2 or nested or len(text) > 100:
            return None
        self.expander.budget.step(pieces(len(text) ** (loose + 1), 1000) + len(pattern))
        try:
            found = re.search(pattern, text)
        except re.error:
            return None
        self.expander.variables["BASH_REMATCH"] = (
            [] if found is None else [found[0], *(each or "" for each in found.groups())]
        )
        return found is not None

    def _integer(self, text: str) -> int | None:
        """`[[ 010 -eq 8 ]]` is arithmetic, `[ 010 -eq 10 ]` compares decimal numbers."""
        if self.double and text.strip():
            value = self.expander.arithmetic(text)
            self.expander.tested += (reasons := self.expander.why(value))
            return None if reasons else int(value)
        return decimal(text)


def decimal(text: str) -> int | None:
    """A whole number of at most 18 digits, with a sign and blanks around it; an empty text is 0."""
    sign, digits = (text.strip()[:1], text.strip()[1:]) if text.strip()[:1] in ("-", "+") else ("", text.strip())
    number = 0 if not text else whole(digits)
    return -number if number is not None and sign == "-" else number


def negate(value: bool | None) -> bool | None:
    """Three-valued not."""
    return None if value is None else not value


def both(left: bool | None, right: bool | None) -> bool | None:
    """Three-valued and."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: bool | None, right: bool | None) -> bool | None:
    """Three-valued or."""
    return negate(both(negate(left), negate(right)))
