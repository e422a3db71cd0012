"""Values of a template: nil, booleans, numbers, strings, lists, maps (dict) and structs. Never other Python objects.

A missing name of a map is nil; of a struct it is an error, as in Go. Structs and maps print as JSON, because those that
Ollama passes to templates do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from quire.text.go_template.errors import GoRunError

NO_VALUE = "<no value>"
HTML_SAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class GoStruct:
    """A value with fixed fields. `plain` is its JSON value."""

    __slots__ = ("fields", "plain")

    def __init__(self, fields: Mapping[str, Any], plain: Any) -> None:
        self.fields = dict(fields)
        self.plain = plain


def field_of(value: Any, name: str) -> Any:
    """The field of this name."""
    if isinstance(value, GoStruct):
        if name not in value.fields:
            known = ", ".join(value.fields)
            raise GoRunError(f"there is no field {name}: there are {known}")
        return value.fields[name]
    if isinstance(value, dict):
        return value.get(name)
    raise GoRunError(f"{_kind(value)} has no field {name}")


def is_true(value: Any) -> bool:
    """As `if` tests it: nil, false, 0 and empty values are false."""
    return True if isinstance(value, GoStruct) else bool(value)


def to_text(value: Any) -> str:
    """The text that printing it writes."""
    match value:
        case None:
            return NO_VALUE
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float():
            return number_text(value)
        case int():
            return str(value)
        case list() if not any(isinstance(each, GoStruct) for each in value):
            return f"[{' '.join(map(to_text, value))}]"
        case _:
            return to_json(value)


def number_text(value: float) -> str:
    """A float as Go prints it: the shortest form, with an exponent from 1e+21 on."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)


def to_json(value: Any) -> str:
    """JSON as Go writes it: no spaces, and HTML characters escaped."""
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    for letter, code in HTML_SAFE.items():
        text = text.replace(letter, code)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, GoStruct):
        return _plain(value.plain)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e21 else value if math.isfinite(value) else None
    return value


def _kind(value: Any) -> str:
    kinds = {type(None): "nil", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "a map")


def compare_values(left: Any, right: Any) -> int:
    """Negative, 0 or positive, for two numbers or two strings."""
    if isinstance(left, str) and isinstance(right, str):
        a, b = left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass")
        return (a > b) - (a < b)
    if _is_number(left) and _is_number(right):
        return int(left > right) - int(left < right)
    raise GoRunError(f"{_kind(left)} and {_kind(right)} cannot be compared")


def is_equal(left: Any, right: Any) -> bool:
    """Compare two values of one kind; nil equals only nil."""
    if left is None or right is None:
        return left is right
    if isinstance(left, bool) and isinstance(right, bool):
        return left == right
    return compare_values(left, right) == 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
