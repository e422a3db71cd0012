"""Marks in a text that arrives in pieces, and the text between them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Scan(NamedTuple):
    """A text up to a mark."""

    before: str
    mark: str | None  # None: the text has no mark
    held: str  # the end of the text, if it may become a mark
    end: int  # where to read on


def mark_pattern(marks: Iterable[str]) -> re.Pattern[str]:
    """A pattern whose group 1 is a whole mark. A match without it is at the end of the text and may become a mark."""
    known = sorted(marks, key=len, reverse=True)
    whole = "|".join(map(re.escape, known))
    beginnings = "|".join(map(_beginning, known))
    return re.compile(rf"({whole})|(?:{beginnings})\Z")


def scan(pattern: re.Pattern[str], text: str, place: int) -> Scan:
    """Read up to a mark of this pattern, which `mark_pattern` has made."""
    found = pattern.search(text, place)
    if found is None:
        return Scan(text[place:], None, "", len(text))
    return Scan(text[place : found.start()], found[1], "" if found[1] else found[0], found.end())


def _beginning(mark: str) -> str:
    """A pattern for every beginning of the mark: `a(?:b(?:c)?)?`."""
    pattern = ""
    for char in reversed(mark):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return pattern


class Flow:
    """Text between marks. Whitespace is held back: beside a mark it belongs to the mark, between words it is text."""

    __slots__ = ("_after_mark", "_space")

    def __init__(self, after_mark: bool = False) -> None:
        self._after_mark = after_mark
        self._space: list[str] = []

    @property
    def is_idle(self) -> bool:
        """Nothing is held back, and the next text is returned as it is, up to whitespace at its end."""
        return not self._space and not self._after_mark

    def take(self, text: str) -> str:
        """Return the text that is certain now."""
        if self._after_mark:
            text = text.lstrip()
        body = text.rstrip()
        certain = "".join((*self._space, body)) if body else ""
        if body:
            self._after_mark = False
            self._space.clear()
        if len(body) < len(text):
            self._space.append(text[len(body) :])
        return certain

    def mark(self) -> None:
        """Drop the whitespace around a mark."""
        self._after_mark = True
        self._space.clear()

    def rest(self) -> str:
        """The whitespace at the end of the text."""
        return "".join(self._space)
