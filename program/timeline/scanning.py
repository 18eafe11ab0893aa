"""A JSON object read as a stream: values come one after another, a list of numbers goes straight into an array, and
nothing is held that was not asked for.

    scanner = Scanner(chunks, "t.json.gz")
    for key in scanner.fields():
        found = scanner.numbers() if key == "times" else scanner.value()

A number in an array takes 8 bytes and at least 2 in its text, so what is held follows what was unpacked. Other values
may be as long as a text that is read whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from program.errors import InputError
from program.files import MAXIMUM_BYTES, MAXIMUM_MARKS, refuse_long, refuse_unreadable
from program.nearest import shown

SPACE = " \t\n\r"
_SPACES = re.compile(r"[ \t\n\r]*")
LONGEST_NUMBER = 1000  # characters


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


class Scanner:
    """Where a stream of JSON text is being read. Methods raise InputError, naming `where`."""

    def __init__(self, chunks: Iterable[bytes], where: str) -> None:
        self.where = where
        self._chunks = iter(chunks)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0

    def fields(self) -> Iterator[str]:
        """The keys of the object that begins here; take each one's value before asking for the next."""
        self._take("{")
        seen: set[str] = set()
        while self._peek() != "}":
            if seen:
                self._take(",")
            key = self.value()
            if not isinstance(key, str):
                self._fail(f"{shown(key)} stands where a key should")
            if key in seen:
                self._fail(f"the key {key!r} stands twice")
            seen.add(key)
            self._take(":")
            yield key
        self._take("}")

    def value(self) -> Any:
        """The whole value that begins here."""
        self._peek()
        while True:
            held = len(self._text) - self._at
            if held > MAXIMUM_MARKS:
                refuse_long(self._text[self._at :], self.where, ",:[{")
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                self._fail("lists or objects are nested too deeply")
            except json.JSONDecodeError as error:
                if held > MAXIMUM_BYTES or not self._more(2 * held):
                    self._fail(error.msg)
                continue
            except ValueError as error:  # NaN, a number of thousands of digits
                self._fail(str(error).partition("; use sys.")[0])
            if end < len(self._text) or not self._more():  # a number may go on in the next piece
                break
        self._at = end
        refuse_unreadable(value, self.where)
        return value

    def numbers(self) -> NDArray[Any]:
        """The list of numbers that begins here: int64, or float64 with NaN for null."""
        self._take("[")
        pieces: list[NDArray[Any]] = []
        while (end := self._text.find("]", self._at)) < 0:
            cut = self._text.rfind(",", self._at)
            if cut < 0 and len(self._text) - self._at > LONGEST_NUMBER:
                self._fail(f"{self._text[self._at : self._at + 40]!r} is no number")
            if cut >= 0:
                pieces.append(self._array(cut))
                self._at = cut + 1
            if not self._more():
                self._fail("the text ends inside a list")
        last = self._array(end) if pieces or self._text[self._at : end].strip(SPACE) else np.empty(0, np.int64)
        self._at = end + 1
        return np.concatenate([*pieces, last])

    def end(self) -> None:
        """Nothing may follow."""
        if self._peek():
            self._fail(f"{self._text[self._at : self._at + 40]!r} follows the end")

    def _array(self, end: int) -> NDArray[Any]:
        try:
            values = _DECODER.decode(f"[{self._text[self._at : end]}]")
        except RecursionError:
            self._fail("lists are nested too deeply")
        except ValueError as error:
            self._fail(str(error).partition("; use sys.")[0])
        kinds = set(map(type, values))
        if not kinds <= {int, float, type(None)}:
            other = next(value for value in values if type(value) not in (int, float, type(None)))
            self._fail(f"{shown(other)} stands in a list of numbers")
        try:
            return np.asarray(values, np.int64 if kinds == {int} else np.float64)
        except OverflowError:
            self._fail(f"{shown(max(values, key=lambda value: abs(value or 0)))} is no number of 64 bits")

    def _peek(self) -> str:
        """The next character that is no space, or "" at the end."""
        while True:
            self._at += len(_SPACES.match(self._text, self._at)[0])  # type: ignore[index]  # matches nothing too
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _take(self, character: str) -> None:
        found = self._peek()
        if found != character:
            self._fail(f"{character!r} was expected, not {found!r}" if found else "the text ends too early")
        self._at += 1

    def _more(self, least: int = 0) -> bool:
        """Read on until `least` characters are held; false at the end. What was taken is let go."""
        pieces = [self._text[self._at :]]
        held = len(pieces[0])
        while True:
            content = next(self._chunks, b"")
            try:
                pieces.append(self._decoder.decode(content, final=not content))
            except UnicodeDecodeError as error:
                self._fail(f"it is not UTF-8: {error.reason}")
            held += len(pieces[-1])
            if held >= least or not content:
                self._text, self._at = "".join(pieces), 0
                return bool(content) or len(pieces) > 2

    def _fail(self, what: str) -> NoReturn:
        raise InputError(f"{self.where} is not a gzipped JSON file of this form: {what}") from None
