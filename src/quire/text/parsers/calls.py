"""Finds tool calls in an answer: marks announce them, readers read them, and the rest is text.

Law: the result does not depend on how the text is cut into pieces, so every decision is made at a character, never at
the end of a piece. Each character is read once, apart from the few that may begin a mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from quire.text.parsers.call_reader import CallReader, ObjectReader, Progress
from quire.text.parsers.marks import Flow, mark_pattern, scan
from quire.text.parsers.style import Piece, TextPiece
from quire.types.chat import Tool

_FENCE = re.compile(r"[`a-z_]*")
_FENCES = ("```", "```json", "```tool_call")


def object_reader(char: str, tools: Sequence[Tool], is_marked: bool) -> CallReader | None:
    """The reader of a JSON object. Without a mark it must name one of the tools."""
    if char != "{":
        return None
    return ObjectReader(None if is_marked else frozenset(tool.name for tool in tools))


@dataclass(frozen=True)
class CallForm:
    """How calls are written. `reader` chooses the form of a call by its first character, the tools, and whether a mark
    announces it."""

    opens: tuple[str, ...]  # marks before calls
    closes: tuple[str, ...] = ()  # marks after calls
    bare: str = "{"  # first characters of an answer that may be calls without a mark
    fenced: bool = False  # calls without a mark may be in a Markdown fence
    between: str = ",;[]}"  # characters between calls besides whitespace: those of lists, and an extra brace
    reader: Callable[[str, Sequence[Tool], bool], CallReader | None] = object_reader

    @cached_property
    def opening(self) -> re.Pattern[str]:
        """Matches a mark before calls."""
        return mark_pattern(self.opens)

    @cached_property
    def within(self) -> re.Pattern[str]:
        """Matches a mark that ends or restarts a block of calls."""
        return mark_pattern((*self.opens, *self.closes))


class CallParser:
    """One answer. Text that may be a call is kept in `_raw` until that is decided."""

    def __init__(self, form: CallForm, tools: Sequence[Tool]) -> None:
        self._form = form
        self._tools = tools
        self._find = form.opening.search
        self._step: Callable[[str, int, list[Piece]], int] = self._start
        self._is_plain = False  # in text, with nothing held back
        self._held = ""  # text that may begin a mark
        self._flow = Flow()
        self._raw: list[str] = []
        self._reader: CallReader | None = None
        self._marked = False  # a mark announced this block of calls
        self._called = False  # this block has a call

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
        self._add_text(self._held, out)
        if rest := self._flow.rest():
            out.append(TextPiece(rest))
        self._held, self._flow = "", Flow()
        return out

    def _ends_within_call(self, out: list[Piece]) -> bool:
        """Does the answer end within a mark or a block of calls? Append what is known of an incomplete call."""
        if self._step == self._call:
            assert self._reader is not None
            return self._reader.cut_off(out, self._marked or self._called)
        if self._step == self._fence:
            return any(fence.startswith("".join(self._raw)) for fence in _FENCES)
        return self._step == self._block or bool(self._held)

    def _start(self, text: str, place: int, out: list[Piece]) -> int:
        if text[place].isspace():
            self._add_text(text[place], out)
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
        before, mark, self._held, end = scan(self._form.opening, text, place)
        self._add_text(before, out)
        if mark:
            self._enter(mark, marked=True)
        return end

    def _block(self, text: str, place: int, out: list[Piece]) -> int:
        """Between calls, and before the first."""
        char, mark = text[place], self._form.within.match(text, place)
        if mark is not None and mark[1] is None:
            self._held = mark[0]
            return len(text)
        if mark is not None:
            self._handle_mark(mark[1], out)
            return mark.end()
        if char.isspace() or char in self._form.between:
            if not self._called:
                self._raw.append(char)
            return place + 1
        self._reader = self._form.reader(char, self._tools, self._marked)
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
        leftover = self._reader.leftover if progress not in (Progress.READING, Progress.CALLING) else ""
        if progress is Progress.FAILED and leftover:
            self._raw = ["".join(self._raw).removesuffix(leftover)]
        if progress in (Progress.FAILED, Progress.CLOSED):
            self._give_up(out)
        elif progress is Progress.DONE:
            self._step = self._block
        return self._read_again(leftover + text[end:], len(text), out) if leftover else end

    def _read_again(self, text: str, end: int, out: list[Piece]) -> int:
        """Read the rest of the text together with what a reader had read too far."""
        place = 0
        while place < len(text):
            place = self._step(text, place, out)
        return end

    def _enter(self, mark: str, marked: bool) -> None:
        """Begin a block of calls."""
        self._step, self._marked, self._called, self._raw = self._block, marked, False, [mark]

    def _handle_mark(self, mark: str, out: list[Piece]) -> None:
        """Handle a mark within a block. If the block ends without a call, all of it is text."""
        if not self._called:
            self._raw.append(mark)
            if mark in self._form.opens:  # one mark after another: the call may still follow
                self._marked = True
                return
        self._give_up(out)
        if mark in self._form.opens:
            self._enter(mark, marked=True)

    def _give_up(self, out: list[Piece]) -> None:
        """Return the kept text as text."""
        self._add_text("".join(self._raw), out)
        self._raw, self._step = [], self._text

    def _add_text(self, text: str, out: list[Piece]) -> None:
        if certain := self._flow.take(text):
            out.append(TextPiece(certain))
