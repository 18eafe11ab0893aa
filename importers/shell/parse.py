"""From the grammar's tree of a launch script to its command tree (`importers.shell.tree`); one method a construct.

    parse('if [ -z "$N" ]; then N=1; fi\\nfoo --n $N')  ->  [If(...), Simple(words=["foo", "--n", "$N"])]

Words stay as they are written, quotes and `$` included; `importers.shell.expand` gives them values and
`importers.shell.flow` walks the records. Nothing is expanded or executed here.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from importers.shell.grammar import MAXIMUM_NESTING, syntax_tree
from importers.shell.tree import (
    Arithmetic,
    Assign,
    Case,
    Chain,
    For,
    Function,
    Group,
    Heredoc,
    If,
    Node,
    Pipeline,
    Simple,
    While,
)
from program.errors import InputError

if TYPE_CHECKING:
    from tree_sitter import Node as Syntax

KEYWORDS = frozenset("if then elif else fi for while until do done case esac }".split())
SEPARATE = frozenset({"(", ")", "&&", "||", "!"})
"""Tokens of `[[ ]]` that need no blanks around them."""
NESTED_TESTS = frozenset({"binary_expression", "unary_expression", "parenthesized_expression", "postfix_expression"})


def parse(text: str) -> list[Node]:
    """The command tree of a script. Raises `InputError` naming the line of what cannot be parsed."""
    return _Reader(text).body(syntax_tree(text).root_node.children)


class _Reader:
    """Makes records of the grammar's nodes; one method a construct."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0

    def raw(self, node: "Syntax | None") -> str:
        return "" if node is None else self.text[node.start_byte : node.end_byte]

    def words(self, nodes: "Sequence[Syntax]") -> list[str]:
        """What stands together without a blank is one word, however many nodes the grammar makes of it."""
        spans: list[tuple[int, int]] = []
        for node in nodes:
            start, end = node.byte_range
            if spans and not self.text[spans[-1][1] : start].replace("\\\n", ""):
                start = spans.pop()[0]
            spans.append((start, end))
        return [self.text[start:end] for start, end in spans]

    def body(self, nodes: "Sequence[Syntax]") -> list[Node]:
        """The commands among some nodes, in order."""
        found: list[Node] = []
        for node in nodes:
            if node.type == "&" and found:
                found[-1] = Group([found[-1]], apart=True)
            elif node.is_named and node.type != "comment":
                found.append(self.node(node))
        return found

    def node(self, node: "Syntax") -> Node:
        self.depth += 1
        if self.depth > MAXIMUM_NESTING:
            line = node.start_point.row + 1
            raise InputError(f"line {line}: commands nest {self.depth} deep; at most {MAXIMUM_NESTING} are read")
        made = self._node(node)
        self.depth -= 1
        return made

    def _node(self, node: "Syntax") -> Node:
        children, line = node.children, node.start_point.row + 1
        match node.type:
            case "redirected_statement":
                return self._redirected(node)
            case "list":
                return self._chain(node)
            case "pipeline" | "negated_command":
                return self._pipeline([child for child in children if child.is_named], node.type == "negated_command")
            case "if_statement":
                return self._if(node)
            case "for_statement":
                words = self.words(node.children_by_field_name("value"))
                words = words if any(child.type == "in" for child in children) else ["$@"]
                name = self.raw(node.child_by_field_name("variable"))
                return For(line, name, words, self.body(children[-1].children))
            case "c_style_for_statement":
                return self._counting(node)
            case "while_statement":
                condition = self.body(children[1:-1])
                return While(line, self.body(children[-1].children), condition, children[0].type == "until")
            case "case_statement":
                arms = [self._arm(child) for child in children if child.type == "case_item"]
                return Case(line, self.raw(node.child_by_field_name("value")), arms)
            case "function_definition":
                body = self.node(next(child for child in children if child == node.child_by_field_name("body")))
                name = self.raw(node.child_by_field_name("name"))
                return Function(name, body.body if isinstance(body, Group) and not body.apart else [body])
            case "compound_statement" | "test_command" if children[0].type == "((":
                return Arithmetic(line, self.text[children[0].end_byte : children[-1].start_byte])
            case "compound_statement" | "subshell" | "do_group":
                return Group(self.body(children), apart=node.type == "subshell")
            case "test_command":
                return Simple(line, words=self._test(node))
        return self._simple(node)

    def _counting(self, node: "Syntax") -> While:
        """`for (( first; condition; after ))`."""
        brackets = [child for child in node.children if child.type in ("((", "))")]
        text = self.text[brackets[0].end_byte : brackets[-1].start_byte]
        line = node.start_point.row + 1
        parts: list[list[Node]] = [
            [Arithmetic(line, part)] if part.strip() else [] for part in (*text.split(";"), "", "")[:3]
        ]
        first, condition, after = parts
        return While(line, self.body(node.children[-1].children), condition, first=first, after=after)

    def _chain(self, node: "Syntax") -> Chain:
        """`list` leans to the left: (a && b) || c."""
        rest: list[tuple[str, Node]] = []
        while node.type == "list":
            left, operator, right = (child for child in node.children if child.type != "comment")
            rest.append((operator.type, self.node(right)))
            node = left
        return Chain(self.node(node), rest[::-1])

    def _pipeline(self, parts: "list[Syntax]", negated: bool = False) -> Node:
        parts = [part for part in parts if part.type != "comment"]
        if parts[0].type == "negated_command":  # bash negates all of `! a | b`
            negated, parts = True, [parts[0].children[-1], *parts[1:]]
        return Pipeline([self.node(part) for part in parts], negated)

    def _if(self, node: "Syntax") -> If:
        branches: list[tuple[list[Node], list[Node]]] = []
        otherwise: list[Node] = []
        for part in (node, *node.children):
            if part.type == "else_clause":
                otherwise = self.body(part.children)
            elif part.type in ("if_statement", "elif_clause") and (part is node or part.type == "elif_clause"):
                then = next(i for i, child in enumerate(part.children) if child.type == "then")
                body = [child for child in part.children[then:] if child.type not in ("elif_clause", "else_clause")]
                branches.append((self.body(part.children[:then]), self.body(body)))
        return If(node.start_point.row + 1, branches, otherwise)

    def _arm(self, node: "Syntax") -> tuple[list[str], list[Node], str]:
        """One arm: patterns up to the bracket, split at `|`, and what follows it."""
        kinds = [child.type for child in node.children]
        close = kinds.index(")")
        patterns: list[list[Syntax]] = [[]]
        for child in node.children[:close]:
            if child.type == "|":
                patterns.append([])
            elif child.type != "(":
                patterns[-1].append(child)
        ending = kinds[-1] if kinds[-1] in (";&", ";;&") else ";;"
        return ["".join(self.words(part)) for part in patterns], self.body(node.children[close + 1 :]), ending

    def _test(self, node: "Syntax") -> list[str]:
        """The words of `[ … ]` and `[[ … ]]`, without the grammar's idea of which operator binds first."""
        pending, leaves = list(reversed(node.children)), []
        while pending:
            leaf = pending.pop()
            if leaf.type in NESTED_TESTS:
                pending += reversed(leaf.children)
            elif leaf.type != "comment":
                leaves.append(leaf)
        runs: list[list[Syntax]] = [[]]
        for leaf in leaves:
            runs += [[leaf], []] if leaf.type in SEPARATE else []
            runs[-1] += [] if leaf.type in SEPARATE else [leaf]
        return [word for run in runs for word in self.words(run)]

    def _simple(self, node: "Syntax") -> Simple:
        made, words = Simple(node.start_point.row + 1), []
        parts = [node] if node.type == "variable_assignment" else node.children
        for child in parts:
            if child.type == "variable_assignment" and (assign := self._assign(child)):
                made.assigns.append(assign)
            elif child.type.endswith("_redirect"):
                self._redirect(made, child)
            elif child.type != "comment":
                words.append(child)
        made.words = self.words(words)
        if made.words[:1] == ["time"]:
            made.words = made.words[1:]
        if node.type == "command" and made.words and made.words[0] in KEYWORDS:
            raise InputError(f"line {made.line}: unexpected {made.words[0]!r} in the script")
        return made

    def _assign(self, node: "Syntax") -> Assign | None:
        """None where the name has letters that bash takes for no name: it is a word then."""
        operator = next(child for child in node.children if child.type in ("=", "+="))
        name, _, index = self.text[node.start_byte : operator.start_byte].partition("[")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name):
            return None
        made = Assign(name, operator.type == "+=", index=index.removesuffix("]") if index else None)
        value = node.child_by_field_name("value")
        if value is not None and value.type == "array":
            made.items = self.words([child for child in value.children[1:-1] if child.type != "comment"])
        else:
            made.value = self.text[operator.end_byte : node.end_byte]
        return made

    def _redirected(self, node: "Syntax") -> Node:
        """A command with redirections: of `a | b` those of b; of a loop or a group they do not matter."""
        body = node.child_by_field_name("body")
        made = Simple(node.start_point.row + 1) if body is None else self.node(body)
        last = made
        while isinstance(last, Pipeline | Chain):
            last = last.parts[-1] if isinstance(last, Pipeline) else last.rest[-1][1]
        simple = last if isinstance(last, Simple) else Simple(node.start_point.row + 1)
        for child in node.children:
            if child.type.endswith("_redirect"):
                made = self._redirect(simple, child, made) or made
        return made

    def _redirect(self, made: Simple, node: "Syntax", whole: Node | None = None) -> Node | None:
        """Note a redirection. What follows a heredoc's delimiter in its line belongs to the grammar's node of it: more
        redirections and words, and a pipe or `&&` to another command, which make another node of the `whole`.
        """
        if node.type == "heredoc_redirect":
            return self._heredoc(made, node, whole or made)
        parts = [child for child in node.children if child.type != "file_descriptor"]
        target, *words = self.words(parts[1:]) or [""]
        made.words += words  # `> log a b`: only the first word is the file
        if self.raw(node.children[0]) not in ("2", "3") or len(parts) == len(node.children):
            made.redirects.append((parts[0].type, target))
        return None

    def _heredoc(self, made: Simple, node: "Syntax", whole: Node) -> Node:
        quoted, words, chained, header = False, [], "", node.start_byte
        for child in node.children:
            match child.type:
                case "heredoc_start":
                    quoted = bool(set("\"'\\") & set(self.raw(child)))
                case "heredoc_body" | "heredoc_end" | "<<" | "<<-" | "file_descriptor":
                    continue
                case "&&" | "||":
                    chained = child.type
                case "pipeline":
                    parts = [self.node(part) for part in child.children if part.is_named]
                    more = parts[0].parts if isinstance(parts[0], Pipeline) else parts
                    whole = Pipeline([whole, *more], False)
                case kind if kind.endswith("_redirect"):
                    self._redirect(made, child)
                case _ if chained:
                    whole, chained = Chain(whole, [(chained, self.node(child))]), ""
                case _:
                    words.append(child)
            header = child.end_byte
        if not any(
            self.raw(child) in ("<<", "<<-") for child in node.children
        ):  # the grammar reads `--<<E` as `--` `<E`
            raise InputError(f"line {node.start_point.row + 1}: put a blank before the << of the heredoc")
        made.words += self.words(words)
        first, end = self.text.index("\n", header) + 1, node.children[-1].start_byte  # its node has no blank lines
        raw = self.text[first : max(first, self.text.rfind("\n", 0, end) + 1)]
        if any(child.type == "<<-" for child in node.children):
            raw = re.sub(r"^\t+", "", raw, flags=re.MULTILINE)
        made.heredocs.append(Heredoc(raw, quoted))
        return whole
