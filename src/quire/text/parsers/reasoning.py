"""Thoughts: the marks around them, and the parser that splits an answer into thought and text.

Only the beginning of an answer can be a thought. Later marks are text, and calls within a thought are thought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from re import Pattern
from typing import Any, Protocol

from quire.text.parsers.channels import CHANNELS
from quire.text.parsers.lark import literal, mark_rule, text_until
from quire.text.parsers.marks import Flow, mark_pattern, scan
from quire.text.parsers.style import Parser, Piece, ThoughtPiece


class Reasoning(Protocol):
    """How a family writes thoughts."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks. One that is a special token must be part of the parser's text."""

    def begun_in(self, prompt: str) -> str:
        """What the rendered prompt has written of the answer; empty if that is nothing, or not about thoughts."""

    def text_opening(self, begun: str) -> str:
        """What must follow for the next word to be text, not thought."""

    def known_variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Variables of the chat template, with values that the model was trained with."""

    def rules(self, begun: str, tokens: Mapping[str, int]) -> str:
        """Lark rules for what comes before the text, the first of them named `thought`."""


@dataclass(frozen=True)
class ReasoningMarks:
    """Thoughts between two marks."""

    opening: str
    closing: str
    label: str = ""  # text that always follows the opening mark
    answer: tuple[str, str] | None = None  # marks, in letters, around the text after the thought
    call: str = ""  # a mark before calls that ends a thought too: some models leave out the closing mark

    @property
    def marks(self) -> tuple[str, str]:
        """Both marks."""
        return self.opening, self.closing

    @property
    def more(self) -> tuple[str, ...]:
        """Further marks. They distinguish families that have the same marks around thoughts."""
        return (*(self.answer or ())[1:], *([self.call] if self.call else []))

    @cached_property
    def ending(self) -> Pattern[str]:
        """Matches the end of a thought."""
        return mark_pattern(mark for mark in (self.closing, self.call) if mark)

    def begun_in(self, prompt: str) -> str:
        """The mark at the end of the prompt that opens a thought."""
        opening = self.opening + self.label
        return opening if prompt.rstrip().endswith(opening) else ""

    def text_opening(self, begun: str) -> str:
        return f"{self.closing}\n\n" if begun else ""

    def known_variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        return variables

    def rules(self, begun: str, tokens: Mapping[str, int]) -> str:
        """The thought may be empty, unless the prompt has begun it."""
        rules = [
            "thought: thinking NEWLINES?" if begun else "thought: (opening thinking NEWLINES?)?",
            f"opening: {mark_rule(self.opening, tokens)} {literal(self.label) if self.label else ''}",
            text_until("thinking", self.closing, tokens),
            r"NEWLINES: /\n{1,2}/",
        ]
        return "\n".join(rules)


KNOWN = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<mm:think>", "</mm:think>"),
    ReasoningMarks("<|channel>", "<channel|>", label="thought"),
    ReasoningMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningMarks("<think>", "</think>", answer=("<answer>", "</answer>")),
    ReasoningMarks("<think>", "</think>", answer=("<response>", "</response>")),
    ReasoningMarks("<think>", "</think>", call="<|tool_calls_section_begin|>"),
)


def reasoning_of(sources: Iterable[str]) -> Reasoning | None:
    """How a model with these chat templates writes thoughts; None if it does not think."""
    text = "\n".join(sources)
    if CHANNELS.is_in(text):
        return CHANNELS
    found = [marks for marks in KNOWN if all(mark in text for mark in (marks.closing, *marks.more))]
    return max(found, key=lambda marks: len(marks.more), default=None)


class AnswerMarksParser:
    """Removes the marks around the text after a thought: an opening mark at its beginning, and the closing one."""

    def __init__(self, marks: tuple[str, str], rest: Parser) -> None:
        self._opening, self._closing = marks[0], mark_pattern(marks[1:])
        self._rest = rest
        self._step: Callable[[str, int, list[Piece]], int] = self._before
        self._held = ""  # whitespace, and text that may begin a mark
        self._flow = Flow(after_mark=True)

    def push(self, text: str) -> list[Piece]:
        if self._step == self._after:
            return self._rest.push(text)
        out: list[Piece] = []
        text, self._held = self._held + text, ""
        place = 0
        while place < len(text):
            place = self._step(text, place, out)
        return out

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        held, self._held = self._held, ""
        if is_cut_off and held.strip():  # what may begin a mark
            held, self._flow = "", Flow()
        out = self._rest.push(self._flow.take(held) + self._flow.rest() if self._step == self._within else held)
        self._flow = Flow()
        return out + self._rest.flush(is_cut_off)

    def _before(self, text: str, place: int, out: list[Piece]) -> int:
        begin = len(text) - len(text.lstrip())
        if text.startswith(self._opening, begin):
            self._step = self._within
            return begin + len(self._opening)
        if self._opening.startswith(text[begin:]):
            self._held = text
            return len(text)
        return self._after(text, place, out)

    def _within(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(self._closing, text, place)
        out += self._rest.push(self._flow.take(before))
        if mark:
            self._step = self._gap
        return end

    def _gap(self, text: str, place: int, out: list[Piece]) -> int:
        """Whitespace after the mark belongs to it."""
        return place + 1 if text[place].isspace() else self._after(text, place, out)

    def _after(self, text: str, place: int, out: list[Piece]) -> int:
        self._step = self._after
        out += self._rest.push(text[place:])
        return len(text)


class ThoughtParser:
    """One answer: returns its thoughts, and leaves what follows to another parser."""

    def __init__(self, reasoning: ReasoningMarks, rest: Parser, begins_in_thought: bool) -> None:
        self._reasoning = reasoning
        self._rest = rest if reasoning.answer is None else AnswerMarksParser(reasoning.answer, rest)
        self._step: Callable[[str, int, list[Piece]], int] = self._thought if begins_in_thought else self._before
        self._is_over = False  # the other parser reads from here on
        self._held = ""  # text that may begin a mark
        self._flow = Flow(after_mark=begins_in_thought)

    def push(self, text: str) -> list[Piece]:
        if self._is_over:
            return self._rest.push(text)
        out: list[Piece] = []
        text, self._held = self._held + text, ""
        place = 0
        while place < len(text):
            place = self._step(text, place, out)
        return out

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        out: list[Piece] = []
        if is_cut_off and self._held:  # what may begin a mark
            self._held, self._flow = "", Flow()
        if self._step == self._before:
            out += self._rest.push(self._flow.rest() + self._held)
        elif self._step == self._thought:
            self._add_thought(self._held, out)
            out += [ThoughtPiece(rest)] if (rest := self._flow.rest()) else []
        self._held, self._flow = "", Flow()
        return out + self._rest.flush(is_cut_off)

    def _before(self, text: str, place: int, out: list[Piece]) -> int:
        opening = self._reasoning.opening + self._reasoning.label
        if text[place].isspace():
            self._flow.take(text[place])
            return place + 1
        if text.startswith(opening, place):
            self._flow.mark()
            self._step = self._thought
            return place + len(opening)
        if opening.startswith(text[place:]):
            self._held = text[place:]
            return len(text)
        out += self._rest.push(self._flow.rest())
        return self._after(text, place, out)

    def _thought(self, text: str, place: int, out: list[Piece]) -> int:
        before, mark, self._held, end = scan(self._reasoning.ending, text, place)
        self._add_thought(before, out)
        if mark and mark == self._reasoning.call:
            return self._after(text, end - len(mark), out)
        if mark:
            self._step = self._gap
        return end

    def _gap(self, text: str, place: int, out: list[Piece]) -> int:
        """Whitespace after the mark belongs to it."""
        return place + 1 if text[place].isspace() else self._after(text, place, out)

    def _after(self, text: str, place: int, out: list[Piece]) -> int:
        self._is_over, self._step = True, self._after
        out += self._rest.push(text[place:])
        return len(text)

    def _add_thought(self, text: str, out: list[Piece]) -> None:
        if certain := self._flow.take(text):
            out.append(ThoughtPiece(certain))
