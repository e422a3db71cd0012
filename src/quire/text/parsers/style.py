"""What a family's marks are: a `Style`, and the `Parser` of one answer.

A parser takes text as it comes, in pieces cut anywhere, and answers what is sure so far: what may yet become a mark is
held back until it does or does not. Nothing is lost: text that only looked like a call comes out as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quire.types.chat import Message, Tool, ToolChoice
from quire.types.request import Constraint


class Text(NamedTuple):
    """Part of the answer."""

    text: str


class Thought(NamedTuple):
    """Part of the reasoning."""

    text: str


class CallBegins(NamedTuple):
    """The next call, whose name is known."""

    name: str


class Arguments(NamedTuple):
    """More of the JSON text of the latest call's arguments."""

    text: str


Piece = Text | Thought | CallBegins | Arguments


class Parser(Protocol):
    """One answer's."""

    def push(self, text: str) -> list[Piece]:
        """What is sure now."""

    def flush(self) -> list[Piece]:
        """The rest: the answer is over."""


class ToolStyle(Protocol):
    """How a family calls tools."""

    name: str
    shown: tuple[str, ...]  # special tokens that are marks: the parser must see their text

    def knows(self, template: str) -> bool:
        """Is this the style of a model with this chat template?"""

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """For an answer in which calls may come."""

    def constraint(self, tools: Sequence[Tool], choice: ToolChoice) -> Constraint:
        """The form of an answer that must be a call: arguments follow the tool's schema, so that they parse."""

    def prepare(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...] | None:
        """Messages with the tools written into them, for a template that knows none. None: the template does it."""
