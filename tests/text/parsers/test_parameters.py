"""What a schema says of parameters, and values in plain text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.text.parsers.parameters import separate_parameters, tool_parameter, value_as_json
from quire.types.chat import Tool

pytestmark = pytest.mark.pure

DEFINITIONS = {"node": {"type": "object"}, "name": {"$ref": "#/$defs/text"}, "text": {"type": "string"}}


@pytest.mark.parametrize(
    "schema, kinds",
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"$ref": "#/$defs/node"}, {"object"}),
        ({"$ref": "#/$defs/name"}, {"string"}),
        ({"$ref": "#/$defs/none"}, set()),
        ({"$ref": "other.json"}, set()),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "number"}, {"type": "array"}]}, {"number", "array"}),
        ({"oneOf": [{"type": "number"}, {}]}, set()),
        ({}, set()),
        (True, set()),
    ],
)
def test_kinds_of_values(schema: Any, kinds: set[str]) -> None:
    tool = Tool("t", "", {"type": "object", "properties": {"p": schema}, "$defs": DEFINITIONS, "required": ["p"]})
    found = tool_parameter(tool, "p")
    assert found.kinds == kinds and found.is_required and not tool_parameter(tool, "q").kinds


def test_a_schema_that_refers_to_itself_says_nothing() -> None:
    tool = Tool("t", "", {"properties": {"p": {"$ref": "#/properties/p"}}})
    assert tool_parameter(tool, "p").kinds == frozenset() and tool_parameter(None, "p").kinds == frozenset()


@pytest.mark.parametrize(
    "schema, is_separate",
    [
        ({}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, False),
        ({"anyOf": [{"required": ["a"]}]}, False),
        ({"$ref": "#/$defs/node", "$defs": DEFINITIONS}, False),
        ({"type": ["object", "null"]}, False),
        ({"properties": {"a": {}}, "required": ["b"]}, False),
        ({"properties": {"a": {}}, "minProperties": 1}, False),
    ],
)
def test_a_schema_of_separate_parameters(schema: dict[str, Any], is_separate: bool) -> None:
    assert (separate_parameters(Tool("t", "", schema)) is not None) is is_separate


@pytest.mark.parametrize(
    "text, kinds, value",
    [
        ("7", {"integer"}, 7),
        ("7", {"string"}, "7"),
        ("7", set(), 7),
        (" x ", set(), " x "),
        ("null", {"string", "null"}, None),
        ("null", {"string"}, "null"),
        ("True", {"boolean"}, True),
        ("Tom", set(), "Tom"),
        ("{'a': [None]}", {"object"}, {"a": [None]}),
        ('{"a": NaN}', {"object"}, '{"a": NaN}'),
        ("NaN", {"number"}, "NaN"),
        ("", {"integer"}, ""),
    ],
)
def test_a_value_in_plain_text(text: str, kinds: set[str], value: object) -> None:
    assert json.loads(value_as_json(text, frozenset(kinds))) == value
