"""Splits a template's source into tokens. Text outside of {{ }} is one token, trimmed next to {{- and -}}.

Inside, spaces matter: `.A.B` is one operand, `.A .B` are two. So a token records whether a space comes before it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Generator, Iterator
from typing import NamedTuple

from quire.text.go_template.errors import GoSyntaxError

SPACE = " \t\r\n"
TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<char>'(?:[^'\\\n]|\\.[^']*)')
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?))
    |(?P<variable>\$\w*)
    |(?P<field>\.[^\W\d]\w*)
    |(?P<dot>\.)
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>:=|=|\||,|\(|\))
    """,
    re.VERBOSE,
)
OPENING = re.compile(r"\{\{(-[ \t\r\n]+)?")
CLOSING = re.compile(r"([ \t\r\n]-)?\}\}")
TRIMMED = re.compile(r"[ \t\r\n]-\}\}")
BLANKS = re.compile(r"[ \t\r\n]*")
ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"'}
ESCAPE = re.compile(r"\\(?:([abfnrtv\\'\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.?))")


class Token(NamedTuple):
    """`kind` is the name of a group above, or text, open, close. The text of a string is its value."""

    kind: str
    text: str
    line: int
    spaced: bool = False  # a space comes before it


def lex(source: str) -> Iterator[Token]:
    """All tokens: text, and those of each action between an open and a close."""
    return _Lexer(source).tokens()


class _Lexer:
    def __init__(self, source: str) -> None:
        self._source = source
        self._ends = [found.start() for found in re.finditer("\n", source)]

    def tokens(self) -> Iterator[Token]:
        source, place, trims = self._source, 0, False
        while True:
            start = source.find("{{", place)
            text = source[place:] if start < 0 else source[place:start]
            opening = OPENING.match(source, start) if start >= 0 else None
            text = text.lstrip(SPACE) if trims else text
            text = text.rstrip(SPACE) if opening and opening[1] else text
            if text:
                yield Token("text", text, self._line(place))
            if opening is None:
                return
            if source.startswith("/*", opening.end()):
                place, trims = self._after_comment(opening.end())
            else:
                yield Token("open", "{{", self._line(start))
                place = yield from self._action(opening.end())
                trims = TRIMMED.match(source, place - 4) is not None
                yield Token("close", "}}", self._line(place - 1))

    def _action(self, place: int) -> Generator[Token, None, int]:
        """The tokens up to }}; returns the place after it."""
        source, begin = self._source, place
        while True:
            found = BLANKS.match(source, place)
            assert found is not None, "it matches no blanks too"
            spaced, place = bool(found[0]), found.end()
            if source.startswith("}}", place):
                return place + 2
            if spaced and source.startswith("-}}", place):
                return place + 3
            token = TOKEN.match(source, place)
            if token is None or token.lastgroup is None:
                if place >= len(source):
                    raise GoSyntaxError(self._line(begin), "an action is not closed by }}")
                raise GoSyntaxError(self._line(place), f"{source[place]!r} is not expected")
            line = self._line(place)
            yield Token(token.lastgroup, _value(token, line), line, spaced)
            place = token.end()

    def _after_comment(self, start: int) -> tuple[int, bool]:
        end = self._source.find("*/", start)
        closing = CLOSING.match(self._source, end + 2) if end >= 0 else None
        if closing is None:
            raise GoSyntaxError(self._line(start), "a comment is not closed by */}}")
        return closing.end(), bool(closing[1])

    def _line(self, place: int) -> int:
        return bisect_left(self._ends, place) + 1


def _value(found: re.Match[str], line: int) -> str:
    text = found[0]
    match found.lastgroup:
        case "string" | "char":
            return ESCAPE.sub(lambda escape: _unescaped(escape, line), text[1:-1])
        case "raw":
            return text[1:-1].replace("\r", "")
        case "field":
            return text[1:]
        case _:
            return text


def _unescaped(escape: re.Match[str], line: int) -> str:
    letter, *codes, octal, wrong = escape.groups()
    if letter:
        return ESCAPES[letter]
    number = int(octal, 8) if octal else next((int(code, 16) for code in codes if code), None)
    if number is None or number > 0x10FFFF or 0xD800 <= number < 0xE000 or wrong:
        raise GoSyntaxError(line, f"{escape[0]!r} is no escape")
    return chr(number)
