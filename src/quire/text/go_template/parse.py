"""Parses tokens into nodes."""

from __future__ import annotations

from quire.text.go_template.errors import GoSyntaxError
from quire.text.go_template.lex import Token, lex
from quire.text.go_template.nodes import (
    Action,
    Body,
    CallNode,
    Expression,
    FieldsNode,
    If,
    Include,
    Leave,
    Literal,
    Node,
    Pipeline,
    Range,
    TextNode,
    Variable,
)

MAX_SOURCE = 1 << 20  # characters
MAX_DEPTH = 64  # of blocks and parentheses in each other
MAIN = ""
CONSTANTS = {"true": True, "false": False, "nil": None}
BLOCKS = ("if", "with", "range", "define", "block")


def parse_template(source: str, functions: frozenset[str]) -> dict[str, Body]:
    """Parse a template: its body under the name "", and the templates that it defines."""
    if len(source) > MAX_SOURCE:
        raise GoSyntaxError(1, f"there are more than {MAX_SOURCE:,} characters")
    return _Parser(source, functions).templates()


class _Parser:
    """Reads tokens from left to right, and keeps the variables in scope."""

    def __init__(self, source: str, functions: frozenset[str]) -> None:
        self._tokens = list(lex(source))
        self._place = 0
        self._functions = functions
        self._defined: dict[str, Body] = {}
        self._variables = ["$"]
        self._depth = 0
        self._num_ranges = 0

    def templates(self) -> dict[str, Body]:
        body, stopped_by = self._body()
        if stopped_by:
            raise GoSyntaxError(self._line, f"{stopped_by} has nothing to belong to")
        return {**self._defined, MAIN: body}

    # ── tokens ──

    @property
    def _line(self) -> int:
        place = min(self._place, len(self._tokens) - 1)
        return self._tokens[place].line if self._tokens else 1

    def _peek(self, ahead: int = 0) -> Token:
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else Token("close", "", self._line)

    def _next(self) -> Token:
        token = self._peek()
        self._place += 1
        return token

    def _is(self, *marks: str) -> bool:
        return self._peek().kind == "mark" and self._peek().text in marks

    def _close(self, after: str) -> None:
        token = self._next()
        if token.kind != "close":
            raise GoSyntaxError(token.line, f"{token.text[:32]!r} is not expected after {after}")

    # ── blocks ──

    def _body(self) -> tuple[Body, str]:
        """Nodes up to an end or an else, which is read up to its }}; and which of them it was, if any."""
        nodes: list[Node] = []
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GoSyntaxError(self._line, f"there are more than {MAX_DEPTH} blocks in each other")
        stopped_by = ""
        while self._place < len(self._tokens) and not stopped_by:
            token = self._next()
            if token.kind == "text":
                nodes.append(TextNode(token.text))
                continue
            word = self._peek().text if self._peek().kind == "word" else ""
            if word in ("end", "else"):
                self._next()
                stopped_by = word
                if word == "end":
                    self._close("end")
            else:
                nodes += self._action(word)
        self._depth -= 1
        return tuple(nodes), stopped_by

    def _action(self, word: str) -> list[Node]:
        line = self._line
        if word in BLOCKS:
            self._next()
            return self._block(word, line)
        if word in ("break", "continue"):
            self._next()
            self._close(word)
            if not self._num_ranges:
                raise GoSyntaxError(line, f"{word} stands outside of a range")
            return [Leave(goes_on=word == "continue")]
        if word == "template":
            self._next()
            name = self._name(line)
            value = None if self._peek().kind == "close" else self._pipeline()
            self._close("template")
            return [Include(name, value)]
        value = self._pipeline()
        self._close("a pipeline")
        return [Action(value)]

    def _block(self, word: str, line: int) -> list[Node]:
        if word in ("define", "block"):
            return self._define(word, line)
        num_before = len(self._variables)
        value = self._pipeline(in_range=word == "range")
        self._close(word)
        self._num_ranges += word == "range"
        body, stopped_by = self._body()
        self._num_ranges -= word == "range"
        orelse: Body = ()
        if stopped_by == "else":
            orelse, stopped_by = self._else(word, line)
        if stopped_by != "end":
            raise GoSyntaxError(line, f"{word} has no end")
        del self._variables[num_before:]
        return [Range(value, body, orelse) if word == "range" else If(value, body, orelse, moves_dot=word == "with")]

    def _else(self, word: str, line: int) -> tuple[Body, str]:
        """The other body: `else if` is a whole `if` in there, and the one end is for both."""
        again = self._peek()
        if again.kind == "word" and again.text == word and word in ("if", "with"):
            self._next()
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise GoSyntaxError(line, f"there are more than {MAX_DEPTH} blocks in each other")
            body = tuple(self._block(word, line))
            self._depth -= 1
            return body, "end"
        self._close("else")
        return self._body()

    def _define(self, word: str, line: int) -> list[Node]:
        """A template in the template; a block is one that is used at once."""
        name = self._name(line)
        value = self._pipeline() if word == "block" else None
        self._close(word)
        outside, self._variables = self._variables, ["$"]
        ranges, self._num_ranges = self._num_ranges, 0
        body, stopped_by = self._body()
        self._variables, self._num_ranges = outside, ranges
        if stopped_by != "end":
            raise GoSyntaxError(line, f"{word} has no end")
        self._defined[name] = body
        return [Include(name, value)] if word == "block" else []

    def _name(self, line: int) -> str:
        token = self._next()
        if token.kind not in ("string", "raw"):
            raise GoSyntaxError(line, "a template's name must be a string")
        return token.text

    # ── values ──

    def _pipeline(self, in_range: bool = False) -> Pipeline:
        variables, declares = self._targets(in_range)
        calls = [self._call()]
        while self._is("|"):
            self._next()
            calls.append(self._call())
            if not calls[-1].function:
                raise GoSyntaxError(calls[-1].line, "what follows a | must be a function")
        if declares:
            self._variables += variables
        return Pipeline(tuple(calls), tuple(variables), declares)

    def _targets(self, in_range: bool) -> tuple[list[str], bool]:
        """`$x :=`, `$x =`, and of a range `$i, $x :=`."""
        if self._peek().kind != "variable":
            return [], False
        count = 3 if in_range and self._peek(1).kind == "mark" and self._peek(1).text == "," else 1
        mark = self._peek(count)
        if mark.kind != "mark" or mark.text not in (":=", "="):
            return [], False
        names = [self._peek(place) for place in range(0, count, 2)]
        for name in names:
            if name.kind != "variable" or name.text == "$":
                raise GoSyntaxError(name.line, f"{name.text!r} cannot be given a value")
            if mark.text == "=":
                self._check_declared(name)
        self._place += count + 1
        return [name.text for name in names], mark.text == ":="

    def _check_declared(self, token: Token) -> None:
        if token.text not in self._variables:
            raise GoSyntaxError(token.line, f"there is no variable {token.text}")

    def _call(self) -> CallNode:
        line, function = self._line, ""
        first = self._peek()
        if first.kind == "word" and first.text not in CONSTANTS:
            if first.text not in self._functions:
                raise GoSyntaxError(line, f"there is no function {first.text!r}")
            function = self._next().text
        arguments: list[Expression] = []
        while not (self._peek().kind == "close" or self._is("|", ")")):
            if (function or arguments) and not self._peek().spaced and not self._is("("):
                raise GoSyntaxError(line, f"{self._peek().text[:32]!r} is not expected here")
            arguments.append(self._operand())
        if not function and len(arguments) != 1:
            said = "a value is missing" if not arguments else "only a function can be given arguments"
            raise GoSyntaxError(line, said)
        return CallNode(function, tuple(arguments), line)

    def _operand(self) -> Expression:
        token = self._next()
        value: Expression
        match token.kind:
            case "string" | "raw":
                value = Literal(token.text)
            case "number":
                value = Literal(_number(token))
            case "char" if len(token.text) == 1:
                value = Literal(ord(token.text))
            case "dot":
                value = FieldsNode(None, ())
            case "field":
                value = FieldsNode(None, (token.text,))
            case "variable":
                self._check_declared(token)
                value = Variable(token.text)
            case "word" if token.text in CONSTANTS:
                value = Literal(CONSTANTS[token.text])
            case "word" if token.text in self._functions:
                value = CallNode(token.text, (), token.line)
            case "mark" if token.text == "(":
                value = self._parenthesis(token)
            case _:
                raise GoSyntaxError(token.line, f"{token.text[:32]!r} is not expected here")
        return self._chained(value)

    def _parenthesis(self, opening: Token) -> Pipeline:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GoSyntaxError(opening.line, f"there are more than {MAX_DEPTH} parentheses in each other")
        value = self._pipeline()
        if not self._is(")"):
            raise GoSyntaxError(opening.line, "a parenthesis is not closed")
        self._next()
        self._depth -= 1
        return value

    def _chained(self, value: Expression) -> Expression:
        names = []
        while self._peek().kind == "field" and not self._peek().spaced:
            names.append(self._next().text)
        if not names:
            return value
        if isinstance(value, FieldsNode):
            return FieldsNode(value.of, (*value.names, *names))
        return FieldsNode(value, tuple(names))


def _number(token: Token) -> int | float:
    text = token.text.replace("_", "")
    try:
        return int(text, 0)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise GoSyntaxError(token.line, f"{token.text[:32]!r} is no number") from None
