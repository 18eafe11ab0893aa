"""Walks a script command by command, nested scripts and sourced files too."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from importers.shell import tree
from importers.shell.arithmetic import whole
from importers.shell.assign import ITEM_BYTES, assigned
from importers.shell.budget import pieces
from importers.shell.builtins import exported, give, options, shift, unread
from importers.shell.conditions import truth
from importers.shell.files import found, heredoc, written
from importers.shell.flow import VARIABLE_BYTES, Flow, Leave
from importers.shell.opaque import plain
from importers.shell.parse import parse
from importers.shell.printing import printed
from importers.shell.script import Command, Script
from importers.shell.slurm import slurm_variables
from importers.shell.splitting import BLANKS, split
from importers.shell.substitute import CHARACTERS_A_STEP
from importers.shell.tree import Node, Simple
from importers.shell.values import Value, first
from program.confined import Confined
from program.errors import InputError

DECLARATIONS = frozenset({"export", "declare", "local", "readonly", "typeset"})
SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh"})
ENVIRONMENT_FILES = re.compile(r"(\bactivate$|bashrc$|bash_profile$|\.profile$|/etc/profile|conda\.sh$|/etc/bashrc)")
PRINTERS = frozenset({"echo", "printf", "cat", "tee", "sed"})
WITHOUT_EFFECT = frozenset({"cd", "wait", "trap", "shopt", "ulimit", "umask"})
LEAVING = frozenset({"break", "continue", "return", "exit"})
LOOKING = frozenset({"command", "which", "type", "grep", "hash", "nvidia-smi"})
"""Commands whose status nobody knows without the machine."""
COMMAND_BYTES = 300
"""The record of one command."""


def read_script(
    text: str, variables: Mapping[str, str] | None = None, path: Path | None = None, allowed: Sequence[Path] = ()
) -> Script:
    """Evaluate a script. `variables` are set beforehand, as if exported; the names 1, 2, … are the script's arguments.
    `path` is where it stands, for the files beside it; it may read those below the folders `allowed` too. Raises
    `InputError` when the text is not a script, or asks for more than its `Budget`.
    """
    text = plain(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    given = {name: plain(value) for name, value in (variables or {}).items()}
    script = Script(text, Confined(path.parent if path else None, tuple(allowed)))
    script.expander.file = lambda name: found(script, name)
    script.expander.name = f"./{path.name if path else 'script.sh'}"
    script.expander.variables |= slurm_variables(text)
    script.expander.variables |= given
    arguments = sorted((number, value) for name, value in given.items() if (number := whole(name)) is not None)
    if arguments:
        script.expander.variables["@"] = [value for _, value in arguments]
    try:
        script.expander.budget.step(pieces(len(text), CHARACTERS_A_STEP))
        _Walk(script).whole(parse(text))
    except RecursionError:
        raise InputError(
            f"line {script.expander.budget.line}: the script nests brackets or commands too deeply to be read"
        ) from None
    except InputError as error:  # nobody can read a marker
        raise InputError(map(script.expander.show, error.problems)) from None
    finally:
        script.expander.budget.stop_clock()
    script.warnings += script.expander.notes
    return script


class _Walk(Flow):
    """Carries out simple commands; what a command would do outside the script is recorded."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.local: list[dict[str, Value | None]] = []
        """For each function that is being walked: what its `local` variables were before."""
        self.expander.called = self._output_of
        self.own: dict[str, Callable[[list[str], Simple], bool | None]] = {
            "source": self._source,
            ".": self._source,
            "unset": self._unset,
            "set": lambda words, node: options(script, words[1:]),
            "printf": self._printf,
            "getopts": self._getopts,
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
        if words[:1] and words[0] in DECLARATIONS and any(word[:1] == "-" and "i" in word for word in words[1:]):
            self.expander.integers |= {*(assign.name for assign in node.assigns), *words[1:]}
        if words[:1] == ["local"] and self.local:
            for name in [*(assign.name for assign in node.assigns), *(word.partition("=")[0] for word in words[1:])]:
                self.local[-1].setdefault(name, self.expander.variables.get(name))
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
        if name in LEAVING:
            return self._leave(words)
        if name in (":", "true", "false"):
            return name != "false"
        if name == "eval":
            return self.nested(" ".join(words[1:]), line)
        if name in self.functions:
            return self.call(name, words[1:], line)
        if (text := self._shell_text(words, node)) is not None:
            return self.nested(text, line, shell=True)
        if name in self.own:
            return self.own[name](words, node)
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

    def _leave(self, words: list[str]) -> bool:
        """`exit 1`, `return`, `break 2`; outside a loop or a function `break` and `return` do nothing."""
        number = whole(words[1]) if len(words) > 1 else None
        if words[0] in ("break", "continue") and self.loops:
            raise Leave(words[0], min(number or 1, self.loops), True)
        if words[0] == "exit" or (words[0] == "return" and self.depth):
            raise Leave(words[0], 0, (number or 0) % 256 == 0 if len(words) == 1 or number is not None else None)
        return words[0] != "return"

    def _unset(self, words: list[str], node: Simple) -> bool:
        for word in words[1:]:
            self.expander.variables.pop(word, None)
        return True

    def _let(self, words: list[str], node: Simple) -> bool | None:
        status: bool | None = True
        for word in words[1:]:
            status = self.arithmetic(tree.Arithmetic(node.line, word))
        return status

    def _shift(self, words: list[str], node: Simple) -> bool:
        shift(self.script, next((n for n in map(whole, words[1:2]) if n is not None), 1))
        return True

    def _printf(self, words: list[str], node: Simple) -> bool:
        """`printf -v NAME FORMAT …` sets a variable; any other prints."""
        if words[1:2] != ["-v"] or len(words) < 4:
            self.record(words, node.line)
            return True
        text = printed(self.expander, words[3], words[4:])
        unknown = self.expander.opaque("command", self.expander.show(" ".join(words)))
        self.expander.variables[words[2]] = unknown if text is None else self.budget.text(text)
        return True

    def _getopts(self, words: list[str], node: Simple) -> bool | None:
        """Without arguments there are no options."""
        return None if self.expander.variables.get("@") else False

    def _read(self, words: list[str], node: Simple) -> bool | None:
        """`read` of a heredoc (`read -r -d '' ARGUMENTS <<EOF`) is its text, of `<<< text` its words, one
        a name and the rest to the last; of anything else, unknown."""
        if node.heredocs:
            self.expander.variables[words[-1]] = heredoc(self.script, node.heredocs[0]).strip()
            return True
        text = next((self.expander.text(target) for operator, target in node.redirects if operator == "<<<"), None)
        names = [word for word in words[1:] if word.isidentifier()]
        if text is None or self.expander.why(text) or set("dnNtpu") & set("".join(w for w in words[1:] if w[0] == "-")):
            self.expander.variables |= dict.fromkeys(names, self.expander.opaque("command", "read"))
            return None
        self._spread(text.split("\n")[0], names, any(word[0] == "-" and "a" in word for word in words[1:]), node)
        return True

    def _spread(self, text: str, names: list[str], array: bool, node: Simple) -> None:
        """The words of a line that is read, by the IFS of the command or the script."""
        own = next((self.expander.text(assign.value) for assign in node.assigns if assign.name == "IFS"), None)
        ifs = first(self.expander.variables.get("IFS", BLANKS)) if own is None else own
        self.budget.step(pieces(len(text), CHARACTERS_A_STEP))
        fields = split(text, ifs) if text else []
        self.budget.take(ITEM_BYTES * len(fields))
        if array:
            self.expander.variables[names[-1]] = fields
            return
        for number, name in enumerate(names[:-1]):
            self.expander.variables[name] = fields[number] if number < len(fields) else ""
        glue = " " if not ifs.strip() else ifs[0]
        self.expander.variables |= {name: glue.join(fields[len(names) - 1 :]) for name in names[-1:]}

    def _read_lines(self, words: list[str], node: Simple) -> bool:
        """`mapfile NAME < FILE`: the lines of a file that is known."""
        if len(words) < 2:
            self.record(words, node.line)
            return True
        source = next((self.expander.text(target) for operator, target in node.redirects if operator == "<"), "")
        text = found(self.script, source)
        unknown = self.expander.opaque("command", f"{words[0]} < {self.expander.show(source)}")
        lines = (text or "").splitlines()
        self.budget.take(ITEM_BYTES * len(lines))
        self.budget.step(pieces(len(lines), 8))
        self.expander.variables[words[-1]] = unknown if text is None else lines
        return True

    def _source(self, words: list[str], node: Simple) -> bool:
        """A file beside the script is read; of another, only what it is used for can be said."""
        line = node.line
        name = words[1] if len(words) > 1 else "nothing"
        shown = self.expander.show(name)
        if ENVIRONMENT_FILES.search(shown):
            self.script.warn(f"line {line}: {shown} is not read; it is taken to set up an environment only")
        elif (text := found(self.script, name)) is not None:
            self.script.warn(f"line {line}: {shown} is read beside the script")
            self.nested(text, line, shown)
        else:
            unread(self.script, line, f"sources {shown}")
        return True

    def record(self, words: list[str], line: int) -> None:
        """Record a command; a nested `bash -c "…"` or `ssh host "…"` is evaluated, its prefix kept as the launcher."""
        if words[0] in ("ssh", "pdsh", "clush") and len(words) > 2 and " " in words[-1]:
            words = [*words[:-1], "bash", "-c", words[-1]]
        if len(words) > 2 and words[-2] in ("-c", "--") and re.search(r"\s", words[-1]) and words[-3] not in SHELLS:
            words = [*words[:-2], "bash", "-c", words[-1]]  # `launcher -c 'python train.py …'`
        place = next(
            (i for i, word in enumerate(words[:-1]) if word in SHELLS and words[i + 1] in ("-c", "-lc", "-ec", "-xc")),
            None,
        )
        if place is not None and place + 2 < len(words):
            before = len(self.script.commands)
            self.nested(words[place + 2], line, shell=True)
            nested = self.script.commands[before:]
            self.script.commands[before:] = [
                Command((*words[:place], *inner.words), line, inner.condition)
                for inner in nested
                if inner.words[0] not in PRINTERS
            ]
            return
        self.budget.take(COMMAND_BYTES + ITEM_BYTES * len(words))
        self.script.commands.append(Command(tuple(words), line, self.conditions[-1] if self.conditions else ""))

    def nested(self, text: str, line: int, file: str = "", shell: bool = False) -> bool | None:
        """Walk a script inside this one. What a `file` that is no script holds is nobody's business."""
        self.budget.deeper("scripts inside scripts")
        self.budget.step(pieces(len(text), CHARACTERS_A_STEP))
        self.depth += 1
        before = len(self.script.commands)
        try:
            nodes = parse(text)
        except InputError:
            if file:
                raise InputError(f"line {line}: {file} cannot be read as a script") from None
            raise
        try:
            return self.returned(nodes, shell)
        finally:
            self.script.commands[before:] = [
                Command(inner.words, line, inner.condition) for inner in self.script.commands[before:]
            ]
            self.depth -= 1
            self.budget.depth -= 1
            self.budget.step(len(self.script.commands) - before)

    def whole(self, nodes: list[Node]) -> None:
        """The script from its beginning to its end or to an `exit`."""
        try:
            self.run(nodes)
        except Leave as leave:
            if not leave.status:
                self.script.warn(f"line {self.budget.line}: the script ends here with an error, by exit")

    def returned(self, nodes: list[Node], shell: bool = False) -> bool | None:
        """The commands of a function or another script, up to `return`; `exit` ends a `shell` of its own."""
        loops, self.loops = self.loops, 0
        ends = ("return", "exit") if shell else ("return",)
        try:
            status = self.run(nodes)
        except Leave as leave:
            if leave.kind not in ends:
                raise
            status = leave.status
        finally:
            self.loops = loops
        if any(leave.kind in ends for leave, _ in self.left):
            status = None
        self.land(lambda leave: leave.kind in ends)
        return status

    def call(self, name: str, arguments: list[str], line: int) -> bool | None:
        self.budget.deeper(f"the function {name} calls itself")
        self.depth += 1
        kept = self._positional(True)
        self.expander.variables = self._positional(False)
        give(self.script, arguments)
        self.local.append({})
        try:
            return self.returned(self.functions[name])
        finally:  # by `exit` too, which a subshell or another branch may survive
            self.depth -= 1
            self.budget.depth -= 1
            self.expander.variables = self._positional(False) | kept
            for variable, value in self.local.pop().items():
                self.expander.variables.pop(variable, None)
                if value is not None:
                    self.expander.variables[variable] = value

    def _output_of(self, name: str, arguments: list[str]) -> str | None:
        """What a function prints, if all that it does is to print."""
        if name not in self.functions:
            return None
        before, variables, line = len(self.script.commands), self.copied(self.expander.variables), self.budget.line
        try:
            self.call(name, arguments, line)
        except Leave:
            return None
        finally:
            done = self.script.commands[before:]
            del self.script.commands[before:]
            self.expander.variables = variables
        lines = []
        for command in done:
            words = [word for word in command.words[1:] if word != "-n"]
            text = " ".join(words) if command.words[0] == "echo" else None
            if command.words[0] == "printf" and words:
                text = printed(self.expander, words[0], words[1:])
            if text is None or command.condition:
                return None
            lines.append(text)
        return "\n".join(lines).rstrip("\n")

    def _positional(self, wanted: bool) -> dict[str, Value]:
        """The variables that are arguments, or those that are not."""
        self.budget.step(1 + pieces(len(self.expander.variables), 8))
        self.budget.take(VARIABLE_BYTES * len(self.expander.variables))
        return {key: value for key, value in self.expander.variables.items() if (key == "@" or key.isdigit()) == wanted}
