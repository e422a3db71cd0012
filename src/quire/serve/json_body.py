"""The body of a request: strict JSON first, then a declared shape. What is wrong is said with the field's place.

Two keys of one name, NaN, a number beyond every float, half of a surrogate pair: readers disagree about these, so that
a gateway and the server behind it may see two different requests. We refuse them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn, TypeVar

import msgspec

from quire.types.errors import InvalidRequest

MAX_DEPTH = 64  # of a schema or of arguments: what comes later walks these by recursion
MAX_DIGITS = 100
MAX_SAID = 200  # characters of the client's own that an error repeats

T = TypeVar("T")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:MAX_SAID]!r} is there twice")
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:MAX_SAID]} is too large")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(body: bytes) -> Any:
    """The value that the body is."""
    try:
        text = body.decode()
        value = _JSON.decode(text)
        if _SURROGATE.search(text):
            msgspec.json.encode(value)  # fails where a half has no other half
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except UnicodeEncodeError:
        raise InvalidRequest("The body is not JSON: a string has half of a surrogate pair.") from None
    except ValueError as error:
        raise InvalidRequest(f"The body is not JSON: {error}" if body else "The body is empty.") from None
    return value


def shape(value: object, kind: type[T], at: str = "") -> T:
    """The value as this type; `at` is its place in the body."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _misshapen(str(error), at) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", field=at or None) from None


def read(body: bytes, kind: type[T]) -> T:
    """The body as this type."""
    return shape(parse(body), kind)


def check_depth(value: object, field: str) -> None:
    """Refuse what is nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    raise InvalidRequest(f"{field}: Nested deeper than {MAX_DEPTH} levels", field=field)


def text_of(value: object, field: str) -> str:
    """A part of the body as JSON text again, such as a call's arguments or a schema."""
    check_depth(value, field)
    return msgspec.json.encode(value).decode()


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON schema of a shape, whole in itself: without references, for a document that has its own."""
    (root,), parts = msgspec.json.schema_components([kind], ref_template="{name}")

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline(parts[node["$ref"]])
        return {name: inline(each) for name, each in node.items() if name != "discriminator"}  # it maps to references

    whole: dict[str, Any] = inline(root)
    return whole


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_VALUE = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)


def _misshapen(error: str, at: str) -> InvalidRequest:
    """msgspec's sentence, with the place first and as clients write it: messages.0.content."""
    what, is_placed, place = error.rpartition(" - at `$")
    inner = re.sub(r"\[(\d+)\]", r".\1", place.rstrip("`").replace("[...]", ".*")).strip(".")
    what, inner = (what, inner) if is_placed else (error, "")
    field = ".".join(filter(None, (at, inner)))
    if found := _FIELD.fullmatch(what):
        field = ".".join(filter(None, (field, found[2][:MAX_SAID])))
        what = "Extra inputs are not permitted" if found[1] == "contains unknown" else "Field required"
    elif found := _VALUE.fullmatch(what):
        what = f"{found[1][:MAX_SAID]} is not supported"
    return InvalidRequest(f"{field or 'The body'}: {what}", field=field or None)
