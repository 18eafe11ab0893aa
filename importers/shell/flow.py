"""The control flow of a launch script: sequences, `&&`, `if`, `for`, `while`, `case`, `(( ))`.

Statuses are three-valued. Where a condition is unknown, every branch is followed from the same state, and variables
that the branches leave different become unknown, with the condition as the reason. `importers.shell` carries out
the simple commands.
"""

import re
from abc import ABC, abstractmethod

from importers.shell import tree
from importers.shell.assign import counted
from importers.shell.budget import pieces
from importers.shell.conditions import both, either, negate, truth
from importers.shell.files import piped
from importers.shell.script import Script
from importers.shell.tree import Node, Simple
from importers.shell.values import Value

VARIABLE_BYTES = 50
"""A variable's place in a copy of all of them."""


class Flow(ABC):
    """Walks the command tree; statuses are True, False or None (unknown)."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.expander = script.expander
        self.functions: dict[str, list[Node]] = {}
        self.conditions: list[str] = []
        self.budget = script.expander.budget
        self.depth = 0
        """Nested scripts and functions that are being walked: their lines are those of other texts."""

    @abstractmethod
    def simple(self, node: Simple) -> bool | None:
        """Carry out one command."""

    def run(self, nodes: list[Node]) -> bool | None:
        status: bool | None = True
        for node in nodes:
            status = self.node(node)
        return status

    def node(self, node: Node) -> bool | None:
        self.budget.step()
        if self.depth == 0:
            self.budget.line = getattr(node, "line", self.budget.line)
        match node:
            case Simple():
                return self.simple(node)
            case tree.Chain():
                return self.chain(node)
            case tree.Pipeline():
                piped(self.script, node)
                statuses = [self.node(part) for part in node.parts]
                return negate(statuses[-1]) if node.negated else statuses[-1]
            case tree.If():
                self.branches(node.branches, node.otherwise, node.line)
            case tree.For():
                self.loop(node)
            case tree.While():
                self.while_(node)
            case tree.Case():
                self.case(node)
            case tree.Function():
                self.functions[node.name] = node.body
            case tree.Group():
                before = self.copied(self.expander.variables) if node.apart else None
                status = self.run(node.body)
                self.expander.variables = self.expander.variables if before is None else before
                return status
            case tree.Arithmetic():
                return self.arithmetic(node)
        return True

    def chain(self, node: tree.Chain) -> bool | None:
        status = self.node(node.first)
        for operator, following in node.rest:
            if status is None:
                self.either_way([[following], []], self.because(f"the test before {operator}"))
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
        self.expander.tested = []
        status = self.run(condition)
        if status is True:
            self.run(body)
        elif status is False:
            self.branches(branches[1:], otherwise, line)
        else:
            rest: list[Node] = [tree.If(line, branches[1:], otherwise)]
            self.either_way([body, rest], self.because(f"the condition in line {line}"))

    def because(self, what: str) -> str:
        """`what` is unknown, with the undefined variables and arguments that it asks about."""
        tested, self.expander.tested = self.expander.tested, []
        names = list(dict.fromkeys(entry.detail for entry in tested if entry.kind == "undefined"))
        given = list(dict.fromkeys(entry.detail for entry in tested if entry.kind == "positional"))
        beside = f" ({self.expander.unread})" if self.expander.unread else ""
        if names:
            one = len(names) == 1
            which = f"variable {names[0]} is" if one else f"variables {', '.join(names)} are"
            return f"{what}, where the {which} not defined in the script{beside}"
        return f"{what}, which asks for the script's argument {given[0]}" if given else what

    def either_way(self, bodies: list[list[Node]], reason: str) -> None:
        """Follow every body from the same state; variables they leave different become unknown for `reason`."""
        before = self.expander.variables
        outcomes: list[dict[str, Value]] = []
        self.conditions.append(reason)
        for body in bodies:
            self.expander.variables = self.copied(before)
            self.run(body)
            outcomes.append(self.expander.variables)
        self.conditions.pop()
        for outcome in outcomes:
            self.budget.step(pieces(len(outcome), 8))
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

    def copied(self, variables: dict[str, Value]) -> dict[str, Value]:
        """The variables for one branch; their values are never changed in place."""
        self.budget.step(pieces(len(variables), 32))
        self.budget.take(VARIABLE_BYTES * len(variables))
        return dict(variables)

    def loop(self, node: tree.For) -> None:
        items = [field for raw in node.words for field in counted(raw) or self.expander.fields(raw)]
        self.budget.step(len(items))
        if any(self.expander.why(item) for item in items):
            self.either_way([node.body, []], f"the loop in line {node.line}")
            return
        for item in items:
            self.budget.step()
            self.expander.variables[node.name] = item
            self.run(node.body)

    def while_(self, node: tree.While) -> None:
        """A loop that ends before it begins is passed over; how often another runs is unknown."""
        self.expander.tested = []
        status = self.run(node.condition) if node.condition else None
        if status is None or status == (not node.until):
            self.either_way([node.body, []], self.because(f"the loop in line {node.line}"))

    def case(self, node: tree.Case) -> None:
        word = self.expander.text(node.word)
        if reasons := self.expander.why(word):
            self.expander.tested = reasons
            self.either_way([body for _, body, _ in node.arms] + [[]], self.because(f"the case in line {node.line}"))
            return
        for patterns, body, _ in node.arms:
            self.budget.step()
            quoted = ["[[", '"$__case"', "==", *()]
            for pattern in patterns:
                self.budget.step()
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
        self.expander.tested += self.expander.why(value)
        return None if self.expander.why(value) else value != "0"
