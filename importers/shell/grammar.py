"""tree-sitter's bash grammar under limits: a script's syntax tree, or the line and the reason why it has none.

    tree = syntax_tree('if [ -z "$N" ]; then N=1; fi')     # tree.root_node has no ERROR and no MISSING node

The grammar sees an ASCII text of the same length, so a place in the tree is a place in the script.
"""

import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from importers.shell.opaque import cut
from program.errors import InputError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Point, Tree

MAXIMUM_LENGTH = 200_000
MAXIMUM_NESTING = 60
CHUNK = 1_024
PLACEHOLDER = re.compile(r"(?<![<>&\d])<(?!-)[A-Za-z][^<>|&;()'\"`$\\\n]*(?<![\s-])>(?![\w&>(.$\"'-])")
"""`<PATH>`, `<your data>`: a word of a template that is to be filled in, and never two redirections."""
UNSEEN = re.compile(r"[^\t\n -~]")
CLOSERS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "do": "done",
           "{": "}", "(": ")", "$(": ")", "${": "}", "[": "]", "[[": "]]", "((": "))", "$((": "))", '"': '"', "'": "'",
           "`": "`", "<(": ")", ">(": ")", "then": "fi"}  # fmt: skip
QUOTES = ('"', "'", "`", "$'")


@cache
def _parser() -> "Parser":
    """Loaded with the first script: a forecast without scripts does not pay for it."""
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return Parser(Language(tree_sitter_bash.language()))


def syntax_tree(text: str) -> "Tree":
    """The tree of a script. Raises `InputError` with the line of what is no bash.

    Text that is no script makes the grammar's error recovery take a time that grows with the square of the length. It
    is counted by what the parser reads: a script is read about twice, and its actions are a fiftieth of its characters.
    """
    if len(text) > MAXIMUM_LENGTH:
        raise InputError(
            f"the script has {len(text):,} characters; at most {MAXIMUM_LENGTH:,} are read; keep the part to import"
        )
    seen = PLACEHOLDER.sub(lambda match: "_" * len(match[0]), UNSEEN.sub("_", text)).encode("ascii")
    most = len(seen) // 50 + 1_000
    reads = looks = 0

    def read(at: int, _: "Point") -> bytes:
        nonlocal reads
        reads += 1
        return seen[at : at + CHUNK] if reads <= most else b""

    def look(_: int, __: bool) -> bool:
        nonlocal looks
        looks += 1
        return looks > most

    parser = _parser()
    try:
        tree = parser.parse(read, progress_callback=look)
    except ValueError:  # stopped by `look`
        parser.reset()
        raise InputError("line 1: the script cannot be parsed; it has too many errors") from None
    if tree.root_node.has_error or reads > most:
        raise InputError(_reason(text, next(_wrong(tree.root_node), tree.root_node)))
    return tree


def _wrong(node: "Node") -> "Iterator[Node]":
    """The ERROR and MISSING nodes of a tree, the first of the text first."""
    pending = [node]
    while pending:
        node = pending.pop()
        if node.is_error or node.is_missing:
            yield node
        elif node.has_error:
            pending += reversed(node.children)


def _reason(text: str, node: "Node") -> str:
    """Why a node is wrong: what was opened in it and has no end, or else what it begins with."""
    if node.is_missing and node.parent is not None:
        opener = node.parent.children[0]
        if node.type == "heredoc_end" or opener.type.startswith("<<"):
            return _never_closed(text, node.parent.children)
        what = "array" if node.parent.type == "array" else opener.type
        if opener.type in CLOSERS and what == "array":
            return f"line {_line(opener)}: the array opened here has no closing )"
        if opener.type in CLOSERS:
            return _open(opener)
        return f"line {_line(node)}: {node.type} is missing after {_near(text, node.parent)!r}"
    if node.parent is not None and node.parent.type == "heredoc_redirect":
        return _never_closed(text, node.parent.children)
    opened: list[Node] = []
    for child in node.children:
        if child.type in ("<<", "<<-"):
            return _never_closed(text, node.children)
        if child.type in CLOSERS and not (opened and child.type in ("then", "do")):
            opened.append(child)
        elif opened and child.type == CLOSERS[opened[-1].type]:
            opened.pop()
    if opened and opened[-1].type in ("((", "$((") and (end := text.find("))", opened[-1].end_byte)) > 0:
        written = cut(text[opened[-1].start_byte : end + 2], 60)
        return f"line {_line(opened[-1])}: {written} is not integer arithmetic"
    if opened:
        return _open(opened[-1])
    near = _near(text, node)
    if near.startswith(QUOTES):
        return f"line {_line(node)}: the {near[0]} opened here is never closed"
    return f"line {_line(node)}: unexpected {near!r} in the script"


def _open(opener: "Node") -> str:
    """What has no end."""
    if opener.type.isalpha():
        return f"line {_line(opener)}: this {opener.type} needs {CLOSERS[opener.type]!r}"
    return f"line {_line(opener)}: the {opener.type} opened here is never closed"


def _never_closed(text: str, parts: "list[Node]") -> str:
    start = next((part for part in parts if part.type == "heredoc_start"), parts[0])
    if any(part.is_error and _near(text, part) == "<" for part in parts):
        return f"line {_line(start)}: two heredocs in one line are not read; write them into files one after the other"
    return f"line {_line(start)}: the heredoc is never closed by {_near(text, start)}"


def _line(node: "Node") -> int:
    return node.start_point.row + 1


def _near(text: str, node: "Node") -> str:
    return cut(text[node.start_byte : node.end_byte].strip().split("\n")[0], 40)
