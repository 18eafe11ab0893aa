"""The grammar of a launch script: from text to a small tree of commands. Nothing is expanded or executed here.

The subset is what people write around a training command: assignments, arrays with comments inside, quotes, line
continuations, heredocs, `if`, `for`, `while`, `case`, functions, pipelines, `&&`, `||`, `[ ]`, `[[ ]]`, `(( ))`. Words
stay raw (quotes and `$` included);
`importers.shell.expand` gives them values and `importers.shell` walks the tree.

Bash's rules are followed where they bite: a backslash at the end of a comment does not continue the line, so the flags
after a commented-out flag belong to no command.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from program.errors import InputError

OPERATORS = (
    "&>>",
    "<<<",
    "<<-",
    ";;&",
    "&>",
    ">>",
    "<<",
    ">&",
    "<&",
    ">|",
    "&&",
    "||",
    ";;",
    ";&",
    "|&",
    "<>",
    ";",
    "&",
    "|",
    "(",
    ")",
    "<",
    ">",
)
MAXIMUM_LENGTH = 200_000
MAXIMUM_NESTING = 60
REDIRECTIONS = frozenset({"&>>", "<<<", "&>", ">>", ">&", "<&", ">|", "<>", "<", ">"})
ARRAY_OPEN = re.compile(r"[A-Za-z_]\w*\+?=$")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)$", re.DOTALL)


@dataclass(slots=True)
class Heredoc:
    """Text between `<<EOT` and `EOT`; `quoted` means that variables in it stay as they are."""

    delimiter: str
    quoted: bool
    strip_tabs: bool
    body: str = ""


@dataclass(slots=True)
class Token:
    """One lexical element; `items` for an array literal, `heredoc` for a heredoc operator."""

    kind: Literal["word", "op", "newline", "array", "arith", "heredoc", "end"]
    text: str
    line: int
    items: list[str] = field(default_factory=list)
    heredoc: Heredoc | None = None


class Lexer:
    """Turns a script into tokens. Errors name the line and what was left open."""

    def __init__(self, text: str) -> None:
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self.at = 0
        self.line = 1
        self.pending: list[Heredoc] = []
        self.depth = 0
        if len(self.text) > MAXIMUM_LENGTH:
            raise InputError(
                f"the script has {len(self.text):,} characters, more than the {MAXIMUM_LENGTH:,} that are read"
            )

    def deeper(self) -> None:
        """One bracket or quote inside another; who opened it takes it off `depth` again."""
        self.depth += 1
        if self.depth > MAXIMUM_NESTING:
            raise InputError(
                f"line {self.line}: brackets and quotes nest {self.depth} deep; at most {MAXIMUM_NESTING} are read"
            )

    def tokens(self) -> list[Token]:
        """All tokens, ending with one of kind "end"."""
        found: list[Token] = []
        while (token := self._next(found)).kind != "end":
            found.append(token)
        return [*found, token]

    def _next(self, before: list[Token]) -> Token:
        self._skip_blank()
        if self.at >= len(self.text):
            return Token("end", "", self.line)
        line, char = self.line, self.text[self.at]
        if char == "\n":
            self.at += 1
            self.line += 1
            self._read_heredocs()
            return Token("newline", "\n", line)
        if self.text.startswith("((", self.at) and (
            not before or before[-1].kind != "word" or before[-1].text in KEYWORDS
        ):
            return Token("arith", self._arithmetic_command(), line)
        operator = next((op for op in OPERATORS if self.text.startswith(op, self.at)), None)
        if operator and not self.text.startswith(("<(", ">("), self.at):
            self.at += len(operator)
            return self._heredoc(operator, line) if operator in ("<<", "<<-") else Token("op", operator, line)
        return self._word_token(line)

    def _skip_blank(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _word_token(self, line: int) -> Token:
        word = self._word()
        if self.at < len(self.text) and self.text[self.at] == "(" and ARRAY_OPEN.match(word):
            self.at += 1
            return Token("array", word, line, items=self._array_items(line))
        return Token("word", word, line)

    def _array_items(self, line: int) -> list[str]:
        items: list[str] = []
        while True:
            self._skip_blank()
            if self.at >= len(self.text):
                raise InputError(f"line {line}: the array opened here has no closing )")
            if self.text[self.at] == "\n":
                self.at += 1
                self.line += 1
            elif self.text[self.at] == ")":
                self.at += 1
                return items
            else:
                start = self.at
                items.append(self._word())
                if self.at == start:  # an operator character inside an array: keep it as it stands
                    items[-1] = self.text[start]
                    self.at += 1

    def _word(self) -> str:
        start = self.at
        pieces: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self._take(2)
                continue
            if char in "<>" and self.text.startswith("(", self.at + 1) and self.at == start:
                pieces.append(char)
                self.at += 1
                pieces.append(self.balanced("(", ")"))
                continue
            if char in " \t\n;&|()<>":
                break
            pieces.append(self._element(char))
        return "".join(pieces)

    def _element(self, char: str) -> str:
        """One character, or one whole quoted or bracketed element, from the current position."""
        if char == "\\":
            return self._take(2)
        if char == "'":
            return self._quoted_single()
        if char == '"':
            return self._quoted_double()
        if char == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                raise InputError(f"line {self.line}: the backquote opened here is never closed")
            return self._take(end + 1 - self.at)
        if char == "$" and self.text.startswith(("$(", "${"), self.at):
            self.at += 1
            return "$" + (self.balanced("(", ")") if self.text[self.at] == "(" else self.balanced("{", "}"))
        return self._take(1)

    def _take(self, count: int) -> str:
        taken = self.text[self.at : self.at + count]
        self.at += count
        self.line += taken.count("\n")
        return taken

    def _quoted_single(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise InputError(f"line {self.line}: the ' opened here is never closed")
        return self._take(end + 1 - self.at)

    def _quoted_double(self) -> str:
        opened = self.line
        self.deeper()
        pieces = [self._take(1)]
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.depth -= 1
                return "".join([*pieces, self._take(1)])
            pieces.append(self._take(1) if char == "'" else self._element(char))
        raise InputError(f'line {opened}: the " opened here is never closed')

    def balanced(self, opening: str, closing: str) -> str:
        """From an opening bracket to its partner, quotes respected."""
        opened, depth = self.line, 0
        self.deeper()
        pieces: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            depth += (char == opening) - (char == closing)
            plain = char in (opening, closing)
            pieces.append(self._take(1) if plain else self._element(char))
            if depth == 0:
                self.depth -= 1
                return "".join(pieces)
        raise InputError(f"line {opened}: the {opening} opened here is never closed")

    def _arithmetic_command(self) -> str:
        body = self.balanced("(", ")")
        return body[2:-2]

    def _heredoc(self, operator: str, line: int) -> Token:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        raw = self._word()
        delimiter = raw.replace("'", "").replace('"', "").replace("\\", "")
        if not delimiter:
            raise InputError(f"line {line}: a heredoc << needs a delimiter word")
        doc = Heredoc(delimiter, raw != delimiter, operator == "<<-")
        self.pending.append(doc)
        return Token("heredoc", operator, line, heredoc=doc)

    def _read_heredocs(self) -> None:
        for doc in self.pending:
            opened, lines = self.line, []
            while True:
                if self.at >= len(self.text):
                    raise InputError(f"line {opened}: the heredoc is never closed by {doc.delimiter}")
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                row = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                self.line += 1
                row = row.lstrip("\t") if doc.strip_tabs else row
                if row.rstrip() == doc.delimiter:
                    break
                lines.append(row)
            doc.body = "\n".join(lines) + "\n"
        self.pending = []


def bracketed(text: str, start: int, opening: str, closing: str) -> int:
    """The place after the partner of the bracket at `start` of a raw word, quotes respected."""
    lexer = Lexer("")
    lexer.text, lexer.at = text, start
    lexer.balanced(opening, closing)
    return lexer.at


KEYWORDS = frozenset({"for", "if", "then", "elif", "else", "while", "until", "do", "!", "{", "time"})
