"""Bash integer arithmetic, evaluated by precedence climbing; never by `eval`.

evaluate("GPUS * 2 ** 3", {"GPUS": 4}.__getitem__)  ->  32
"""

import re
from collections.abc import Callable

from plan.errors import InputError

TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&^|?:()])")
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


def evaluate(expression: str, lookup: Callable[[str], int]) -> int:
    """Integer value of an expression. Raises `InputError` on what is not integer arithmetic (floats included)."""
    tokens: list[str] = []
    at = 0
    text = expression.strip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise InputError(f"$(({text})): {text[at:].strip()!r} is not integer arithmetic")
        tokens.append(match.group(1))
        at = match.end()
    parser = _Climb(text, tokens, lookup)
    value = parser.ternary()
    if parser.tokens:
        raise InputError(f"$(({text})): unexpected {parser.tokens[0]!r}")
    return value


class _Climb:
    def __init__(self, text: str, tokens: list[str], lookup: Callable[[str], int]) -> None:
        self.text, self.tokens, self.lookup = text, tokens, lookup

    def take(self) -> str:
        if not self.tokens:
            raise InputError(f"$(({self.text})): a value is missing at the end")
        return self.tokens.pop(0)

    def ternary(self) -> int:
        condition = self.binary(0)
        if self.tokens[:1] != ["?"]:
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
        while self.tokens and self.tokens[0] in LEVELS[level]:
            operator = self.take()
            left = self.apply(operator, left, self.binary(level + 1))
        return left

    def power(self) -> int:
        base = self.unary()
        if self.tokens[:1] == ["**"]:
            self.take()
            exponent = self.power()
            if not 0 <= exponent <= 62:
                raise InputError(f"$(({self.text})): the exponent {exponent} does not give a 64-bit integer")
            return int(base**exponent)
        return base

    def unary(self) -> int:
        token = self.take()
        if token in ("-", "+", "!", "~"):
            value = self.unary()
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[token]
        if token == "(":
            value = self.ternary()
            if self.take() != ")":
                raise InputError(f"$(({self.text})): ( is never closed")
            return value
        if token[0].isdigit():
            return (
                int(token, 16)
                if token[:2].lower() == "0x"
                else int(
                    token,
                    (
                        8
                        if token[0] == "0" and len(token) > 1 and token.isdigit() and set(token) <= set("01234567")
                        else 10
                    ),
                )
            )
        if token[0].isalpha() or token[0] == "_":
            return self.lookup(token)
        raise InputError(f"$(({self.text})): unexpected {token!r}")

    def apply(self, operator: str, left: int, right: int) -> int:
        if operator in "/%" and right == 0:
            raise InputError(f"$(({self.text})): division by zero")
        if operator in ("/", "%"):  # C's rule: truncate towards zero
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if operator == "/" else left - quotient * right
        if operator in ("<<", ">>"):
            return left << (right & 63) if operator == "<<" else left >> (right & 63)
        results = {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "&": left & right,
            "|": left | right,
            "^": left ^ right,
        }
        if operator in results:
            return results[operator]
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
