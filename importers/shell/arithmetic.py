"""Bash integer arithmetic, evaluated by precedence climbing; never by `eval`.

evaluate("GPUS * 2 ** 3", {"GPUS": 4}.__getitem__, Budget())  ->  32

Assignments (`N = 3`, `N += 2`, `N++`, `--N`) and commas are carried out where the caller gives an `assign`.
"""

import re
from collections.abc import Callable

from importers.shell.budget import Budget
from importers.shell.opaque import cut
from program.errors import InputError

TOKEN = re.compile(
    r"\s*([0-9]{1,2}#[0-9A-Za-z@_]+|0[xX][0-9a-fA-F]+|[0-9]+|[A-Za-z_]\w*"
    r"|\+\+|--|\*\*|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&^|]=|[-+*/%<>!~&^|?:()=,])"
)
ASSIGNING = re.compile(r"(<<|>>|[-+*/%&^|]|)=")
SHOWN = 60
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<=", ">=", "<", ">"),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


MOST = 2**63
"""Bash counts in 64 bits and wraps around; a number beyond is a mistake here."""


def whole(text: str) -> int | None:
    """A whole number as a script writes one: up to 18 of the digits 0 to 9; None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def evaluate(
    expression: str,
    lookup: Callable[[str], int],
    budget: Budget,
    assign: Callable[[str, int], None] | None = None,
) -> int:
    """Integer value of an expression. Raises `InputError` on what is not integer arithmetic (floats included)."""
    tokens: list[str] = []
    at = 0
    text = expression.strip()
    while at < len(text):
        budget.step(3)  # one to read a token, two to climb over it
        match = TOKEN.match(text, at)
        if not match:
            raise InputError(f"$(({cut(text, SHOWN)})): {cut(text[at:].strip(), SHOWN)!r} is not integer arithmetic")
        tokens.append(match.group(1))
        at = match.end()
    parser = _Climb(cut(text, SHOWN), tokens, lookup, assign)
    value = parser.comma()
    if parser.following:
        raise InputError(f"$(({parser.text})): unexpected {cut(parser.following, SHOWN)!r}")
    return value


class _Climb:
    def __init__(
        self, text: str, tokens: list[str], lookup: Callable[[str], int], assign: Callable[[str, int], None] | None
    ) -> None:
        self.text, self.tokens, self.lookup, self.assign = text, tokens, lookup, assign
        self.at = 0
        self.dead = 0
        """How many operators left of here decide that this part is not evaluated."""

    @property
    def following(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise InputError(f"$(({self.text})): a value is missing at the end")
        self.at += 1
        return self.tokens[self.at - 1]

    def fits(self, value: int) -> int:
        """The value, where 64 bits hold it."""
        if not -MOST <= value < MOST:
            raise InputError(f"$(({self.text})): the result is beyond 64 bits, {-MOST} to {MOST - 1}")
        return value

    def comma(self) -> int:
        value = self.assignment()
        while self.following == ",":
            self.take()
            value = self.assignment()
        return value

    def assignment(self) -> int:
        """`N = 3` and `N += 2`; anything else is a value."""
        name, sign = self.following, (self.tokens[self.at + 1 : self.at + 2] or [""])[0]
        match = ASSIGNING.fullmatch(sign)
        if match is None or not _is_name(name):
            return self.ternary()
        self.at += 2
        right = self.assignment()
        return self.give(name, self.apply(match[1], self.lookup(name), right) if match[1] else right)

    def give(self, name: str, value: int) -> int:
        """Set a variable, unless this part is not evaluated."""
        if self.assign is None:
            raise InputError(f"$(({self.text})): an assignment to {name} in a value")
        if not self.dead:
            self.assign(name, value)
        return value

    def ternary(self) -> int:
        condition = self.binary(0)
        if self.following != "?":
            return condition
        self.take()
        yes = self.idle(not condition, self.ternary)
        if self.take() != ":":
            raise InputError(f"$(({self.text})): ? without :")
        no = self.idle(bool(condition), self.ternary)
        return yes if condition else no

    def idle(self, dead: bool, part: Callable[[], int]) -> int:
        """A part of the expression, whose assignments do not count where it is `dead`."""
        self.dead += dead
        value = part()
        self.dead -= dead
        return value

    def binary(self, level: int) -> int:
        if level == len(LEVELS):
            return self.power()
        left = self.binary(level + 1)
        while self.following in LEVELS[level]:
            operator = self.take()
            decided = (operator == "&&" and not left) or (operator == "||" and bool(left))
            left = self.apply(operator, left, self.idle(decided, lambda: self.binary(level + 1)))
        return left

    def power(self) -> int:
        base = self.unary()
        if self.following == "**":
            self.take()
            exponent = self.power()
            if not 0 <= exponent <= 62:
                raise InputError(
                    f"$(({self.text})): the exponent {exponent} does not give a 64-bit integer; it must be 0 to 62"
                )
            return self.fits(base**exponent)
        return base

    def unary(self) -> int:
        token = self.take()
        if token in ("++", "--") and _is_name(self.following):
            name = self.take()
            return self.give(name, self.fits(self.lookup(name) + (1 if token == "++" else -1)))
        if token in ("-", "+", "!", "~"):
            value = self.unary()
            return self.fits({"-": -value, "+": value, "!": int(not value), "~": ~value}[token])
        if token == "(":
            value = self.comma()
            if self.take() != ")":
                raise InputError(f"$(({self.text})): ( is never closed")
            return value
        if "0" <= token[0] <= "9":
            return self.literal(token)
        if _is_name(token):
            value = self.lookup(token)
            if self.following in ("++", "--"):
                self.give(token, self.fits(value + (1 if self.take() == "++" else -1)))
            return value
        raise InputError(f"$(({self.text})): unexpected {token!r}")

    def literal(self, token: str) -> int:
        """A decimal, octal (010) or hexadecimal (0x10) number, or one with its base (16#20)."""
        if "#" in token:
            return self.based(*token.split("#"))
        octal = len(token) > 1 and re.fullmatch(r"0[0-7]+", token) is not None
        base = 16 if token[:2].lower() == "0x" else 8 if octal else 10
        digits = token.lower().removeprefix("0x").lstrip("0")
        if len(digits) > 22:  # more than 64 bits in every base
            raise InputError(f"$(({self.text})): a number of {len(token)} digits does not fit into 64 bits")
        return self.fits(int(digits or "0", base))

    def based(self, base: str, digits: str) -> int:
        """`16#ff`: up to base 36 letters of both cases are the same digit."""
        number, radix = 0, int(base)
        for digit in digits if radix > 36 else digits.lower():
            place = DIGITS.find(digit)
            if not 2 <= radix <= 64 or not 0 <= place < radix:
                raise InputError(f"$(({self.text})): {cut(f'{base}#{digits}', SHOWN)} is no number of base {base}")
            number = self.fits(number * radix + place)
        return number

    def apply(self, operator: str, left: int, right: int) -> int:
        if operator in "/%" and right == 0:
            raise InputError(f"$(({self.text})): division by zero")
        if operator in ("/", "%"):  # C's rule: truncate towards zero
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if operator == "/" else left - quotient * right
        if operator in ("<<", ">>"):
            return self.fits(left << (right & 63)) if operator == "<<" else left >> (right & 63)
        results = {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "&": left & right,
            "|": left | right,
            "^": left ^ right,
        }
        if operator in results:
            return self.fits(results[operator])
        truths = {
            "&&": bool(left) and bool(right),
            "||": bool(left) or bool(right),
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            ">": left > right,
            "<=": left <= right,
            ">=": left >= right,
        }
        return int(truths[operator])


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"
