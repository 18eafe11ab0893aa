"""Command substitutions whose output can be known without running them: `pwd`, `echo`, `expr`, `cat` of a heredoc or of
a file beside the script, and the commands that take a path apart. `$0` is the script seen from its own folder, so
`$(dirname "$0")` is `.` and `$(cd … && pwd)` the path.
"""

import posixpath

from importers.shell.budget import pieces
from importers.shell.parse import parse
from importers.shell.printing import filtered, printed, sequence
from importers.shell.tree import Chain, Heredoc, Node, Pipeline, Simple
from importers.shell.values import Value, Words
from program.errors import InputError

CHARACTERS_A_STEP = 3
"""Characters that are parsed in the time of a step."""


def substitute(owner: Words, command: str) -> Value:
    """The output of `$(command)`; opaque when only running it would tell."""
    owner.budget.deeper("a $(…) inside others")
    owner.budget.step(pieces(len(command), CHARACTERS_A_STEP))
    try:
        nodes = parse(command)
    except InputError:
        nodes = []
    output = _output(owner, nodes)
    owner.budget.depth -= 1
    return owner.opaque("command", " ".join(command.split())) if output is None else output


def _output(owner: Words, nodes: list[Node]) -> str | None:
    if (folder := _change_and_tell(nodes)) is not None:
        return owner.text(folder)
    node = nodes[0] if len(nodes) == 1 else None
    if isinstance(node, Pipeline) and len(node.parts) > 1 and not node.negated:
        text = _output(owner, node.parts[:1])
        for part in node.parts[1:]:
            words = [owner.text(word) for word in _words(part)]
            text = None if text is None or owner.why(text) else filtered(owner, words, text)
        return text
    if not isinstance(node, Simple) or node.assigns:
        return None
    if node.words in (["cat"], ["cat", "-"]) and len(node.heredocs) == 1 and not node.redirects:
        return _heredoc(owner, node.heredocs[0])
    counts = node.words == ["wc", "-l"] and len(node.redirects) == 1 and node.redirects[0][0] == "<"
    if (name := node.redirects[0][1] if counts else _file(node)) is not None:
        text = owner.file(owner.text(name))
        return text if text is None else str(text.count("\n")) if counts else text.rstrip("\n")
    return None if node.redirects or node.heredocs or not node.words else _printed(owner, node.words)


def _words(node: Node | None) -> list[str]:
    """The raw words of a command with nothing but words; none for any other."""
    return node.words if isinstance(node, Simple) and not (node.assigns or node.redirects or node.heredocs) else []


def _change_and_tell(nodes: list[Node]) -> str | None:
    """The folder of `cd FOLDER && pwd`, as a raw word."""
    if len(nodes) == 1 and isinstance(nodes[0], Chain) and [sign for sign, _ in nodes[0].rest] == ["&&"]:
        nodes = [nodes[0].first, nodes[0].rest[0][1]]
    if len(nodes) != 2 or _words(nodes[1]) not in (["pwd"], ["pwd", "-P"]):
        return None
    change = nodes[0]
    if not isinstance(change, Simple) or change.assigns or change.heredocs or change.words[:1] != ["cd"]:
        return None
    folders = [word for word in change.words[1:] if word not in ("-P", "--")]
    return folders[0] if len(folders) == 1 else None


def _file(node: Simple) -> str | None:
    """The file of `cat FILE` or `< FILE`, as a raw word."""
    if node.heredocs:
        return None
    if node.words[:1] == ["cat"] and len(node.words) == 2 and not node.redirects:
        return node.words[1]
    if not node.words and len(node.redirects) == 1 and node.redirects[0][0] == "<":
        return node.redirects[0][1]
    return None


def _printed(owner: Words, words: list[str]) -> str | None:
    """What `pwd`, `echo`, `expr` and the commands that take a path apart print."""
    name, *rest = words
    if words == ["pwd"]:
        return "."
    if (said := owner.called(name, [field for word in rest for field in owner.fields(word)])) is not None:
        return said
    if name == "echo":
        return " ".join(field for word in rest if word != "-n" for field in owner.fields(word) or [""])
    if name == "expr":
        return owner.arithmetic(" ".join(rest).replace("\\*", "*"))
    if name == "printf" and rest:
        made = [field for word in rest for field in owner.fields(word) or [""]]
        text = printed(owner, made[0], made[1:])
        return None if text is None else text.rstrip("\n")
    if name == "seq":
        return sequence(owner, [owner.text(word) for word in rest])
    if name == "readlink" and rest[:1] and rest[0].startswith("-"):
        rest = rest[1:]
    elif name not in ("dirname", "basename", "realpath"):
        return None
    rest = rest[1:] if rest[:1] == ["--"] else rest
    return _of_path(owner, name, rest[0]) if len(rest) == 1 else None


def _of_path(owner: Words, name: str, word: str) -> str | None:
    path = owner.text(word)
    if owner.why(path) or " " in path:
        return None
    if name == "dirname":
        return posixpath.dirname(path) or "."
    return posixpath.basename(path) if name == "basename" else path


def _heredoc(owner: Words, doc: Heredoc) -> str:
    """The body as `$(cat <<END … END)` gives it, with variables filled in unless END was quoted."""
    return (doc.body if doc.quoted else owner.heredoc(doc.body)).rstrip("\n")
