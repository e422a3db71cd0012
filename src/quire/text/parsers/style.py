"""What a family's marks are: a `ToolStyle`, and the `Parser` of one answer.

A parser takes text as it comes, in pieces cut anywhere, and answers what is sure so far: what may yet become a mark is
held back until it does or does not. Nothing is lost: text that only looked like a call comes out as text. Whitespace
beside a mark belongs to the mark, because templates write it there themselves when the conversation goes on.

An answer that is cut off (by its length, by a stop string) may end within a mark or a call. Then nothing of these is
text: the call comes out as far as it is known, and what comes before its name does not come out at all.
"""

from __future__ import annotations

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
    """The next call, whose name is known. It is the model's word: there may be no tool of this name."""

    name: str


class ArgumentsPiece(NamedTuple):
    """More of the JSON text of the latest call's arguments."""

    text: str


Piece = TextPiece | ThoughtPiece | CallStart | ArgumentsPiece


class Parser(Protocol):
    """One answer's."""

    def push(self, text: str) -> list[Piece]:
        """What is sure now."""

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        """The rest: the answer is over. `is_cut_off`: it was ended from outside, not by the model."""


class TemplateInput(NamedTuple):
    """What the chat template is to be given: tools that it is not given have been written into the messages."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How a family calls tools."""

    name: str
    marks: tuple[str, ...]  # where one is a special token, the parser must be shown its text
    knows: Callable[[str], bool]  # is it the style of a model with this chat template?
    parser: Callable[[Sequence[Tool]], Parser]  # of an answer in which calls may come
    # The Lark rules of an answer that must be calls, the first of them named `calls`. Arguments follow the tool's
    # schema, so they parse. The mapping has the ids of those marks that are tokens of the model's vocabulary.
    rules: Callable[[Sequence[Tool], ToolChoice, Mapping[str, int]], str]
    prepare: Callable[[Sequence[Message], Sequence[Tool]], TemplateInput]
