"""Nodes of a parsed template. A list of nodes is a body; an expression has a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, a number, true, false or nil."""

    value: Any


@dataclass(frozen=True, slots=True)
class FieldsNode:
    """`.A.B`, `$x.A`, `(…).A`. `of` None: the dot."""

    of: Expression | None
    names: tuple[str, ...]  # empty: the value itself


@dataclass(frozen=True, slots=True)
class Variable:
    """`$x`; `$` is the template's data."""

    name: str


@dataclass(frozen=True, slots=True)
class CallNode:
    """A function and its arguments; without a function, one value. In a pipeline the value before is the last one."""

    function: str
    arguments: tuple[Expression, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Calls, each given the value of the one before, and the variables that get the last value."""

    calls: tuple[CallNode, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # := rather than =


Expression = Literal | FieldsNode | Variable | Pipeline | CallNode


@dataclass(frozen=True, slots=True)
class TextNode:
    """Text that is written as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """Print a value, unless it is assigned to a variable."""

    value: Pipeline


@dataclass(frozen=True, slots=True)
class If:
    """`if`: one body or the other. `moves_dot`: `with`."""

    condition: Pipeline
    body: Body
    orelse: Body
    moves_dot: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The body for each item; the other one if there are no items."""

    over: Pipeline
    body: Body
    orelse: Body


@dataclass(frozen=True, slots=True)
class Leave:
    """`break`; or `continue`, if `goes_on`."""

    goes_on: bool


@dataclass(frozen=True, slots=True)
class Include:
    """Run another template, with another dot."""

    name: str
    value: Pipeline | None


Node = TextNode | Action | If | Range | Leave | Include
Body = tuple[Node, ...]
