"""Command substitutions whose output can be known without running them: `pwd`, `echo`, `expr`, `cat` of a heredoc or of
a file beside the script, and the commands that take a path apart. `$0` is the script seen from its own folder, so
`$(dirname "$0")` is `.` and `$(cd … && pwd)` the path.
"""

import posixpath
import re

from plan.shell.values import Value, Words

CHANGE_AND_TELL = re.compile(
    r"\s*cd\s+(?:-P\s+)?(?:--\s+)?(\$\([^()]*\)|\S+|\"[^\"]*\"|\"\$\(.*\)\")\s*(?:[12&]?>\S*\s*)*(?:&&|;)\s*pwd(?:\s+-P)?\s*$"
)
OF_A_PATH = re.compile(r"\s*(dirname|basename|realpath|readlink\s+-\w+)\s+(?:--\s+)?(\S.*?)\s*$")
OF_A_FILE = re.compile(r"\s*(?:cat\s+([^\s|<>;&]+)|<\s*([^\s|<>;&]+))\s*(\|\s*xargs)?\s*$")
OF_A_HEREDOC = re.compile(
    r"\s*cat\s*(?:-\s*)?<<(?P<tabs>-?)[ \t]*(?P<quote>\\|'|\"|)(?P<end>\w+)(?:'|\")?[ \t]*\n"
    r"(?P<body>(?:.*\n)?)\t*(?P=end)[ \t]*\s*$",
    re.DOTALL,
)


def substitute(owner: Words, command: str) -> Value:
    """The output of `$(command)`; opaque when only running it would tell."""
    words = command.split()
    if words == ["pwd"]:
        return "."
    if (path := _path(owner, command)) is not None:
        return path
    if match := OF_A_HEREDOC.match(command):
        return _heredoc(owner, match)
    if match := OF_A_FILE.match(command):
        text = owner.file(owner.text(match.group(1) or match.group(2)))
        if text is not None:
            return " ".join(text.split()) if match.group(3) else text.rstrip("\n")
    if words[:1] == ["echo"] and not any(sign in command for sign in "|;&<>"):
        return " ".join(" ".join(owner.fields(word)) for word in words[1:] if word != "-n")
    if words[:1] == ["expr"]:
        return owner.arithmetic(" ".join(words[1:]).replace("\\*", "*"))
    return owner.opaque("command", " ".join(words))


def _heredoc(owner: Words, match: re.Match[str]) -> str:
    """The body as `$(cat <<END … END)` gives it, with variables filled in unless END was quoted."""
    body = re.sub(r"^\t+", "", match["body"], flags=re.MULTILINE) if match["tabs"] else match["body"]
    return (body if match["quote"] else owner.heredoc(body)).rstrip("\n")


def _path(owner: Words, command: str) -> str | None:
    if match := CHANGE_AND_TELL.match(command):
        return owner.text(match.group(1))
    match = OF_A_PATH.match(command)
    if not match or any(sign in match.group(2) for sign in "|;&<>"):
        return None
    name, path = match.group(1), owner.text(match.group(2))
    if owner.why(path) or " " in path:
        return None
    if name == "dirname":
        return posixpath.dirname(path) or "."
    return posixpath.basename(path) if name == "basename" else path
