"""Parses JSON that every reader reads alike.

Duplicate keys, NaN, numbers beyond every float, halves of surrogate pairs: readers disagree about these, so a gateway
and the server behind it could see two different requests. They are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from json.decoder import JSONArray  # type: ignore[attr-defined]  # not in the stubs
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, NoReturn

import msgspec

from quire.types.errors import InvalidRequest

MAX_DEPTH = 64  # of free-form values (a schema, arguments), which later code walks by recursion
LARGE_TEXT = 1 << 19  # characters; larger texts are parsed so that other threads can run meanwhile
MAX_SHOWN = 80  # characters of what a client sent, in a sentence about it
MAX_ITEMS = 1 << 18  # of an array in a large text, unless a context is longer: as many as a vocabulary has tokens

_context: ContextVar[int] = ContextVar("context", default=0)


def parse_json(body: bytes, field: str | None = None) -> Any:
    """Parse the body, or the text of one of its fields."""
    subject = field or "The body"
    try:
        text = body.decode()
        value = (_JSON if len(text) < LARGE_TEXT else _INTERRUPTIBLE_JSON).decode(text)
        if "\\u" in text and _SURROGATE.search(text):  # the first search is 20 times as fast, and mostly enough
            msgspec.json.encode(value)  # fails where a half has no other half
    except UnicodeDecodeError:
        raise InvalidRequest(f"{subject} is not valid UTF-8.", field) from None
    except UnicodeEncodeError:
        raise InvalidRequest(f"{subject} is not valid JSON: a string has half of a surrogate pair.", field) from None
    except RecursionError:
        raise InvalidRequest(f"{subject} is nested too deeply.", field) from None
    except ValueError as error:
        why = "a number is out of range" if str(error).startswith(_TOO_LONG) else error
        raise InvalidRequest(
            f"{subject} is not valid JSON: {why}." if body else f"{subject} is empty.", field
        ) from None
    return value


def check_depth(value: object, field: str) -> None:
    """Refuse a value that is nested so deeply that later code could exhaust the stack on it."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise InvalidRequest(f"{field} is nested too deeply: at most {MAX_DEPTH} levels.", field=field)


def json_text(value: object, field: str) -> str:
    """Write a part of the body as JSON text, such as a call's arguments or a schema."""
    check_depth(value, field)
    return msgspec.json.encode(value).decode()


def quoted(value: object) -> str:
    """Quote a value in a message, shortened."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {quoted(twice)} is there twice")
    return found


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:MAX_SHOWN]} is out of range")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _array(start: tuple[str, int], scan_once: Any) -> tuple[list[Any], int]:
    """An array: runs of whole numbers, which token ids are, by the fast decoder; the rest value by value."""
    text, end = start
    values: list[Any] = []
    while run := _NUMBERS.match(text, end):
        try:
            values += _JSON.decode(f"[{run[0][:-1]}]")
        except ValueError:  # the other reader says where
            break
        end = run.end()
        _check_length(values)
    rest, end = JSONArray((text, end), scan_once)
    values = values + rest if values else rest
    _check_length(values)
    return values, end


def _check_length(values: list[Any]) -> None:
    """Refuse an array that is longer than any request needs, before anything walks it."""
    if len(values) > (most := max(MAX_ITEMS, _context.get())):
        raise InvalidRequest(f"An array of the body has more than {most:,} items, more than any context holds.")


@contextmanager
def allow_context(num_tokens: int) -> Iterator[None]:
    """Allow arrays of as many items as a context has tokens, in this thread until the end of the block."""
    before = _context.set(num_tokens)
    try:
        yield
    finally:
        _context.reset(before)


class _InterruptibleDecoder(json.JSONDecoder):
    """The same parser as a loop in Python, during which other threads can run.

    The decoder in C holds the GIL to the end: 0.2 s to 1.6 s for 20 MB of small values.
    """

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_constant)
        self.parse_array = _array
        self.scan_once = py_make_scanner(self)


_JSON = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_constant)
_INTERRUPTIBLE_JSON = _InterruptibleDecoder()
_NUMBERS = re.compile(r"(?:[ \t\n\r]*-?[0-9]{1,18}[ \t\n\r]*,(?=[ \t\n\r]*[-0-9])){16,8192}")  # but for the last
_TOO_LONG = "Exceeds the limit"  # what Python says of an integer of more than 4,300 digits
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
