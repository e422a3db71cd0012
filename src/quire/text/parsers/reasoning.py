"""Thoughts: the marks that models put around them, and how an answer is parted into thought and text.

Only an answer's beginning is a thought. What looks like a mark later is text, and what looks like a call within a
thought is thought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from re import Pattern

from quire.text.parsers.lark import letters, mark_of
from quire.text.parsers.marks import Flow, mark_pattern
from quire.text.parsers.style import Parser, Piece, ThoughtPiece


@dataclass(frozen=True)
class ReasoningMarks:
    """A pair of marks around thoughts. Where one is a special token, the parser must be shown its text."""

    opening: str
    closing: str

    @property
    def marks(self) -> tuple[str, str]:
        """Both."""
        return self.opening, self.closing

    @cached_property
    def ending(self) -> Pattern[str]:
        """Finds the end of a thought."""
        return mark_pattern((self.closing,))

    def begins_in(self, prompt: str) -> bool:
        """Does the prompt, as the template wrote it, leave the model within a thought?"""
        return prompt.rstrip().endswith(self.opening)

    def rules(self, begins_in_thought: bool, tokens: Mapping[str, int]) -> str:
        """Lark rules, the first of them named `thought`: all before the text. Unless it was begun it may be left out.

        The mark's token ends it, and so do the mark's letters, so it does not matter how the grammar sees the token.
        """
        close = letters(self.closing)
        rules = [
            "thought: thinking NEWLINES?" if begins_in_thought else "thought: (opening thinking NEWLINES?)?",
            f"opening: {mark_of(self.opening, tokens)}",
            "thinking: spelled | THOUGHT closing" if self.closing in tokens else "thinking: spelled",
            f"spelled[lazy]: /(?s:.*){close}/",
            f"closing: {mark_of(self.closing, tokens)}",
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
    """The marks of a model with these chat templates, if it thinks."""
    text = "\n".join(sources)
    return next((marks for marks in KNOWN if marks.closing in text), None)


class ThoughtParser:
    """One answer: thoughts are said here, and what follows them is left to another parser."""

    def __init__(self, reasoning: ReasoningMarks, rest: Parser, begins_in_thought: bool) -> None:
        self._reasoning = reasoning
        self._rest = rest
        self._step: Callable[[str, int, list[Piece]], int] = self._thought if begins_in_thought else self._before
        self._is_over = False  # all that comes is the other parser's
        self._held = ""  # what may begin a mark
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
            self._say(self._held, out)
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
        self._say(text[place : found.start() if found else len(text)], out)
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

    def _say(self, text: str, out: list[Piece]) -> None:
        if sure := self._flow.take(text):
            out.append(ThoughtPiece(sure))
