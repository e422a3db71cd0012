"""Literals of Python in the answer of a model, as JSON. JSON's own literals are read too."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([\[\](){},:])|([^\s\[\](){},:'"]+))\s*""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_NUMBER = re.compile(r"[+-]?(\d[\d_]*)?(\.\d*)?([eE][+-]?\d+)?")
_MAX_DEPTH = 100
_ENDS = {"[": "]", "(": ")", "{": "}"}


def literal_as_json(text: str) -> str:
    """The JSON text of a literal; any other text becomes a string."""
    try:
        value = _Literal(text).value()
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(text.strip(), ensure_ascii=False)


class _Literal:
    """The tokens of one literal. A text that is none raises ValueError."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        place = 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError("There is a string without an end.")
            self._tokens.append(found[0].strip())
            place = found.end()
        self._tokens.reverse()

    def value(self) -> Any:
        """The whole of it."""
        value = self._value(0)
        if self._tokens:
            raise ValueError("There is more text after the literal.")
        return value

    def _value(self, depth: int) -> Any:
        token = self._next()
        if token[0] in "\"'":
            return _ESCAPE.sub(_character, token[1:-1])
        if token in _ENDS:
            if depth == _MAX_DEPTH:
                raise ValueError("The literal is nested too deeply.")
            return self._items(token, depth + 1)
        return _WORDS[token] if token in _WORDS else _number(token)

    def _items(self, bracket: str, depth: int) -> Any:
        end, items, pairs = _ENDS[bracket], [], {}
        while self._peek() != end:
            item = self._value(depth)
            items.append(item)
            if bracket == "{":
                if not isinstance(item, str) or self._next() != ":":
                    raise ValueError("The keys of a dictionary are strings.")
                pairs[item] = self._value(depth)
            if self._peek() != end and self._next() != ",":
                raise ValueError("There is no comma.")
        self._next()
        return pairs if bracket == "{" else items

    def _peek(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def _next(self) -> str:
        if not self._tokens:
            raise ValueError("The literal has no end.")
        return self._tokens.pop()


def _number(token: str) -> int | float:
    found = _NUMBER.fullmatch(token)
    if found is None:
        raise ValueError("This is not a number.")
    return float(token) if found[2] or found[3] else int(token)


def _character(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
    return _ESCAPES.get(code, code if code in "\\'\"" else found[0])
