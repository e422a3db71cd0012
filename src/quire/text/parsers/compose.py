"""Combines thoughts and calls: the parser of an answer, and the grammar of an answer that must be calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.text.parsers.reasoning import Reasoning, ReasoningMarks, ThoughtParser
from quire.text.parsers.style import Parser, Piece, TextPiece, ToolStyle
from quire.types.chat import Tool, ToolChoice
from quire.types.request import Constraint, ConstraintKind


class PlainParser:
    """The parser of an answer without marks: all of it is text."""

    def push(self, text: str) -> list[Piece]:
        return [TextPiece(text)] if text else []

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        return []


def parser_for(style: ToolStyle, reasoning: Reasoning | None, tools: Sequence[Tool] = (), begun: str = "") -> Parser:
    """Make the parser of one answer: thoughts first, then text and, if there are tools, calls.

    `begun` is what the prompt has written of the answer.
    """
    if style.whole is not None:
        return style.whole(tools, begun)
    rest = style.parser(tools) if tools else PlainParser()
    return ThoughtParser(reasoning, rest, bool(begun)) if isinstance(reasoning, ReasoningMarks) else rest


def constraint_for(
    style: ToolStyle,
    tools: Sequence[Tool],
    choice: ToolChoice,
    tokens: Mapping[str, int],
    reasoning: Reasoning | None = None,
    begun: str = "",
) -> Constraint:
    """The grammar of an answer that must be calls, after a thought if the model thinks.

    `tokens` are those marks of style and reasoning that are tokens of the vocabulary, with their ids. `begun` is what
    the prompt has written of the answer.
    """
    rules = style.rules(tools, choice, tokens)
    if reasoning is None:
        return Constraint(ConstraintKind.LARK, f"start: calls\n{rules}\n")
    thought = reasoning.rules(begun, tokens)
    return Constraint(ConstraintKind.LARK, f"start: thought calls\n{thought}\n{rules}\n")
