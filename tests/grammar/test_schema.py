"""Schemas before they are compiled: parsed, rewritten, and searched for errors."""

from __future__ import annotations

import json
import re

import pytest

from quire.grammar.formats import PATTERNS
from quire.grammar.schema import locate_error, parse_schema, subschemas
from quire.grammar.schema_writer import exact_schema
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


def test_subschemas_are_listed_innermost_first():
    schema = {
        "properties": {"a/b": {"items": {"anyOf": [{}, {"not": {}}]}}, "c": True},
        "items": [{"const": 1}],
        "$defs": {"d": {"enum": [{"properties": {"is": "data"}}]}},
        "x-mine": {"properties": {}},
    }
    assert [path for path, _ in subschemas(schema)] == [
        "#/items/0",
        "#/properties/a~1b/items/anyOf/0",
        "#/properties/a~1b/items/anyOf/1/not",
        "#/properties/a~1b/items/anyOf/1",
        "#/properties/a~1b/items",
        "#/properties/a~1b",
        "#/$defs/d",
        "#",
    ]


def test_an_error_is_located_at_the_smallest_part_with_the_same_error():
    def refusal(part):
        return "bad" if '"bad"' in json.dumps(part) else None

    schema = {"properties": {"a": {"items": {"type": "bad"}}, "b": {}}}
    assert locate_error(schema, refusal, "bad") == "#/properties/a/items"
    assert locate_error(schema, refusal, "worse") == "#"


def test_an_error_is_located_at_the_target_of_a_reference():
    def refusal(part):
        wrong = part.get("type") == "bad" or (
            part.get("$ref") and part.get("$defs", {}).get("x", {}).get("type") == "bad"
        )
        return "bad" if wrong else None

    assert (
        locate_error({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": "bad"}}}, refusal, "bad") == "#/$defs/x"
    )


def test_a_date_in_february_depends_on_the_year():
    for year in (1, 4, 100, 400, 1000, 1900, 1996, 2000, 2023, 2024, 2100, 9999):
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert bool(re.search(PATTERNS["date"], f"{year:04}-02-29")) == is_leap
        assert all(re.search(PATTERNS["date"], f"{year:04}-{day}") for day in ("02-28", "01-31", "12-09", "10-10"))
    assert not re.search(PATTERNS["date"], "0000-01-01")


def test_a_date_keeps_its_other_patterns_and_the_clients_schema_is_not_changed():
    schema = {"items": {"format": "date", "allOf": [{"pattern": "^20"}]}}
    written = json.dumps(exact_schema(schema))
    assert json.dumps(PATTERNS["date"]) in written and '"^20"' in written
    assert schema == {"items": {"format": "date", "allOf": [{"pattern": "^20"}]}}


@pytest.mark.parametrize(
    "schema, is_taken",
    [
        ({"minProperties": 1}, True),
        ({"minProperties": 2}, False),
        ({"minProperties": 2, "required": ["a"]}, True),
        ({"minProperties": 3, "required": ["a"]}, False),
        ({"minProperties": 3, "properties": {}, "additionalProperties": False}, True),
        ({"minProperties": 3, "patternProperties": {"^x": {}}, "additionalProperties": False}, False),
    ],
)
def test_min_properties_of_unlisted_names_is_refused(schema, is_taken):
    if is_taken:
        exact_schema(schema)
        return
    with pytest.raises(InvalidRequest, match="at #/items: minProperties"):
        exact_schema({"items": schema})


def test_true_allows_any_value_and_false_none():
    assert parse_schema("true") == {}
    with pytest.raises(InvalidRequest, match="no value is valid"):
        parse_schema("false")
