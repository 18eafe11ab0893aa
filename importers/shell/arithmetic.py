"""Bash integer arithmetic, evaluated by precedence climbing; never by `eval`.

evaluate("GPUS * 2 ** 3", {"GPUS": 4}.__getitem__, Budget())  ->  32
"""

import re
from collections.abc import Callable

from importers.shell.budget import Budget
from importers.shell.opaque import cut
from program.errors import InputError

TOKEN = re.compile(
    r"\s*([0-9]{1,2}#[0-9A-Za-z@_]+|0[xX][0-9a-fA-F]+|[0-9]+|[A-Za-z_]\w*"
    r"|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&^|?:()])"
)
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


def evaluate(expression: str, lookup: Callable[[str], int], budget: Budget) -> int:
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
    parser = _Climb(cut(text, SHOWN), tokens, lookup)
    value = parser.ternary()
    if parser.following:
        raise InputError(f"$(({parser.text})): unexpected {cut(parser.following, SHOWN)!r}")
    return value


class _Climb:
    def __init__(self, text: str, tokens: list[str], lookup: Callable[[str], int]) -> None:
        self.text, self.tokens, self.lookup = text, tokens, lookup
        self.at = 0

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

    def ternary(self) -> int:
        condition = self.binary(0)
        if self.following != "?":
            return condition
        self.take()
        yes = self.ternary()
        if self.take() != ":":
            raise InputError(f"$(({self.text})): ? without :")
        no = self.ternary()
        return yes if condition else no

    def binary(self, level: int) -> int:
        if level == len(LEVELS):
            return self.power()
        left = self.binary(level + 1)
        while self.following in LEVELS[level]:
            operator = self.take()
            left = self.apply(operator, left, self.binary(level + 1))
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
        if token in ("-", "+", "!", "~"):
            value = self.unary()
            return self.fits({"-": -value, "+": value, "!": int(not value), "~": ~value}[token])
        if token == "(":
            value = self.ternary()
            if self.take() != ")":
                raise InputError(f"$(({self.text})): ( is never closed")
            return value
        if "0" <= token[0] <= "9":
            return self.literal(token)
        if token[0].isalpha() or token[0] == "_":
            return self.lookup(token)
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
