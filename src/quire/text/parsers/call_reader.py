"""Reads one tool call from a stream of text, in the common form: an object with a name and arguments."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Collection
from typing import Protocol

from quire.text.parsers.json_value import ValueScanner
from quire.text.parsers.style import ArgumentsPiece, CallStart, Piece

_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r"[^\s,\]}]*")
_BEGUN_ESCAPE = re.compile(r"((?:^|[^\\])(?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_NAMES = ("name", "function", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_USUAL = (*_NAMES, *_ARGUMENTS, "type", "id", "tool_call_id")


Step = Callable[[str, int, list[Piece]], int]


class Progress(enum.Enum):
    """The state of a reader."""

    READING = "reading"  # it may not be a call
    CALLING = "calling"  # it is a call, and its start was returned
    DONE = "done"
    CLOSED = "closed"  # done, and the mark after the calls was read too
    FAILED = "failed"  # it is not a call


class CallReader(Protocol):
    """One call in one of its written forms."""

    progress: Progress
    leftover: str  # the end of the earlier pieces, if a call that is done or has failed turned out not to have it

    def read(self, text: str, place: int, out: list[Piece]) -> int:
        """Read what belongs to the call, and append what is certain. Return the place of the first other character."""

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        """The text has ended: append what is known of the call. Return False if it may be text instead.

        `is_announced`: a mark, or another call, comes before it.
        """


class SteppedReader:
    """Base of the readers: each step reads some text and may set the next step. A step that cannot decide yet puts the
    rest of the text into `_held`, and gets it again with more text."""

    def __init__(self, first: Step) -> None:
        self.progress = Progress.READING
        self.leftover = ""
        self._step = first
        self._held = ""

    def read(self, text: str, place: int, out: list[Piece]) -> int:
        if not self._held:
            return self._read(text, place, out)
        held, self._held = self._held, ""
        end = self._read(held + text[place:], 0, out) - len(held)
        self.leftover = held[end:] if end < 0 else ""
        return place + max(end, 0)

    def _read(self, text: str, place: int, out: list[Piece]) -> int:
        while place < len(text) and self.progress in (Progress.READING, Progress.CALLING):
            place = self._step(text, place, out)
        return place

    def _expect(self, tag: str, text: str, place: int) -> int | None:
        """Return the place after this tag; None if other text comes. A tag that may still come is held back."""
        if text.startswith(tag, place):
            return place + len(tag)
        if tag.startswith(text[place:]):
            self._held = text[place:]
            return len(text)
        return None


class ObjectReader(SteppedReader):
    """{"name": …, "arguments": {…}}: keys in any order, other keys ignored; "parameters" means "arguments".

    Once the name is known, arguments are returned as they come. `names` is for an object that no mark announces: it is
    a call only if it has arguments, no unusual keys, and one of these names.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        super().__init__(self._open)
        self._names = names
        self._scanner: ValueScanner | None = None  # of the current value; None: a number, null, true, false
        self._parts: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None  # arguments that came before the name
        self._streams = False  # the current value is the arguments, and they are returned as they come

    def cut_off(self, out: list[Piece], is_announced: bool) -> bool:
        if self.progress is Progress.CALLING:
            return True
        if self._name:
            self._begin(out)
            if self._key in _ARGUMENTS and self._parts and (text := _begun_string("".join(self._parts))):
                out.append(ArgumentsPiece(text))
            return True
        return is_announced or self._may_be_call()

    def _may_be_call(self) -> bool:
        """Could the beginning of an object that no mark announces be a call of one of the tools?"""
        unfinished = "".join(self._parts)[1:]
        if self._step == self._in_key:
            return any(key.startswith(unfinished) for key in _USUAL)
        if self._step == self._in_value and self._key in _NAMES:
            return any(name.startswith(unfinished) for name in self._names or ())
        return True

    def _open(self, text: str, place: int, out: list[Piece]) -> int:
        self._step = self._before_key
        return place + 1

    def _before_key(self, text: str, place: int, out: list[Piece]) -> int:
        place = _after_space(text, place)
        if text[place : place + 1] == '"':
            self._scanner, self._step = ValueScanner(), self._in_key
        elif text[place : place + 1] == "}":
            return self._close(place + 1, out)
        elif place < len(text):
            self._break()
        return place

    def _in_key(self, text: str, place: int, out: list[Piece]) -> int:
        assert self._scanner is not None
        end = self._scanner.scan(text, place)
        self._parts.append(text[place : end if end >= 0 else len(text)])
        if end < 0:
            return len(text)
        self._key, self._step = _string(self._take()) or "", self._colon
        if self._names is not None and self._key not in _USUAL:
            self._break()
        return end

    def _colon(self, text: str, place: int, out: list[Piece]) -> int:
        place = _after_space(text, place)
        if text[place : place + 1] == ":":
            self._step = self._before_value
            return place + 1
        if place < len(text):
            self._break()
        return place

    def _before_value(self, text: str, place: int, out: list[Piece]) -> int:
        place = _after_space(text, place)
        if place == len(text):
            return place
        char = text[place]
        if self.progress is Progress.READING and (
            (self._key in _NAMES and char != '"') or (self._key in _ARGUMENTS and char not in '{"n')
        ):
            self._break()
            return place
        if self._key in _ARGUMENTS and char == "{" and self._name is not None:
            self._streams = self._begin(out)
        self._scanner, self._step = ValueScanner() if char in '"{[' else None, self._in_value
        return place

    def _in_value(self, text: str, place: int, out: list[Piece]) -> int:
        if self._scanner is not None:
            end = self._scanner.scan(text, place)
        else:
            end = _SCALAR.match(text, place).end()  # type: ignore[union-attr]  # it always matches
            end = -1 if end == len(text) else end
        part = text[place : end if end >= 0 else len(text)]
        if self._streams:
            out.append(ArgumentsPiece(part))
        elif self.progress is Progress.READING:
            self._parts.append(part)
        if end < 0:
            return len(text)
        self._step, self._streams = self._after_value, False
        self._note(self._take(), out)
        return end

    def _after_value(self, text: str, place: int, out: list[Piece]) -> int:
        place = _after_space(text, place)
        if text[place : place + 1] == ",":
            self._step = self._before_key
            return place + 1
        if text[place : place + 1] == "}":
            return self._close(place + 1, out)
        if place < len(text):
            self._break()
        return place

    def _note(self, value: str, out: list[Piece]) -> None:
        """Handle a complete value that was not returned as it came."""
        if self.progress is not Progress.READING:
            return
        if self._key in _NAMES:
            self._name = _string(value)
            if not self._name or (self._names is not None and self._name not in self._names):
                self._break()
        elif self._key in _ARGUMENTS:
            self._arguments = _object(value)
            if self._arguments is None:
                self._break()
        if self._name and self._arguments is not None and self.progress is Progress.READING:
            self._begin(out)
            out.append(ArgumentsPiece(self._arguments))

    def _close(self, place: int, out: list[Piece]) -> int:
        if self.progress is Progress.READING:
            if not self._name or self._names is not None:
                self.progress = Progress.FAILED
                return place
            self._begin(out)
            out.append(ArgumentsPiece("{}"))
        self.progress = Progress.DONE
        return place

    def _begin(self, out: list[Piece]) -> bool:
        """Append the start of the call. Return False if that was done before."""
        if self.progress is Progress.CALLING:
            return False
        assert self._name is not None
        self.progress = Progress.CALLING
        out.append(CallStart(self._name))
        return True

    def _break(self) -> None:
        """The text is not JSON from here on. A call that has started ends here: its arguments are complete."""
        self.progress = Progress.FAILED if self.progress is Progress.READING else Progress.DONE

    def _take(self) -> str:
        value = "".join(self._parts)
        self._parts.clear()
        return value


def _after_space(text: str, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]  # it always matches


def _string(value: str) -> str | None:
    try:
        found = json.loads(value, strict=False)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _begun_string(value: str) -> str:
    """The text of a JSON string that was cut off, without an incomplete escape. Empty for any other value."""
    if not value.startswith('"'):
        return ""
    return _string(_BEGUN_ESCAPE.sub(r"\1", value) + '"') or ""


def _object(value: str) -> str | None:
    """The text of an object. Some models write it into a string, or write null for an empty one."""
    if value.startswith("{"):
        return value
    if value == "null":
        return "{}"
    inner = _string(value)
    if inner is None or not inner.strip():
        return None if inner is None else "{}"
    try:
        return inner.strip() if isinstance(json.loads(inner), dict) else None
    except (ValueError, RecursionError):
        return None
