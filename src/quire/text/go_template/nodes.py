"""What a template consists of once it is read. A list of nodes is a body; an expression has a value."""

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
    names: tuple[str, ...]  # none: the thing itself


@dataclass(frozen=True, slots=True)
class Variable:
    """`$x`; `$` is what the template was given."""

    name: str


@dataclass(frozen=True, slots=True)
class CallNode:
    """A function and its arguments, or with no function one thing alone. In a pipeline the value before is the last."""

    function: str
    arguments: tuple[Expression, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Calls, each given the value of the one before; and the variables that are declared or assigned with it."""

    calls: tuple[CallNode, ...]
    variables: tuple[str, ...] = ()
    declares: bool = False  # := rather than =


Expression = Literal | FieldsNode | Variable | Pipeline | CallNode


@dataclass(frozen=True, slots=True)
class TextNode:
    """As it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """Print a value, unless it goes into a variable."""

    value: Pipeline


@dataclass(frozen=True, slots=True)
class If:
    """One body or the other. `moves_dot`: it is a `with`."""

    condition: Pipeline
    body: Body
    orelse: Body
    moves_dot: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """The body for each, or the other one if there is none."""

    over: Pipeline
    body: Body
    orelse: Body


@dataclass(frozen=True, slots=True)
class Leave:
    """`break`, or `continue` with the next."""

    goes_on: bool


@dataclass(frozen=True, slots=True)
class Include:
    """Another template, with another dot."""

    name: str
    value: Pipeline | None


Node = TextNode | Action | If | Range | Leave | Include
Body = tuple[Node, ...]
