"""Walks a script command by command, nested scripts and sourced files too."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from plan.errors import InputError
from plan.shell import tree
from plan.shell.assign import assigned
from plan.shell.builtins import exported, options, shift, unread
from plan.shell.conditions import truth
from plan.shell.files import found, heredoc, written
from plan.shell.flow import Flow
from plan.shell.parse import DECLARATIONS, parse
from plan.shell.script import Command, Script
from plan.shell.slurm import slurm_variables
from plan.shell.tree import Simple

SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh"})
ENVIRONMENT_FILES = re.compile(r"(\bactivate$|bashrc$|bash_profile$|\.profile$|/etc/profile|conda\.sh$|/etc/bashrc)")
PRINTERS = frozenset({"echo", "printf", "cat", "tee", "sed"})
WITHOUT_EFFECT = frozenset({"cd", "exit", "return", "wait", "trap", "shopt", "ulimit", "umask"})
LOOKING = frozenset({"command", "which", "type", "grep", "hash", "nvidia-smi"})
"""Commands whose status nobody knows without the machine."""
MAXIMUM_DEPTH = 40


def read_script(text: str, variables: Mapping[str, str] | None = None, path: Path | None = None) -> Script:
    """Evaluate a script. `variables` are set beforehand, as if exported; the names 1, 2, … are the script's arguments.
    `path` is where it stands, for the files beside it. Raises `InputError` when the text is not a script.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    script = Script(text, path.parent if path else None)
    script.expander.file = lambda name: found(script, name)
    script.expander.name = f"./{path.name if path else 'script.sh'}"
    script.expander.variables |= slurm_variables(text)
    script.expander.variables |= dict(variables or {})
    arguments = sorted((int(name), value) for name, value in (variables or {}).items() if name.isdigit())
    if arguments:
        script.expander.variables["@"] = [value for _, value in arguments]
    try:
        _Walk(script).run(parse(text))
    except RecursionError:
        raise InputError("the script nests brackets or commands too deeply to be read") from None
    script.warnings += script.expander.notes
    return script


