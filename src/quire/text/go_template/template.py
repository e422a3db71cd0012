"""Runs a parsed template. Steps and output are limited, because the template is not trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.text.go_template.errors import GoRunError, GoTooBig
from quire.text.go_template.functions import FUNCTIONS, NAMES
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
from quire.text.go_template.parse import MAIN, parse_template
from quire.text.go_template.values import field_of, is_true, to_text
from quire.text.sandbox import MAX_STEPS, MAX_TEXT

MAX_INCLUDES = 50  # of templates in each other
CHARS_A_STEP = 64  # arguments and results of functions cost steps by their size


@dataclass(frozen=True, slots=True)
class GoTemplate:
    """A parsed template. Threads may share it."""

    bodies: Mapping[str, Body]  # "" is the template itself

    @classmethod
    def read(cls, source: str) -> GoTemplate:
        """Parse a template. Raises GoSyntaxError."""
        return cls(parse_template(source, NAMES))

    @property
    def field_names(self) -> frozenset[str]:
        """The names of all fields that it reads."""
        return frozenset(name for body in self.bodies.values() for each in fields_in(body) for name in each.names)

    def run(self, data: Mapping[str, Any]) -> str:
        """Run the template with this data; return what it writes."""
        run = _Run(self.bodies, [("$", dict(data))])
        try:
            run.body(self.bodies[MAIN], dict(data))
        except RecursionError:
            raise GoTooBig("it goes too deep") from None
        return "".join(run.out)


def fields_in(body: Body) -> Iterator[FieldsNode]:
    """All field nodes, from left to right."""
    for node in body:
        match node:
            case Action(value) | Include(_, Pipeline() as value):
                yield from _fields_of(value)
            case If(value, inner, orelse) | Range(value, inner, orelse):
                yield from _fields_of(value)
                yield from fields_in(inner)
                yield from fields_in(orelse)


def _fields_of(value: Expression) -> Iterator[FieldsNode]:
    match value:
        case FieldsNode(of, _):
            yield value
            if of is not None:
                yield from _fields_of(of)
        case CallNode(_, arguments):
            for each in arguments:
                yield from _fields_of(each)
        case Pipeline(calls):
            for call in calls:
                yield from _fields_of(call)


class _LoopExit(Exception):
    """Unwinds to the range that a break or continue belongs to."""

    def __init__(self, goes_on: bool) -> None:
        self.goes_on = goes_on


@dataclass(slots=True)
class _Run:
    """One run. Variables are a stack: a block removes its own when it ends."""

    bodies: Mapping[str, Body]
    variables: list[tuple[str, Any]]
    out: list[str] = field(default_factory=list)
    size: int = 0
    steps: int = 0
    num_includes: int = 0

    def body(self, body: Body, dot: Any) -> None:
        height = len(self.variables)
        for node in body:
            self.step()
            self.node(node, dot)
        del self.variables[height:]

    def step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > MAX_STEPS:
            raise GoTooBig(f"it takes more than {MAX_STEPS:,} steps")

    def write(self, text: str) -> None:
        self.size += len(text)
        if self.size > MAX_TEXT:
            raise GoTooBig(f"it writes more than {MAX_TEXT:,} characters")
        self.out.append(text)

    def node(self, node: Node, dot: Any) -> None:
        match node:
            case TextNode(text):
                self.write(text)
            case Action(value):
                found = self.pipeline(value, dot)
                if not value.variables:
                    self.write(to_text(found))
            case If(condition, body, orelse, moves_dot):
                height = len(self.variables)
                found = self.pipeline(condition, dot)
                if is_true(found):
                    self.body(body, found if moves_dot else dot)
                else:
                    self.body(orelse, dot)
                del self.variables[height:]
            case Range():
                self.loop(node, dot)
            case Leave(goes_on):
                raise _LoopExit(goes_on)
            case Include(name, value):
                self.include(name, None if value is None else self.pipeline(value, dot))

    def loop(self, node: Range, dot: Any) -> None:
        height = len(self.variables)
        over = node.over
        is_empty = True
        for key, item in _items(self.pipeline(Pipeline(over.calls), dot)):
            is_empty = False
            self.step()
            given = (key, item) if len(over.variables) == 2 else (item,)
            for name, value in zip(over.variables, given, strict=False):
                self.set(name, value, over.declares)
            try:
                self.body(node.body, item)
            except _LoopExit as left:
                if not left.goes_on:
                    break
            finally:
                del self.variables[height:]
        if is_empty:
            self.body(node.orelse, dot)

    def include(self, name: str, dot: Any) -> None:
        if name not in self.bodies:
            raise GoRunError(f"there is no template {name!r}")
        self.num_includes += 1
        if self.num_includes > MAX_INCLUDES:
            raise GoTooBig(f"more than {MAX_INCLUDES} templates are in each other")
        outside, self.variables = self.variables, [("$", dot)]
        self.body(self.bodies[name], dot)
        self.variables = outside
        self.num_includes -= 1

    def set(self, name: str, value: Any, declares: bool) -> None:
        if declares:
            self.variables.append((name, value))
            return
        for place in range(len(self.variables) - 1, -1, -1):
            if self.variables[place][0] == name:
                self.variables[place] = (name, value)
                return
        raise GoRunError(f"there is no variable {name}")

    # ── values ──

    def pipeline(self, pipeline: Pipeline, dot: Any) -> Any:
        value: Any = None
        for place, call in enumerate(pipeline.calls):
            value = self.call(call, dot, (value,) if place else ())
        for name in pipeline.variables:
            self.set(name, value, pipeline.declares)
        return value

    def value(self, expression: Expression, dot: Any) -> Any:
        match expression:
            case Literal(value):
                return value
            case Variable(name):
                for known, value in reversed(self.variables):
                    if known == name:
                        return value
                raise GoRunError(f"there is no variable {name}")
            case FieldsNode(of, names):
                value = dot if of is None else self.value(of, dot)
                for name in names:
                    value = field_of(value, name)
                return value
            case Pipeline():
                return self.pipeline(expression, dot)
            case CallNode():
                return self.call(expression, dot)

    def call(self, call: CallNode, dot: Any, last: tuple[Any, ...] = ()) -> Any:
        self.step()
        if not call.function:
            return self.value(call.arguments[0], dot)
        if call.function in ("and", "or"):
            return self.lazy(call, dot, last)
        arguments = [*(self.value(each, dot) for each in call.arguments), *last]
        self.step(sum(len(each) for each in arguments if isinstance(each, str)) // CHARS_A_STEP)
        try:
            made = FUNCTIONS[call.function](*arguments)
        except GoRunError as error:
            raise GoRunError(f"{call.function} in line {call.line}: {error}") from None
        except TypeError:
            problem = f"it cannot take {len(arguments)} values, or not of these kinds"
            raise GoRunError(f"{call.function} in line {call.line}: {problem}") from None
        if isinstance(made, str):
            self.step(len(made) // CHARS_A_STEP)
            if len(made) > MAX_TEXT:
                raise GoTooBig(f"it writes more than {MAX_TEXT:,} characters")
        return made

    def lazy(self, call: CallNode, dot: Any, last: tuple[Any, ...]) -> Any:
        """`and` and `or`: the first deciding value, or the last."""
        value: Any = None
        if not call.arguments and not last:
            raise GoRunError(f"{call.function} in line {call.line} has no values")
        for each in call.arguments:
            value = self.value(each, dot)
            if is_true(value) == (call.function == "or"):
                return value
        return last[0] if last else value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    match value:
        case None:
            return []
        case list():
            return enumerate(value)
        case dict():
            return sorted(value.items())
        case int() if not isinstance(value, bool):
            return ((place, place) for place in range(value))
        case _:
            raise GoRunError(f"{to_text(value)[:64]} cannot be ranged over")
