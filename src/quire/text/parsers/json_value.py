"""Finds the end of a JSON value in a text that arrives in pieces.

Every character is read once, by native searches: nothing is parsed again when more text arrives.
"""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class ValueScanner:
    """One object, array or string. It balances brackets outside of strings, and checks nothing else."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the text ended just after a backslash

    def scan(self, text: str, place: int) -> int:
        """Return the place after the value's end; -1 if it continues beyond this text."""
        if self._escaped and place < len(text):
            self._escaped = False
            place += 1
        while place < len(text):
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, place)
            if found is None:
                return -1
            place = found.end()
            char = found[0]
            if char == "\\":
                self._escaped = place == len(text)
                place += 1
            elif char == '"':
                self._in_string = not self._in_string
            elif char in "{[":
                self._depth += 1
            else:
                self._depth -= 1
            if self._depth == 0 and not self._in_string:
                return place
        return -1
