"""Thoughts: the marks around them, and the parser that splits an answer into thought and text.

Only the beginning of an answer can be a thought. Later marks are text, and calls within a thought are thought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from re import Pattern

from quire.text.parsers.lark import letters, mark_rule
from quire.text.parsers.marks import Flow, mark_pattern
from quire.text.parsers.style import Parser, Piece, ThoughtPiece


@dataclass(frozen=True)
class ReasoningMarks:
    """The marks around thoughts. A mark that is a special token must be part of the parser's text."""

    opening: str
    closing: str

    @property
    def marks(self) -> tuple[str, str]:
        """Both marks."""
        return self.opening, self.closing

    @cached_property
    def ending(self) -> Pattern[str]:
        """Matches the end of a thought."""
        return mark_pattern((self.closing,))

    def begins_in(self, prompt: str) -> bool:
        """Does the rendered prompt end within a thought?"""
        return prompt.rstrip().endswith(self.opening)

    def rules(self, begins_in_thought: bool, tokens: Mapping[str, int]) -> str:
        """Lark rules for what comes before the text, the first of them named `thought`. It may be empty, unless the
        prompt has begun it.

        Both the mark's token and its letters end it, so it does not matter how the grammar sees the token.
        """
        close = letters(self.closing)
        rules = [
            "thought: thinking NEWLINES?" if begins_in_thought else "thought: (opening thinking NEWLINES?)?",
            f"opening: {mark_rule(self.opening, tokens)}",
            "thinking: spelled | THOUGHT closing" if self.closing in tokens else "thinking: spelled",
            f"spelled[lazy]: /(?s:.*){close}/",
            f"closing: {mark_rule(self.closing, tokens)}",
            f"THOUGHT: /(?s:.*)/ & ~/(?s:.*){close}(?s:.*)/",
            r"NEWLINES: /\n{1,2}/",
        ]
        return "\n".join(rules)


KNOWN = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<mm:think>", "</mm:think>"),
)


def reasoning_of(sources: Iterable[str]) -> ReasoningMarks | None:
    """The marks of a model with these chat templates; None if it does not think."""
    text = "\n".join(sources)
    return next((marks for marks in KNOWN if marks.closing in text), None)


class ThoughtParser:
    """One answer: returns its thoughts, and leaves what follows to another parser."""

    def __init__(self, reasoning: ReasoningMarks, rest: Parser, begins_in_thought: bool) -> None:
        self._reasoning = reasoning
        self._rest = rest
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
        opening = self._reasoning.opening
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
        found = self._reasoning.ending.search(text, place)
        self._add_thought(text[place : found.start() if found else len(text)], out)
        if found is None:
            return len(text)
        if found[1] is None:
            self._held = found[0]
        else:
            self._step = self._gap
        return found.end()

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
