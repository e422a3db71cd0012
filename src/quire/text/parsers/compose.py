"""Combines thoughts and calls: the parser of an answer, and the grammar of an answer that must be calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.text.parsers.reasoning import ReasoningMarks, ThoughtParser
from quire.text.parsers.style import Parser, Piece, TextPiece, ToolStyle
from quire.types.chat import Tool, ToolChoice
from quire.types.request import Constraint, ConstraintKind


class PlainParser:
    """The parser of an answer without marks: all of it is text."""

    def push(self, text: str) -> list[Piece]:
        return [TextPiece(text)] if text else []

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        return []


def parser_for(
    style: ToolStyle, reasoning: ReasoningMarks | None, tools: Sequence[Tool] = (), begins_in_thought: bool = False
) -> Parser:
    """Make the parser of one answer: thoughts first, then text and, if there are tools, calls."""
    rest = style.parser(tools) if tools else PlainParser()
    return rest if reasoning is None else ThoughtParser(reasoning, rest, begins_in_thought)


def constraint_for(
    style: ToolStyle,
    tools: Sequence[Tool],
    choice: ToolChoice,
    tokens: Mapping[str, int],
    reasoning: ReasoningMarks | None = None,
    begins_in_thought: bool = False,
) -> Constraint:
    """The grammar of an answer that must be calls, after a thought if the model thinks.

    `tokens` are those marks of style and reasoning that are tokens of the vocabulary, with their ids.
    """
    rules = style.rules(tools, choice, tokens)
    if reasoning is None:
        return Constraint(ConstraintKind.LARK, f"start: calls\n{rules}\n")
    thought = reasoning.rules(begins_in_thought, tokens)
    return Constraint(ConstraintKind.LARK, f"start: thought calls\n{thought}\n{rules}\n")
