"""The files a launch script reads and writes, as far as they can be known without running anything: sourced scripts,
heredocs, `echo` into a file, and templates filled in by `sed`.

    written(script, node, words)        # `cat <<EOT > ds.json`, `sed "s/STAGE/$Z/" template.json > ds.json`
    found(script, "conf/env.sh")        # the text of a file that the script wrote, or that stands beside it

A file beside the script is looked for by `program.confined`, from the script's own folder and never outside it.
"""

import re

from importers.shell.budget import MOST_BYTES, pieces
from importers.shell.script import Script
from importers.shell.tree import Heredoc, Pipeline, Simple
from program.confined import MAXIMUM_BYTES
from program.errors import InputError

LOOK_STEPS = 20
"""The system is asked for a file."""


def found(script: Script, name: str) -> str | None:
    """The text of a file by the name the script uses for it; None when nobody knows it, or it may not be read."""
    if name in script.files:
        return script.files[name]
    if script.expander.why(name):
        return None
    budget = script.expander.budget
    budget.step(LOOK_STEPS)
    try:
        text = script.beside.text(name, min(MAXIMUM_BYTES, MOST_BYTES - budget.bytes))
    except InputError as error:
        script.warn(f"line {budget.line}: {error}")
        return None
    return None if text is None else budget.text(text)


def written(script: Script, node: Simple, words: list[str]) -> None:
    """Keep what a command with a redirection (or `tee`) writes, where that is known."""
    target, append = _target(node)
    name = script.expander.text(target) if target else (words[-1] if words[:1] == ["tee"] and len(words) > 1 else None)
    if words[:1] == ["cp"] and len(words) == 3 and (text := found(script, words[1])) is not None:
        _keep(script, words[2], text, append=False)
    if name is None:
        return
    text = _output(script, node, words, None)
    if text is not None:
        _keep(script, name, text, append)


def _keep(script: Script, name: str, text: str, append: bool) -> None:
    """A file that the script writes."""
    before = script.files.get(name, "") if append else ""
    script.expander.budget.characters(len(before) + len(text))
    script.files[name] = script.expander.budget.text(before + text)


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
            _keep(script, script.expander.text(target), text, append)


def heredoc(script: Script, doc: Heredoc) -> str:
    """The body, with variables filled in unless its delimiter was quoted."""
    script.expander.budget.take(len(doc.body))
    return doc.body if doc.quoted else script.expander.heredoc(doc.body)


def _target(node: Simple) -> tuple[str | None, bool]:
    pairs = [(target, operator) for operator, target in node.redirects if operator in (">", ">>", ">|")]
    return (pairs[0][0], pairs[0][1] == ">>") if pairs else (None, False)


def _output(script: Script, node: Simple, words: list[str], piped_in: str | None) -> str | None:
    """What a command prints; None when it is not known."""
    if node.heredocs:
        piped_in = "".join(heredoc(script, doc) for doc in node.heredocs)
    if words[:1] in (["echo"], ["printf"]):
        script.expander.budget.take(sum(map(len, words)))
        return " ".join(words[1:]) + "\n"
    if words[:1] == ["sed"]:
        return _sed(script, words[1:], piped_in)
    if words[:1] == ["cat"] and len(words) > 1 and words[1] != "-":
        texts: list[str] = []
        for name in words[1:]:
            text = found(script, name)
            if text is None:
                return None
            script.expander.budget.take(len(text))
            texts.append(text)
        return "".join(texts)
    return piped_in if not words or words[0] in ("cat", "tee") else None


def _sed(script: Script, words: list[str], piped_in: str | None) -> str | None:
    """`sed [-e] 's/word/value/[g]' … [FILE]` where the pattern is plain text; any other sed is not known."""
    commands: list[str] = []
    files: list[str] = []
    take = False
    for word in words:
        script.expander.budget.step()
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
    budget = script.expander.budget
    for command in commands:
        parts = _substitution(command.strip())
        if parts is None or text is None or not parts[0] or re.search(r"[.*\[\]^$+?(){}\\]", parts[0]):
            return None
        old, new, everywhere = parts[0], re.sub(r"\\(.)", r"\1", parts[1], flags=re.DOTALL), parts[2]
        rows = text.split("\n")
        budget.step(pieces(len(text), 500) + pieces(len(rows), 5))
        count = text.count(old) if everywhere else sum(old in row for row in rows)
        budget.characters(len(text) + count * max(0, len(new) - len(old)))
        text = budget.text("\n".join(row.replace(old, new, -1 if everywhere else 1) for row in rows))
    return text


def _substitution(command: str) -> tuple[str, str, bool] | None:
    """`s/old/new/` and whether every match is meant (`g`); None for any other command of sed."""
    if len(command) < 2 or command[0] != "s" or command[1] not in "/|,#:@%":
        return None
    parts, start, at = [], 2, 2
    while at < len(command):
        if command[at] == command[1]:
            parts.append(command[start:at])
            start = at + 1
        at += 1 + (command[at] == "\\")
    flags = command[start:]
    return (parts[0], parts[1], flags == "g") if len(parts) == 2 and flags in ("", "g") else None
