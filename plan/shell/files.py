"""The files a launch script reads and writes, as far as they can be known without running anything: sourced scripts,
heredocs, `echo` into a file, and templates filled in by `sed`.

    written(script, node, words)        # `cat <<EOT > ds.json`, `sed "s/STAGE/$Z/" template.json > ds.json`
    found(script, "conf/env.sh")        # the text of a file that the script wrote, or that stands beside it

A file beside the script is looked for from the script's own folder, by its path and then by its name alone.
"""

import re
from pathlib import Path

from plan.shell.script import Script
from plan.shell.syntax import Heredoc
from plan.shell.tree import Pipeline, Simple

MAXIMUM_BYTES = 1_000_000
SUBSTITUTION = re.compile(
    r"s(?P<by>[/|,#:@%])(?P<old>(?:\\.|[^\\])*?)(?P=by)(?P<new>(?:\\.|[^\\])*?)(?P=by)(?P<flags>g?)$", re.DOTALL
)


def found(script: Script, name: str) -> str | None:
    """The text of a file by the name the script uses for it; None when nobody knows it."""
    if name in script.files:
        return script.files[name]
    if script.folder is None or script.expander.why(name) or "\0" in name:
        return None
    for path in (script.folder / name, script.folder / Path(name).name):
        try:
            if path.is_file() and path.stat().st_size <= MAXIMUM_BYTES:
                return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return None


def written(script: Script, node: Simple, words: list[str]) -> None:
    """Keep what a command with a redirection (or `tee`) writes, where that is known."""
    target, append = _target(node)
    name = script.expander.text(target) if target else (words[-1] if words[:1] == ["tee"] and len(words) > 1 else None)
    if words[:1] == ["cp"] and len(words) == 3 and (text := found(script, words[1])) is not None:
        script.files[words[2]] = text
    if name is None:
        return
    text = _output(script, node, words, None)
    if text is not None:
        script.files[name] = (script.files.get(name, "") if append else "") + text


def piped(script: Script, node: Pipeline) -> None:
    """Keep what a pipeline of `cat`, `echo` and `sed` writes into a file."""
    text: str | None = None
    for part in node.parts:
        if not isinstance(part, Simple):
            return
        words = [field for raw in part.words for field in script.expander.fields(raw)]
        target, append = _target(part)
        text = _output(script, part, words, text)
        if words[:1] == ["tee"] and len(words) > 1:
            target = words[-1]
        if text is None:
            return
        if target:
            name = script.expander.text(target)
            script.files[name] = (script.files.get(name, "") if append else "") + text


def heredoc(script: Script, doc: Heredoc) -> str:
    """The body, with variables filled in unless its delimiter was quoted."""
    return doc.body if doc.quoted else script.expander.heredoc(doc.body)


def _target(node: Simple) -> tuple[str | None, bool]:
    pairs = [(target, operator) for operator, target in node.redirects if operator in (">", ">>", ">|")]
    return (pairs[0][0], pairs[0][1] == ">>") if pairs else (None, False)


def _output(script: Script, node: Simple, words: list[str], piped_in: str | None) -> str | None:
    """What a command prints; None when it is not known."""
    if node.heredocs:
        piped_in = "".join(heredoc(script, doc) for doc in node.heredocs)
    if words[:1] in (["echo"], ["printf"]):
        return " ".join(words[1:]) + "\n"
    if words[:1] == ["sed"]:
        return _sed(script, words[1:], piped_in)
    if words[:1] == ["cat"] and len(words) > 1 and words[1] != "-":
        texts = [found(script, name) for name in words[1:]]
        return None if None in texts else "".join(text for text in texts if text is not None)
    return piped_in if not words or words[0] in ("cat", "tee") else None


def _sed(script: Script, words: list[str], piped_in: str | None) -> str | None:
    """`sed [-e] 's/word/value/[g]' … [FILE]` where the pattern is plain text; any other sed is not known."""
    commands: list[str] = []
    files: list[str] = []
    take = False
    for word in words:
        if word in ("-e", "-r", "-E"):
            take = word == "-e"
        elif word.startswith("-") and not take:
            return None
        elif take or not commands:
            commands += word.split(";") if "\\" not in word else [word]
            take = False
        else:
            files.append(word)
    text = found(script, files[0]) if files else piped_in
    for command in commands:
        match = SUBSTITUTION.match(command.strip())
        if match is None or text is None or re.search(r"[.*\[\]^$+?(){}\\]", match["old"]):
            return None
        new = re.sub(r"\\(.)", r"\1", match["new"])
        rows = text.split("\n")
        text = "\n".join(row.replace(match["old"], new, -1 if match["flags"] else 1) for row in rows)
    return text