class _Walk(Flow):
    """Carries out simple commands; what a command would do outside the script is recorded."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.depth = 0
        self.own: dict[str, Callable[[list[str], Simple], None]] = {
            "source": self._source,
            ".": self._source,
            "unset": self._unset,
            "set": lambda words, node: options(script, words[1:]),
            "let": self._let,
            "shift": self._shift,
            "read": self._read,
            "readarray": self._read_lines,
            "mapfile": self._read_lines,
        }

    def simple(self, node: Simple) -> bool | None:
        words = [field for raw in node.words for field in self.expander.fields(raw)] if not self._is_test(node) else []
        if words[:1] in (["declare"], ["local"], ["typeset"]) and "-A" in words:
            self.expander.maps |= {*words[words.index("-A") + 1 :], *(assign.name for assign in node.assigns)}
        if not node.words or (words and words[0] in DECLARATIONS):
            for assign in node.assigns:
                assigned(self.script, assign)
            exported(self.script, words[1:], node.line)
        written(self.script, node, words)
        if self._is_test(node):
            return truth(node.words, self.expander, double=node.words[0] == "[[")
        return self.command(words, node) if words else True

    @staticmethod
    def _is_test(node: Simple) -> bool:
        return bool(node.words) and node.words[0] in ("[", "[[", "test")

    def command(self, words: list[str], node: Simple) -> bool | None:
        """Carry out a command; its status where it is known."""
        name, line = words[0], node.line
        if name in (":", "true", "false"):
            return name != "false"
        if name == "eval":
            return self.nested(" ".join(words[1:]), line)
        if name in self.functions:
            return self.call(name, words[1:], line)
        if (text := self._shell_text(words, node)) is not None:
            return self.nested(text, line)
        if name in self.own:
            self.own[name](words, node)
            return True
        if name in DECLARATIONS or name in WITHOUT_EFFECT:
            return True
        if node.heredocs and words[-1] in SHELLS:  # srun bash <<EOF
            self.record([*words, "-c", heredoc(self.script, node.heredocs[0])], line)
            return True
        self.record(words, line)
        return None if name in LOOKING else True

    def _shell_text(self, words: list[str], node: Simple) -> str | None:
        """The script that a shell is given: a heredoc, or a file that the script wrote."""
        if words[0] not in SHELLS | {"sbatch"}:
            return None
        return heredoc(self.script, node.heredocs[0]) if node.heredocs else self.script.files.get(words[-1])

    def _unset(self, words: list[str], node: Simple) -> None:
        for word in words[1:]:
            self.expander.variables.pop(word, None)

    def _let(self, words: list[str], node: Simple) -> None:
        for word in words[1:]:
            self.arithmetic(tree.Arithmetic(node.line, word))

    def _shift(self, words: list[str], node: Simple) -> None:
        shift(self.script, int(words[1]) if words[1:2] and words[1].isdigit() else 1)

    def _read(self, words: list[str], node: Simple) -> None:
        """`read` of a heredoc (`read -r -d '' ARGUMENTS <<EOF`) is its text; of anything else, unknown."""
        if node.heredocs:
            self.expander.variables[words[-1]] = heredoc(self.script, node.heredocs[0]).strip()
            return
        for word in words[1:]:
            if word.isidentifier():
                self.expander.variables[word] = self.expander.opaque("command", "read")

    def _read_lines(self, words: list[str], node: Simple) -> None:
        """`mapfile NAME < FILE`: the lines of a file that is known."""
        if len(words) < 2:
            self.record(words, node.line)
            return
        source = next((self.expander.text(target) for operator, target in node.redirects if operator == "<"), "")
        text = found(self.script, source)
        unknown = self.expander.opaque("command", f"{words[0]} < {self.expander.show(source)}")
        self.expander.variables[words[-1]] = unknown if text is None else text.splitlines()

    def _source(self, words: list[str], node: Simple) -> None:
        """A file beside the script is read; of another, only what it is used for can be said."""
        line = node.line
        name = words[1] if len(words) > 1 else "nothing"
        shown = self.expander.show(name)
        if ENVIRONMENT_FILES.search(shown):
            self.script.warnings.append(f"line {line}: {shown} is not read; it is taken to set up an environment only")
        elif (text := found(self.script, name)) is not None:
            self.script.warnings.append(f"line {line}: {shown} is read beside the script")
            self.nested(text, line)
        else:
            unread(self.script, line, f"sources {shown}")

    def record(self, words: list[str], line: int) -> None:
        """Record a command; a nested `bash -c "…"` or `ssh host "…"` is evaluated, its prefix kept as the launcher."""
        if words[0] in ("ssh", "pdsh", "clush") and len(words) > 2 and " " in words[-1]:
            words = [*words[:-1], "bash", "-c", words[-1]]
        place = next(
            (i for i, word in enumerate(words[:-1]) if word in SHELLS and words[i + 1] in ("-c", "-lc", "-ec", "-xc")),
            None,
        )
        if place is not None and place + 2 < len(words):
            before = len(self.script.commands)
            self.nested(words[place + 2], line)
            nested = self.script.commands[before:]
            self.script.commands[before:] = [
                Command((*words[:place], *inner.words), line, inner.condition)
                for inner in nested
                if inner.words[0] not in PRINTERS
            ]
            return
        self.script.commands.append(Command(tuple(words), line, self.conditions[-1] if self.conditions else ""))

    def nested(self, text: str, line: int) -> bool | None:
        if self.depth >= MAXIMUM_DEPTH:
            raise InputError(f"line {line}: commands are nested more than {MAXIMUM_DEPTH} deep")
        self.depth += 1
        before = len(self.script.commands)
        status = self.run(parse(text))
        self.script.commands[before:] = [
            Command(inner.words, line, inner.condition) for inner in self.script.commands[before:]
        ]
        self.depth -= 1
        return status

    def call(self, name: str, arguments: list[str], line: int) -> bool | None:
        if self.depth >= MAXIMUM_DEPTH:
            raise InputError(f"line {line}: the function {name} calls itself more than {MAXIMUM_DEPTH} times")
        self.depth += 1
        kept = {key: value for key, value in self.expander.variables.items() if key.isdigit() or key == "@"}
        self.expander.variables |= {str(i): value for i, value in enumerate(arguments, 1)} | {"@": arguments}
        status = self.run(self.functions[name])
        self.expander.variables = {
            key: value for key, value in self.expander.variables.items() if not (key.isdigit() or key == "@")
        } | kept
        self.depth -= 1
        return status
