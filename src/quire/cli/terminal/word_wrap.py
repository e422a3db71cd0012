"""Wrap streamed text at words.

Text is written as it arrives. When a word crosses the right margin, the part already written is erased with backspaces
and the whole word starts the next line. Lines inside ``` fences are not wrapped, so that code can be copied.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable

FENCE = "```"
DEFAULT_COLUMNS = 80
MIN_COLUMNS = 20  # a narrower terminal wraps by itself
TAB = 8


class WordWrap:
    """Wraps one answer. `columns` returns the current width: the terminal may be resized while the answer streams."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._column = 0  # of the cursor
        self._word = ""  # the word before the cursor
        self._line_head = ""  # the first characters of the line as the model wrote it
        self._is_fenced = False

    def push(self, text: str) -> str:
        """Return what to write for the next piece of text."""
        limit = self._columns() - 1  # terminals differ on whether the last column wraps
        if limit < MIN_COLUMNS:
            limit = sys.maxsize
        return "".join(self._put(character, limit) for character in text)

    def _put(self, character: str, limit: int) -> str:
        if character == "\n":
            self._is_fenced ^= self._line_head.lstrip().startswith(FENCE)
            self._column, self._word, self._line_head = 0, "", ""
            return character
        if len(self._line_head) < limit:
            self._line_head += character
        if self._is_fenced:
            return character
        width = char_width(character) if character != "\t" else TAB - self._column % TAB
        if character.isspace():
            self._word = ""
            if self._column + width > limit:  # the space at a line break is not printed
                self._column = 0
                return "\n"
            self._column += width
            return character
        written = self._wrapped(character, width, limit)
        # Between wide characters (Chinese, Japanese, Korean) a line may break anywhere.
        self._word = "" if width > 1 else self._word + character
        self._column += width
        return written

    def _wrapped(self, character: str, width: int, limit: int) -> str:
        if self._column + width <= limit:
            return character
        back = text_width(self._word)
        if back >= self._column:  # the word fills the whole line
            self._column, self._word = 0, ""
            return "\n" + character
        self._column = back
        return "\b" * back + " " * back + "\n" + self._word + character


def terminal_columns() -> int:
    """Return the width of the terminal on standard output."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_COLUMNS
    except (OSError, ValueError):
        return DEFAULT_COLUMNS


def text_width(text: str) -> int:
    """Return the number of columns that a text takes."""
    return sum(map(char_width, text))


def char_width(character: str) -> int:
    """Return the number of columns that a character takes: 2 if wide, 0 if it combines with the one before."""
    if character.isascii():
        return 1 if character.isprintable() else 0
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
