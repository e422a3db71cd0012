"""Strict JSON, and shapes whose errors name the place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.serve.json_body import MAX_DEPTH, check_depth, parse, read, schema_of, shape, text_of
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


class Leaf(msgspec.Struct, tag_field="type", tag="leaf", forbid_unknown_fields=True):
    size: int


class Fork(msgspec.Struct, tag_field="type", tag="fork", forbid_unknown_fields=True):
    weights: dict[str, float]


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parts: list[Leaf | Fork] = []


def error_of(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        read(body, Tree)
    return raised.value


@pytest.mark.parametrize(
    "body, value",
    [
        (b' {"a": [1, 2.5, true, null, "\\u00e9"]} ', {"a": [1, 2.5, True, None, "é"]}),
        (b'"\\ud83d\\ude00"', "😀"),
        ('"😀"'.encode(), "😀"),
        (b'"\\\\ud800"', "\\ud800"),
        (b"1e-999", 0.0),
        (b"18446744073709551615", 2**64 - 1),
    ],
)
def test_good_json(body: bytes, value: Any):
    assert parse(body) == value


@pytest.mark.parametrize(
    "body, said",
    [
        (b"", "The body is empty."),
        (b"{", "Expecting property name"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' is there twice"),
        (b'[{"a": {"b": 1, "b": 1}}]', "the key 'b' is there twice"),
        (b"NaN", "NaN is not a number of JSON"),
        (b"-Infinity", "-Infinity is not a number"),
        (b"1e999", "the number 1e999 is too large"),
        (b"1" * 101, "a number has 101 digits"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        (b'"\xff"', "invalid start byte"),
        (b"[" * 10_000 + b"]" * 10_000, "nested too deeply"),
    ],
)
def test_bad_json(body: bytes, said: str):
    with pytest.raises(InvalidRequest) as raised:
        parse(body)
    assert said in raised.value.public


@pytest.mark.parametrize(
    "body, field, said",
    [
        (b"[]", None, "The body: Expected `object`, got `array`"),
        (b"{}", "name", "name: Field required"),
        (b'{"name": "a", "x": 1}', "x", "x: Extra inputs are not permitted"),
        (b'{"name": 5}', "name", "name: Expected `str`, got `int`"),
        (b'{"name": "a", "parts": [{"type": "leaf"}]}', "parts.0.size", "parts.0.size: Field required"),
        (b'{"name": "a", "parts": [{"type": "twig"}]}', "parts.0.type", "parts.0.type: 'twig' is not supported"),
        (
            b'{"name": "a", "parts": [{"type": "leaf", "size": 1}, {"type": "fork", "weights": {"a": "b"}}]}',
            "parts.1.weights.*",
            "parts.1.weights.*: Expected `float`, got `str`",
        ),
        (b'{"name": "a", "parts": [{"type": "leaf", "size": 1, "`x`": 2}]}', "parts.0.`x`", "Extra inputs"),
    ],
)
def test_errors_name_the_place(body: bytes, field: str | None, said: str):
    error = error_of(body)
    assert error.field == field and said in error.public


def test_a_part_of_a_body_is_named_by_its_place_in_the_whole():
    with pytest.raises(InvalidRequest) as raised:
        shape({"size": "1"}, Leaf, at="parts.3")
    assert raised.value.field == "parts.3.size"


def test_a_good_body_has_its_shape():
    assert read(b'{"name": "a", "parts": [{"type": "leaf", "size": 1}]}', Tree) == Tree("a", [Leaf(1)])


def test_depth_is_limited_where_a_value_is_passed_on():
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    check_depth(value, "x")
    with pytest.raises(InvalidRequest, match=r"^x: Nested deeper"):
        text_of({"a": value}, "x")


def test_text_is_compact_and_keeps_the_order():
    assert text_of({"b": [1, "é"], "a": None}, "x") == '{"b":[1,"é"],"a":null}'


def test_a_schema_has_no_references():
    schema = schema_of(Tree)
    leaf, fork = schema["properties"]["parts"]["items"]["anyOf"]
    assert leaf["properties"]["type"] == {"enum": ["leaf"]} and fork["required"] == ["type", "weights"]
    assert schema["additionalProperties"] is False and "$" not in str(schema)
