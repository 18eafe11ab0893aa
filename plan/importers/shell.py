"""A safe evaluator of launch scripts: it learns what a script would run, and runs nothing.

    script = read_script(text)
    script.commands            # every command line the script would start, expanded to words
    script.files               # what heredocs wrote: {"ds.json": "..."}
    script.expander.why(word)  # why a value is unknown: an undefined variable, a command's output, an argument of the
    script

Variables, defaults, arrays, arithmetic and tests are evaluated; commands are only recorded. When a condition cannot be
known, both branches are followed and what they leave different becomes unknown, with the condition as the reason. A
sourced file is a problem that names the file, because whatever it defines is missing here.
"""

import copy
import re
from collections.abc import Mapping

from plan.errors import InputError
from plan.importers import shell_tree as tree
from plan.importers.script import Command, Script
from plan.importers.shell_expand import Value
from plan.importers.shell_parse import DECLARATIONS, parse
from plan.importers.shell_syntax import Heredoc
from plan.importers.shell_tests import both, either, negate, truth
from plan.importers.shell_tree import Assign, Node, Simple
from plan.importers.slurm import slurm_variables

SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh"})
ENVIRONMENT_FILES = re.compile(r"(\bactivate$|bashrc$|bash_profile$|\.profile$|/etc/profile|conda\.sh$|/etc/bashrc)")
MAXIMUM_DEPTH = 40
MAXIMUM_STEPS = 100_000


def read_script(text: str, variables: Mapping[str, str] | None = None) -> Script:
    """Evaluate a script. `variables` are set beforehand, as if exported. Raises `InputError` when the text is not a
    script.
    """
    script = Script(text)
    script.expander.variables |= slurm_variables(text)
    script.expander.variables |= dict(variables or {})
    try:
        _Walk(script).run(parse(text))
    except RecursionError:
        raise InputError("the script nests brackets or commands too deeply to be read") from None
    script.warnings += script.expander.notes
    return script


