"""The control flow of a launch script: sequences, `&&`, `if`, `for`, `while`, `case`, `(( ))`.

Statuses are three-valued. Where a condition is unknown, every branch is followed from the same state, and variables
that the branches leave different become unknown, with the condition as the reason. `importers.shell` carries out
the simple commands.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from importers.shell import tree
from importers.shell.assign import counted
from importers.shell.budget import pieces
from importers.shell.conditions import both, either, negate
from importers.shell.files import piped
from importers.shell.glob import matches
from importers.shell.opaque import cut
from importers.shell.script import Script
from importers.shell.tree import Node, Simple
from importers.shell.values import Value
from program.errors import InputError

MOST_TURNS = 1000
"""Of a `while` whose condition is known; one that goes on is taken to run an unknown number of times."""
VARIABLE_BYTES = 50
"""A variable's place in a copy of all of them."""


class Leave(Exception):
    """`break`, `continue`, `return` or `exit` on its way out. `levels` counts the loops that it leaves."""

    def __init__(self, kind: str, levels: int, status: bool | None) -> None:
        super().__init__(kind)
        self.kind, self.levels, self.status = kind, levels, status
        self.states: list[dict[str, Value]] = []
        """The variables of each way that left, where a condition is unknown."""


class Flow(ABC):
    """Walks the command tree; statuses are True, False or None (unknown)."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.expander = script.expander
        self.functions: dict[str, list[Node]] = {}
        self.left: list[tuple[Leave, str]] = []
        """Ways that left under an unknown condition, and which; they meet the others where they lead to."""
        self.conditions: list[str] = []
        self.budget = script.expander.budget
        self.loops = 0
        """Loops around the command, up to the function."""
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
                alone = len(node.parts) == 1
                statuses = [self.node(part) if alone else self.apart([part]) for part in node.parts]
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
                return self.apart(node.body) if node.apart else self.run(node.body)
            case tree.Arithmetic():
                return self.arithmetic(node)
        return True

    def apart(self, body: list[Node]) -> bool | None:
        """A subshell: its variables end with it, and `exit` leaves it alone."""
        before, waiting = self.copied(self.expander.variables), self.left
        self.left = []
        try:
            status = self.run(body)
        except Leave as leave:
            status = leave.status
        self.left = waiting
        self.expander.variables = before
        return status

    def chain(self, node: tree.Chain) -> bool | None:
        self.expander.asked = False
        status = self.node(node.first)
        for operator, following in node.rest:
            if status is None:
                self.either_way([[following], []], self.because(f"the test before {operator}"))
            elif status == (operator == "&&"):
                status = self.guarded(lambda following=following: self.node(following))  # type: ignore[misc]
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
        self.expander.asked = False
        status = self.run(condition)
        if status is True:
            self.guarded(lambda: self.run(body))
        elif status is False:
            self.branches(branches[1:], otherwise, line)
        else:
            rest: list[Node] = [tree.If(line, branches[1:], otherwise)]
            self.either_way([body, rest], self.because(f"the condition in line {line}"))

    def guarded(self, run: Callable[[], bool | None]) -> bool | None:
        """`[ $# -eq 2 ] || exit 1`: whoever asks for the script's arguments was not given them here, and goes on."""
        asked = self.expander.asked
        try:
            return run()
        except Leave as leave:
            if not asked or leave.kind != "exit" or leave.status:
                raise
            return True

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
        leaves: list[Leave] = []
        for body in bodies:
            self.expander.variables = self.copied(before)
            try:
                self.run(body)
            except Leave as leave:
                leave.states.append(self.expander.variables)
                leaves.append(leave)
                continue
            outcomes.append(self.expander.variables)
        self.conditions.pop()
        self.left += [(leave, reason) for leave in leaves]
        if not outcomes:  # every way leaves: by the one that leads furthest
            self.left.pop(len(self.left) - len(leaves) + leaves.index(last := max(leaves, key=_reach)))
            raise last
        self.merge(outcomes, reason)

    def land(self, here: Callable[[Leave], bool], reason: str = "") -> None:
        """Where `break`, `return` and their like lead to: the ways that came by one meet the way that did not."""
        landed = [(leave, why) for leave, why in self.left if here(leave)]
        self.left = [(leave, why) for leave, why in self.left if not here(leave)]
        for leave, why in landed:
            for state in leave.states:
                self.merge([self.expander.variables, state], reason or why)

    def merge(self, outcomes: list[dict[str, Value]], reason: str) -> None:
        """Variables that are not the same in all outcomes become unknown for `reason`."""
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
            self.either_way([[tree.For(node.line, node.name, ["?"], node.body)], []], f"the loop in line {node.line}")
            return
        for item in items:
            self.budget.step()
            self.expander.variables[node.name] = item
            if not self.turn(node.body):
                break
        self._out_of_a_loop()

    def _out_of_a_loop(self) -> None:
        self.land(lambda leave: leave.kind == "break" and leave.levels == 1)
        for leave, _ in self.left:
            leave.levels -= leave.kind in ("break", "continue")

    def turn(self, body: list[Node], after: list[Node] | None = None) -> bool:
        """One time through a loop, and what a `for (( ))` does `after` it; whether there may be another."""
        more = True
        self.loops += 1
        try:
            self.run(body)
        except Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            leave.levels -= 1
            if leave.levels > 0:
                raise
            more = leave.kind == "continue"
        finally:
            self.loops -= 1
        self.land(lambda leave: leave.kind == "continue" and leave.levels == 1)
        self.run(after or [] if more else [])
        return more

    def while_(self, node: tree.While) -> None:
        """A loop whose condition is known runs to its end; how often another runs is unknown, and so is one that
        nothing in its body ends."""
        self.run(node.first)
        before, commands = self.copied(self.expander.variables), len(self.script.commands)
        for _ in range(MOST_TURNS):
            self.expander.tested = []
            status = self.run(node.condition) if node.condition else True
            if status == node.until and status is not None:
                break
            held = self.expander.variables
            self.expander.variables = self.copied(held)
            if status is None or not self.turn(node.body, node.after):
                break
            if held == self.expander.variables:  # as it began: it would never end by itself
                status = True
                break
        else:
            self.expander.variables, status = before, None
            del self.script.commands[commands:]
        if status is None:
            once = tree.For(node.line, "_", ["once"], [*node.body, *node.after])
            self.either_way([[once], []], self.because(f"the loop in line {node.line}"))
        self._out_of_a_loop()

    def case(self, node: tree.Case) -> None:
        word = self.expander.text(node.word)
        if reasons := self.expander.why(word):
            self.expander.tested = reasons
            self.either_way([body for _, body, _ in node.arms] + [[]], self.because(f"the case in line {node.line}"))
            return
        through = False
        for patterns, body, ending in node.arms:
            self.budget.step()
            if through or any(self.fits(word, pattern, node.line) for pattern in patterns):
                self.run(body)
                if ending == ";;":
                    return
                through = ending == ";&"

    def fits(self, word: str, raw: str, line: int) -> bool:
        self.budget.step()
        pattern = self.expander.pattern(raw)
        if self.expander.why(pattern):
            raise InputError(f"line {line}: the pattern {cut(raw, 60)} of this case is unknown")
        return matches(word, pattern, self.budget)

    def arithmetic(self, node: tree.Arithmetic) -> bool | None:
        """`(( N++ ))` changes N; the status is whether the value is not 0."""
        value = self.expander.arithmetic(node.expression)
        self.expander.tested += self.expander.why(value)
        return None if self.expander.why(value) else value != "0"


def _reach(leave: Leave) -> tuple[int, int]:
    return ("continue", "break", "return", "exit").index(leave.kind), leave.levels
