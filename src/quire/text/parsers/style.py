"""The contract of a tool style: the marks of a model family, and the `Parser` of one answer.

A parser takes text as it comes, in pieces cut anywhere, and returns what is certain so far: text that may become a mark
is held back until that is decided. Nothing is lost: text that only looked like a call is returned as text. Whitespace
beside a mark belongs to the mark, because templates write it there themselves in the next turn.

An answer that is cut off (by its length, by a stop string) may end within a mark or a call. Neither is then text: the
call is returned as far as it is known, and a call whose name is not known yet is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message


class TextPiece(NamedTuple):
    """Part of the answer."""

    text: str


class ThoughtPiece(NamedTuple):
    """Part of the reasoning."""

    text: str


class CallStart(NamedTuple):
    """A call begins. The name is what the model wrote: there may be no tool of this name."""

    name: str


class ArgumentsPiece(NamedTuple):
    """More of the JSON text of the latest call's arguments."""

    text: str


Piece = TextPiece | ThoughtPiece | CallStart | ArgumentsPiece


class Parser(Protocol):
    """The parser of one answer."""

    def push(self, text: str) -> list[Piece]:
        """Return what is certain now."""

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        """Return the rest; the answer is over. `is_cut_off`: it was not the model that ended it."""


class TemplateInput(NamedTuple):
    """Messages and tools for the chat template. Tools that are missing here were written into the messages."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


def writes_tools(template: str) -> bool:
    """Does this chat template mention tools? Those of some models write calls only."""
    return re.search(r"\btools\b", template) is not None


def unchanged(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """For families whose templates take messages and tools as they are."""
    return TemplateInput(tuple(messages), tuple(tools))


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How a family calls tools."""

    name: str
    marks: tuple[str, ...]  # a mark that is a special token must be part of the parser's text
    knows: Callable[[str], bool]  # does a model with this chat template have this style?
    parser: Callable[[Sequence[Tool]], Parser]  # for an answer that may contain calls
    # The Lark rules of an answer that must be calls, the first of them named `calls`. Arguments follow the tool's
    # schema. The mapping has the ids of those marks that are tokens of the model's vocabulary.
    rules: Callable[[Sequence[Tool], ToolChoice, Mapping[str, int]], str]
    prepare: Callable[[Sequence[Message], Sequence[Tool]], TemplateInput]
    # The parser of a whole answer, thoughts included, for a family in which thoughts and calls are written alike. The
    # text is what the prompt has written of the answer. None: thoughts have marks of their own.
    whole: Callable[[Sequence[Tool], str], Parser] | None = None
    # Does what `prepare` does, for a template that writes calls but no tools. None: all templates write tools.
    describe: Callable[[Sequence[Message], Sequence[Tool]], TemplateInput] | None = None
    sorts_keys: bool = False  # templates get tools with sorted keys: the family's own code sorts them
