"""From the tokens of a launch script to its command tree (recursive descent; one function a construct).

parse('if [ -z "$N" ]; then N=1; fi\\nfoo --n $N')  ->  [If(...), Simple(words=("foo", "--n", "$N"))]
"""

from importers.shell.syntax import ASSIGNMENT, MAXIMUM_NESTING, REDIRECTIONS, Lexer, Token
from importers.shell.tree import (
    Arithmetic,
    Assign,
    Case,
    Chain,
    For,
    Function,
    Group,
    If,
    Node,
    Pipeline,
    Simple,
    While,
)
from program.errors import InputError


def parse(text: str) -> list[Node]:
    """The command tree of a script. Raises `InputError` naming the line of what cannot be parsed."""
    parser = _Parser(Lexer(text).tokens())
    nodes = parser.body(frozenset())
    if parser.peek.kind != "end":
        raise InputError(f"line {parser.peek.line}: unexpected {parser.peek.text!r} in the script")
    return nodes


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    @property
    def peek(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        if self.peek.kind == "end":
            raise InputError(f"line {self.peek.line}: the script ends in the middle of a command")
        self.at += 1
        return self.tokens[self.at - 1]

    def is_word(self, text: str) -> bool:
        return self.peek.kind == "word" and self.peek.text == text

    def is_op(self, *texts: str) -> bool:
        return self.peek.kind == "op" and self.peek.text in texts

    def expect(self, text: str, opened: int, what: str) -> None:
        self.skip_separators()
        if not (self.is_word(text) or self.is_op(text)):
            found = self.peek.text or "the end of the script"
            raise InputError(f"line {opened}: this {what} needs {text!r}, found {found!r} in line {self.peek.line}")
        self.take()

    def skip_separators(self) -> None:
        while self.peek.kind == "newline" or self.is_op(";", "&"):
            self.take()

    def body(self, closers: frozenset[str]) -> list[Node]:
        """Commands up to (not including) a closing word or operator."""
        nodes: list[Node] = []
        while True:
            self.skip_separators()
            if self.peek.kind == "end" or (self.peek.kind in ("word", "op") and self.peek.text in closers):
                return nodes
            if self.is_op(")", ";;", ";&", ";;&"):
                return nodes
            nodes.append(self.chain())

    def chain(self) -> Node:
        first = self.pipeline()
        rest: list[tuple[str, Node]] = []
        while self.is_op("&&", "||"):
            operator = self.take().text
            while self.peek.kind == "newline":
                self.take()
            rest.append((operator, self.pipeline()))
        return Chain(first, rest) if rest else first

    def pipeline(self) -> Node:
        negated = False
        while self.is_word("!") or self.is_word("time"):
            negated ^= self.take().text == "!"
        parts = [self.command()]
        while self.is_op("|", "|&"):
            self.take()
            while self.peek.kind == "newline":
                self.take()
            parts.append(self.command())
        return Pipeline(parts, negated) if negated or len(parts) > 1 else parts[0]

    def command(self) -> Node:
        self.depth += 1
        if self.depth > MAXIMUM_NESTING:
            raise InputError(
                f"line {self.peek.line}: commands nest {self.depth} deep; at most {MAXIMUM_NESTING} are read"
            )
        node = self._command()
        self.depth -= 1
        return node

    def _command(self) -> Node:
        token = self.peek
        if token.kind == "arith":
            return Arithmetic(token.line, self.take().text)
        if token.kind == "op" and token.text == "(":
            self.take()
            body = self.body(frozenset())
            self.expect(")", token.line, "( group")
            return self._redirected(Group(body, apart=True))
        if token.kind == "word":
            builders = {
                "if": self._if,
                "for": self._for,
                "while": self._while,
                "until": self._while,
                "case": self._case,
                "{": self._group,
                "function": self._function,
            }
            if token.text in builders:
                return self._redirected(builders[token.text]())
            if token.text == "[[":
                return self._double_bracket()
            following = self.tokens[self.at + 1 : self.at + 3]
            if len(following) == 2 and following[0].text == "(" and following[1].text == ")":
                return self._function()
        return self._simple()

    def _redirected(self, node: Node) -> Node:
        while self.peek.kind == "heredoc" or (self.peek.kind == "op" and self.peek.text in REDIRECTIONS):
            if self.take().kind == "op":
                self.take()
        return node

    def _if(self) -> Node:
        line = self.take().line
        branches = []
        closers = frozenset({"elif", "else", "fi"})
        while True:
            condition = self.body(frozenset({"then"}))
            self.expect("then", line, "if")
            branches.append((condition, self.body(closers)))
            if not self.is_word("elif"):
                break
            self.take()
        otherwise: list[Node] = []
        if self.is_word("else"):
            self.take()
            otherwise = self.body(frozenset({"fi"}))
        self.expect("fi", line, "if")
        return If(line, branches, otherwise)

    def _do_body(self, line: int, what: str) -> list[Node]:
        self.expect("do", line, what)
        body = self.body(frozenset({"done"}))
        self.expect("done", line, what)
        return body

    def _for(self) -> Node:
        line = self.take().line
        if self.peek.kind == "arith":  # for ((i=0; i<n; i++))
            self.take()
            return While(line, self._do_body(line, "for"))
        name = self.take().text
        words: list[str] = ["$@"]
        self.skip_newlines()
        if self.is_word("in"):
            self.take()
            words = []
            while self.peek.kind == "word":
                words.append(self.take().text)
        return For(line, name, words, self._do_body(line, "for"))

    def skip_newlines(self) -> None:
        while self.peek.kind == "newline":
            self.take()

    def _while(self) -> Node:
        token = self.take()
        condition = self.body(frozenset({"do"}))
        return While(token.line, self._do_body(token.line, token.text), condition, token.text == "until")

    def _case(self) -> Node:
        line = self.take().line
        word = self.take().text
        self.skip_newlines()
        self.expect("in", line, "case")
        arms: list[tuple[list[str], list[Node]]] = []
        self.skip_separators()
        while self.peek.kind != "end" and not self.is_word("esac"):
            if self.is_op("("):
                self.take()
            patterns = [self.take().text]
            while self.is_op("|"):
                self.take()
                patterns.append(self.take().text)
            self.expect(")", line, "case pattern")
            arms.append((patterns, self.body(frozenset({"esac"}))))
            if self.is_op(";;", ";&", ";;&"):
                self.take()
            self.skip_separators()
        self.expect("esac", line, "case")
        return Case(line, word, arms)

    def _group(self) -> Node:
        line = self.take().line
        body = self.body(frozenset({"}"}))
        self.expect("}", line, "{ group")
        return Group(body)

    def _function(self) -> Node:
        if self.is_word("function"):
            self.take()
        token = self.take()
        while self.is_op("(", ")"):
            self.take()
        self.skip_newlines()
        body = self.command()
        return Function(token.text, body.body if isinstance(body, Group) else [body])

    def _double_bracket(self) -> Node:
        node = Simple(self.peek.line)
        while not self.is_word("]]"):
            if self.peek.kind == "end":
                raise InputError(f"line {node.line}: [[ without ]]")
            token = self.take()
            if token.kind != "newline":
                node.words.append(token.text)
        node.words.append(self.take().text)
        return node

    def _simple(self) -> Node:
        node = Simple(self.peek.line)
        while self.peek.kind in ("word", "array", "heredoc", "op"):
            token = self.peek
            if token.kind == "op":
                if token.text not in REDIRECTIONS:
                    break
                self.take()
                if node.words and node.words[-1].isdigit() and token.text in (">", ">>", "<", ">&", "<&"):
                    node.words.pop()  # 2>file: the digit is the file descriptor
                node.redirects.append((token.text, self.take().text if self.peek.kind == "word" else ""))
                continue
            self.take()
            if token.heredoc is not None:
                node.heredocs.append(token.heredoc)
            elif token.kind == "array":
                name = token.text.rstrip("=")
                node.assigns.append(Assign(name.rstrip("+"), name.endswith("+"), items=token.items))
            elif (match := ASSIGNMENT.match(token.text)) and (not node.words or node.words[0] in DECLARATIONS):
                name, index, plus, value = match.groups()
                node.assigns.append(Assign(name, bool(plus), value, index=index))
            else:
                node.words.append(token.text)
        if not (node.words or node.assigns or node.heredocs or node.redirects):
            raise InputError(f"line {self.peek.line}: unexpected {self.peek.text!r} in the script")
        return node


DECLARATIONS = frozenset({"export", "declare", "local", "readonly", "typeset"})