class _Walk:
    """Walks the command tree; statuses are True, False or None (unknown)."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.expander = script.expander
        self.functions: dict[str, list[Node]] = {}
        self.depth = 0
        self.unknown_conditions = 0
        self.steps = 0

    def run(self, nodes: list[Node]) -> bool | None:
        status: bool | None = True
        for node in nodes:
            status = self.node(node)
        return status

    def node(self, node: Node) -> bool | None:
        self.steps += 1
        if self.steps > MAXIMUM_STEPS:  # loops in loops, a function that calls itself twice
            raise InputError(f"the script runs more than {MAXIMUM_STEPS:,} commands; keep the one to import")
        match node:
            case Simple():
                return self.simple(node)
            case tree.Chain():
                return self.chain(node)
            case tree.Pipeline():
                statuses = [self.node(part) for part in node.parts]
                return negate(statuses[-1]) if node.negated else statuses[-1]
            case tree.If():
                self.branches(node.branches, node.otherwise, node.line)
            case tree.For():
                self.loop(node)
            case tree.While():
                self.either_way([node.body, []], f"the loop in line {node.line}")
            case tree.Case():
                self.case(node)
            case tree.Function():
                self.functions[node.name] = node.body
            case tree.Group():
                return self.run(node.body)
            case tree.Arithmetic():
                return self.arithmetic(node)
        return True

    def chain(self, node: tree.Chain) -> bool | None:
        status = self.node(node.first)
        for operator, following in node.rest:
            if status is None:
                self.either_way([[following], []], "a test before " + operator)
            elif status == (operator == "&&"):
                status = self.node(following)
            else:
                continue
            status = both(status, True) if operator == "&&" else either(status, False)
        return status

    def branches(self, branches: list[tuple[list[Node], list[Node]]], otherwise: list[Node], line: int) -> None:
        if not branches:
            self.run(otherwise)
            return
        condition, body = branches[0]
        status = self.run(condition)
        if status is True:
            self.run(body)
        elif status is False:
            self.branches(branches[1:], otherwise, line)
        else:
            rest: list[Node] = [tree.If(line, branches[1:], otherwise)]
            self.either_way([body, rest], f"the condition in line {line}")

    def either_way(self, bodies: list[list[Node]], reason: str) -> None:
        """Follow every body from the same state; variables they leave different become unknown for `reason`."""
        before = dict(self.expander.variables)
        outcomes: list[dict[str, Value]] = []
        self.unknown_conditions += 1
        for body in bodies:
            self.expander.variables = copy.deepcopy(before)
            self.run(body)
            outcomes.append(self.expander.variables)
        self.unknown_conditions -= 1
        merged: dict[str, Value] = {}
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            values = [outcome.get(name) for outcome in outcomes]
            first = values[0]
            same = first is not None and all(value == first for value in values)
            merged[name] = (
                first
                if same and first is not None
                else self.expander.opaque("condition", f"{reason} (variable ${name})")
            )
        self.expander.variables = merged

    def loop(self, node: tree.For) -> None:
        items = [field for raw in node.words for field in self.expander.fields(raw)]
        if any(self.expander.why(item) for item in items):
            self.either_way([node.body, []], f"the loop in line {node.line}")
            return
        for item in items:
            self.expander.variables[node.name] = item
            self.run(node.body)

    def case(self, node: tree.Case) -> None:
        word = self.expander.text(node.word)
        if self.expander.why(word):
            self.either_way([body for _, body in node.arms] + [[]], f"the case in line {node.line}")
            return
        for patterns, body in node.arms:
            quoted = ["[[", '"$__case"', "==", *()]
            for pattern in patterns:
                self.expander.variables["__case"] = word
                if truth([*quoted, pattern, "]]"], self.expander, double=True):
                    del self.expander.variables["__case"]
                    self.run(body)
                    return
        self.expander.variables.pop("__case", None)

    def arithmetic(self, node: tree.Arithmetic) -> bool | None:
        match = re.match(r"\s*([A-Za-z_]\w*)\s*(\+\+|--|[-+*/]?=(?!=))\s*(.*)$", node.expression, re.DOTALL)
        if match:
            name, sign, right = match.groups()
            expression = (
                f"{name} {sign[0]} 1"
                if sign in ("++", "--")
                else right
                if sign == "="
                else f"{name} {sign[0]} ({right})"
            )
            self.expander.variables[name] = self.expander.arithmetic(expression)
            return True
        value = self.expander.arithmetic(node.expression)
        return None if self.expander.why(value) else value != "0"

    def simple(self, node: Simple) -> bool | None:
        words = [field for raw in node.words for field in self.expander.fields(raw)] if not self._is_test(node) else []
        if not node.words or (words and words[0] in DECLARATIONS):
            for assign in node.assigns:
                self.assign(assign)
        self.write_files(node, words)
        if self._is_test(node):
            return truth(node.words, self.expander, double=node.words[0] == "[[")
        return self.command(words, node) if words else True

    @staticmethod
    def _is_test(node: Simple) -> bool:
        return bool(node.words) and node.words[0] in ("[", "[[", "test")

    def assign(self, assign: Assign) -> None:
        self.expander.used.clear()
        old = self.expander.variables.get(assign.name)
        if assign.items is not None:
            items = [field for raw in assign.items for field in self.expander.fields(raw)]
            blank = [item for item in items if item.strip() == ""]
            if blank:
                self.script.warnings.append(
                    f"array {assign.name}: a backslash followed by a blank adds an empty argument; it is dropped"
                )
            value: Value = [item for item in items if item.strip()]
            if assign.append and old is not None:
                value = [*([old] if isinstance(old, str) else old), *value]
        elif assign.index is not None:
            value = [*(old if isinstance(old, list) else []), self.expander.text(assign.value)]
        else:
            text = self.expander.text(assign.value)
            value = text
            if assign.append and old is not None:
                value = [old[0] + text if old else text, *old[1:]] if isinstance(old, list) else old + text
        self.script.made_from[assign.name] = set(self.expander.used) | (
            self.script.made_from.get(assign.name, set()) if assign.append else set()
        )
        self.expander.variables[assign.name] = value

    def write_files(self, node: Simple, words: list[str]) -> None:
        target = next((target for operator, target in node.redirects if operator in (">", ">>", ">|")), None)
        name = (
            self.expander.text(target) if target else (words[-1] if words[:1] == ["tee"] and len(words) > 1 else None)
        )
        if name is None:
            return
        if node.heredocs:
            self.script.files[name] = "".join(self._heredoc(doc) for doc in node.heredocs)
        elif words[:1] in (["echo"], ["printf"]):
            self.script.files[name] = " ".join(words[1:]) + "\n"

    def _heredoc(self, doc: Heredoc) -> str:
        return doc.body if doc.quoted else self.expander.heredoc(doc.body)

    def command(self, words: list[str], node: Simple) -> bool | None:
        name, line = words[0], node.line
        if name in (":", "true", "false"):
            return name != "false"
        if name in ("source", "."):
            self.source(words, line)
        elif name == "unset":
            for word in words[1:]:
                self.expander.variables.pop(word, None)
        elif name == "eval":
            return self.nested(" ".join(words[1:]), line)
        elif name in self.functions:
            return self.call(name, words[1:], line)
        elif name in SHELLS | {"sbatch"} and node.heredocs:
            return self.nested(self._heredoc(node.heredocs[0]), line)
        elif name in SHELLS | {"sbatch"} and words[-1] in self.script.files:
            return self.nested(self.script.files[words[-1]], line)
        elif name == "read" and node.heredocs:  # read -r -d '' ARGUMENTS <<EOF
            self.expander.variables[words[-1]] = self._heredoc(node.heredocs[0]).strip()
        elif name in DECLARATIONS or name in (
            "set",
            "shift",
            "cd",
            "exit",
            "return",
            "read",
            "let",
            "wait",
            "trap",
            "shopt",
            "ulimit",
            "umask",
        ):
            return True
        else:
            self.record(words, line)
            return None if name in ("command", "which", "type", "grep", "hash", "nvidia-smi") else True
        return True

    def source(self, words: list[str], line: int) -> None:
        shown = self.expander.show(words[1]) if len(words) > 1 else "nothing"
        if ENVIRONMENT_FILES.search(shown):
            self.script.warnings.append(f"line {line}: {shown} is not read; it is taken to set up an environment only")
            return
        self.script.problems.append(
            f"line {line} sources {shown}, which is not read, so what it defines is unknown; "
            "write its variables into the script, or delete the line if it only prepares an environment"
        )

    def record(self, words: list[str], line: int) -> None:
        """Record a command; a nested `bash -c "…"` is evaluated and its prefix kept as the launcher."""
        place = next(
            (i for i, word in enumerate(words[:-1]) if word in SHELLS and words[i + 1] in ("-c", "-lc", "-ec", "-xc")),
            None,
        )
        if place is not None and place + 2 < len(words):
            before = len(self.script.commands)
            self.nested(words[place + 2], line)
            inner = self.script.commands[before:]
            self.script.commands[before:] = [
                Command((*words[:place], *found.words), line, found.conditional) for found in inner
            ]
            return
        self.script.commands.append(Command(tuple(words), line, self.unknown_conditions > 0))

    def nested(self, text: str, line: int) -> bool | None:
        if self.depth >= MAXIMUM_DEPTH:
            raise InputError(f"line {line}: commands are nested more than {MAXIMUM_DEPTH} deep")
        self.depth += 1
        before = len(self.script.commands)
        status = self.run(parse(text))
        self.script.commands[before:] = [
            Command(found.words, line, found.conditional) for found in self.script.commands[before:]
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
