"""Finds calls in an answer: marks announce them, readers read them, and what is no call stays text.

Law: how the text was cut into pieces changes nothing, so every decision is made at a character, not at a piece's end.
Each character is looked at once, apart from the few that may begin a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from quire.text.parsers.call_reader import CallReader, ObjectReader, Progress
from quire.text.parsers.marks import Flow, mark_pattern
from quire.text.parsers.style import Piece, TextPiece
from quire.types.chat import Tool

_FENCE = re.compile(r"[`a-z_]*")
_FENCES = ("```", "```json", "```tool_call")


def _no_reader(char: str) -> CallReader | None:
    return None


@dataclass(frozen=True)
class CallForm:
    """How calls stand in a text. Objects are always read; `reader` may know more, by their first character."""

    opens: tuple[str, ...]  # after one of these marks calls follow
    closes: tuple[str, ...] = ()  # after one of these there is text again
    bare: str = "{"  # an answer that begins with one of these characters may be calls without a mark
    fenced: bool = False  # and so may one that begins with a fence of Markdown
    between: str = ",;[]}"  # beside whitespace, what may stand between calls: a list's, and a brace too many
    reader: Callable[[str], CallReader | None] = _no_reader

    @cached_property
    def opening(self) -> re.Pattern[str]:
        """Finds where calls may begin."""
        return mark_pattern(self.opens)

    @cached_property
    def within(self) -> re.Pattern[str]:
        """Finds what ends or renews a block of calls."""
        return mark_pattern((*self.opens, *self.closes))


class CallParser:
    """One answer. What may be a call is kept in `_raw` until it is sure."""

    def __init__(self, form: CallForm, tools: Sequence[Tool]) -> None:
        self._form = form
        self._names = frozenset(tool.name for tool in tools)
        self._find = form.opening.search
        self._step: Callable[[str, int, list[Piece]], int] = self._start
        self._is_plain = False  # within text, and nothing is held back
        self._held = ""  # what may begin a mark
        self._flow = Flow()
        self._raw: list[str] = []
        self._reader: CallReader | None = None
        self._marked = False  # was this block of calls announced by a mark?
        self._called = False  # has a call come in this block?

    def push(self, text: str) -> list[Piece]:
        if self._is_plain and self._find(text) is None and not text[-1:].isspace():
            return [TextPiece(text)] if text else []
        out: list[Piece] = []
        if self._held:
            text, self._held = self._held + text, ""
        place = 0
        while place < len(text):
            place = self._step(text, place, out)
        self._is_plain = self._step == self._text and not self._held and self._flow.is_idle
        return out

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        out: list[Piece] = []
        if is_cut_off and self._ends_within_call(out):
            return out
        self._give_up(out)
        self._say(self._held, out)
        if rest := self._flow.rest():
            out.append(TextPiece(rest))
        self._held, self._flow = "", Flow()
        return out

    def _ends_within_call(self, out: list[Piece]) -> bool:
        """Does the answer end within a mark, or within a block of calls? If within a call, give out what is known."""
        if self._step == self._call:
            assert self._reader is not None
            return self._reader.cut_off(out, self._marked or self._called)
        if self._step == self._fence:
            return any(fence.startswith("".join(self._raw)) for fence in _FENCES)
        return self._step == self._block or bool(self._held)

    def _start(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            self._say(text[place], out)
            return place + 1
        if text[place] in self._form.bare:
            self._enter("", marked=False)
        elif text[place] == "`" and self._form.fenced:
            self._step = self._fence
        else:
            self._step = self._text
        return place

    def _fence(self, text: str, place: int, out: list[Piece]) -> int:
        end = _FENCE.match(text, place).end()  # type: ignore[union-attr]  # it always matches
        self._raw.append(text[place:end])
        if end < len(text):
            fence = "".join(self._raw)
            if fence in _FENCES:
                self._enter(fence, marked=False)
            else:
                self._give_up(out)
        return end

    def _text(self, text: str, place: int, out: list[Piece]) -> int:
        found = self._find(text, place)
        self._say(text[place : found.start() if found else len(text)], out)
        if found is None:
            return len(text)
        if found[1] is None:
            self._held = found[0]
        else:
            self._enter(found[1], marked=True)
        return found.end()

    def _block(self, text: str, place: int, out: list[Piece]) -> int:
        """Between calls, and before the first."""
        char, mark = text[place], self._form.within.match(text, place)
        if mark is not None and mark[1] is None:
            self._held = mark[0]
            return len(text)
        if mark is not None:
            self._meet(mark[1], out)
            return mark.end()
        if char.isspace() or char in self._form.between:
            if not self._called:
                self._raw.append(char)
            return place + 1
        names = None if self._marked else self._names
        self._reader = ObjectReader(names) if char == "{" else self._form.reader(char)
        if self._reader is None:
            self._give_up(out)
        else:
            self._step = self._call
        return place

    def _call(self, text: str, place: int, out: list[Piece]) -> int:
        assert self._reader is not None
        end = self._reader.read(text, place, out)
        progress = self._reader.progress
        if progress in (Progress.READING, Progress.FAILED):
            self._raw.append(text[place:end])
        else:
            self._raw.clear()
            self._flow.mark()
            self._called = True
        if progress is Progress.FAILED:
            self._give_up(out)
        elif progress is Progress.DONE:
            self._step = self._block
        return end

    def _enter(self, mark: str, marked: bool) -> None:
        """A block of calls begins."""
        self._step, self._marked, self._called, self._raw = self._block, marked, False, [mark]

    def _meet(self, mark: str, out: list[Piece]) -> None:
        """A mark within a block, or what was taken for one: if no call came before it, all of that is text."""
        if mark not in self._form.opens and not self._called:
            self._raw.append(mark)
        self._give_up(out)
        if mark in self._form.opens:
            self._enter(mark, marked=True)

    def _give_up(self, out: list[Piece]) -> None:
        """What was kept is text."""
        self._say("".join(self._raw), out)
        self._raw, self._step = [], self._text

    def _say(self, text: str, out: list[Piece]) -> None:
        if sure := self._flow.take(text):
            out.append(TextPiece(sure))
