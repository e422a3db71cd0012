"""Keywords and formats that the compiler lacks, as Pydantic writes them: enforced by patterns or lists, or ignored."""

from __future__ import annotations

import base64
import datetime
import enum
import ipaddress
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pydantic
import pytest

pytest.importorskip("llguidance")

from quire.grammar.alternatives import SchemaOptions
from quire.grammar.formats import PATTERNS, PROPERTY_NAME_PATTERNS
from quire.grammar.guidance import Guidance
from quire.grammar.schema_writer import exact_schema
from quire.types.errors import InvalidRequest
from tests.grammar.walking import BYTES, compiled, takes, walk

pytestmark = pytest.mark.pure

BACKEND = Guidance(BYTES)

READERS: dict[str, Callable[[str], Any]] = {
    "base64": lambda text: base64.b64decode(text, validate=True),
    "base64url": lambda text: base64.b64decode(text, altchars="-_", validate=True),
    "regex": re.compile,
    "json-string": json.loads,
    "date": datetime.date.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "time": datetime.time.fromisoformat,
    "uuid": UUID,
    **{f"uuid{version}": UUID for version in range(1, 9)},
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipvanyaddress": ipaddress.ip_address,
    "ipv4network": ipaddress.IPv4Network,
    "ipv6network": ipaddress.IPv6Network,
    "ipvanynetwork": ipaddress.ip_network,
    "ipv4interface": ipaddress.IPv4Interface,
    "ipv6interface": ipaddress.IPv6Interface,
    "ipvanyinterface": ipaddress.ip_interface,
}


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_match_of_a_format_is_accepted_by_its_parser(name: str) -> None:
    short = {"type": "string", "format": name, "maxLength": 60}
    named = {"type": "object", "propertyNames": {"format": name}, "maxProperties": 1, "minProperties": 1}
    for schema in (short, named):
        grammar, num_over = compiled(schema, BACKEND), 0
        for seed in range(8):
            answer = walk(grammar, seed)
            if answer is not None:
                num_over += 1
                value = json.loads(answer)
                READERS[name](next(iter(value)) if isinstance(value, dict) else value)
        assert num_over, "no answer was complete"


@pytest.mark.parametrize("patterns", [PATTERNS, PROPERTY_NAME_PATTERNS], ids=["of values", "of names"])
def test_every_pattern_of_a_format_can_be_compiled(patterns: dict[str, str]) -> None:
    for name, pattern in patterns.items():
        assert walk(compiled({"type": "string", "pattern": pattern, "maxLength": 70}, BACKEND), 1, 500), name


ANNOTATIONS: dict[str, Any] = {
    "title": "T",
    "description": "D",
    "default": 3,
    "examples": [1],
    "deprecated": True,
    "readOnly": True,
    "writeOnly": True,
    "$comment": "c",
    "$id": "https://example.com/x",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "contentEncoding": "base64",
    "contentMediaType": "image/png",
    "discriminator": {"propertyName": "x"},
    "uniqueItems": False,
    "format": "colour",
    "x-mine": {"properties": 1},
}


@pytest.mark.parametrize("key", sorted(ANNOTATIONS))
def test_an_annotation_changes_nothing(key: str) -> None:
    for schema in ({"type": "string", "maxLength": 2}, {"type": "object", "properties": {"a": {"const": 1}}}):
        grammar = compiled(schema | {key: ANNOTATIONS[key]}, BACKEND)
        assert takes(grammar, '"ab"') is (schema["type"] == "string")
        assert takes(grammar, '{"a": 1}') is (schema["type"] == "object")


@pytest.mark.parametrize("name", ["path", "file-path", "directory-path", "password", "binary", "multi-host-uri", "ssn"])
def test_an_unknown_format_is_an_annotation(name: str) -> None:
    assert takes(compiled({"type": "string", "format": name}, BACKEND), '"any /text/ at all"')


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        ({"items": {"enum": ["r", "g"]}}, ["[]", '["g", "r"]', '["r"]'], ['["r", "r"]', '["g", "r", "g"]']),
        ({"items": {"type": "boolean"}, "minItems": 1}, ["[true, false]"], ["[]", "[true, true]"]),
        ({"items": {"enum": [1, 1.0, True]}, "maxItems": 2}, ["[1, true]"], ["[1, 1]"]),
        ({"items": {"$ref": "#/$defs/c"}, "$defs": {"c": {"enum": ["x", "y"]}}}, ['["y", "x"]'], ['["y", "y"]']),
        ({"items": {"enum": list(range(30))}}, ["[3, 7]", "[29]", "[]"], ["[3, 3]", "[30]"]),
        ({"items": {"enum": ["a", "b", "c"]}, "minItems": 3}, ['["c", "b", "a"]'], ['["c", "b"]', '["c", "b", "b"]']),
        ({"items": {"type": "string"}}, ["[]", '["red"]', '["sad", "big", "mad"]'], ['["a", "a"]']),
        ({"items": {"type": "string"}, "minItems": 2}, ['["sad", "big"]', '["a", "f", "Mad", "1"]'], ['["a", "a"]']),
        (
            {"items": {"type": "string", "format": "date"}},
            ['["2024-01-02", "2024-01-01"]'],
            ['["2024-01-01", "2024-01-01"]'],
        ),
        ({"items": {"type": "integer"}}, ["[5, 1000, 50, 500]", "[-3]"], ["[5, 5]", "[5, 1000, 5]"]),
        ({"items": {"type": "integer", "minimum": 3, "maximum": 50}}, ["[20, 4]"], ["[4, 4]", "[20, 2]"]),
        ({"items": {"type": "number"}}, ["[0.5]"], ["[0.5, 0.5]"]),
        (
            {"items": {"type": "string"}, "$schema": "http://json-schema.org/draft-07/schema#"},
            ["[]", '["a", "s"]'],
            ['["a", "a"]'],
        ),
        ({"items": {"type": "integer"}, "maxItems": 1}, ["[7]"], ["[7, 7]"]),
        ({"prefixItems": [{"const": 1}, {"const": 1}]}, ["[1]"], ["[1, 1]"]),
    ],
)
def test_unique_items_are_different(schema: Any, good: list[str], bad: list[str]) -> None:
    schema = {"type": "array", "uniqueItems": True, **schema}
    grammar = compiled(schema, BACKEND)
    assert [text for text in good if not takes(grammar, text)] == []
    assert [text for text in bad if takes(grammar, text)] == []
    for seed in range(6):
        jsonschema.validate(json.loads(walk(grammar, seed) or "[]"), {**schema, "minItems": 0})


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        ({"propertyNames": {"enum": ["a", "b"]}}, ["{}", '{"a": 1, "b": 2}'], ['{"c": 1}', '{"a": 1, "a": 1}']),
        ({"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"const": "q"}}}, ['{"q": 1}'], ['{"a": 1}']),
        ({"propertyNames": {"pattern": "^x"}}, ["{}", '{"xa": 1}'], ['{"a": 1}']),
        ({"propertyNames": {"minLength": 2, "maxLength": 3}}, ['{"ab": 1}'], ['{"a": 1}', '{"abcd": 1}']),
        ({"propertyNames": {"type": "string"}}, ['{"anything": 1}'], []),
        (
            {"propertyNames": {"pattern": "^x"}, "properties": {"xa": {}, "b": {}}},
            ['{"xa": 1}'],
            ['{"b": 1}', '{"xb": 1}'],
        ),
        ({"propertyNames": False}, ["{}"], ['{"a": 1}']),
    ],
)
def test_property_names_are_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = compiled({"type": "object", **schema}, BACKEND)
    assert [text for text in good if not takes(grammar, text)] == []
    assert [text for text in bad if takes(grammar, text)] == []


def test_unbounded_integers_are_bounded() -> None:
    grammar = compiled({"type": "integer"}, BACKEND)
    assert takes(grammar, "9" * 18) and takes(grammar, "-" + "9" * 18) and not takes(grammar, "9" * 20)
    assert takes(compiled({"enum": [10**15], "type": "integer"}, BACKEND), str(10**15))
    assert not takes(compiled({"type": "integer", "format": "int32"}, BACKEND), str(2**31))


def test_unsupported_keywords_are_refused_by_name_and_ignored_for_a_lenient_tool() -> None:
    for keyword, value in (("not", {"type": "null"}), ("contains", {"const": 1}), ("unevaluatedItems", False)):
        with pytest.raises(InvalidRequest, match=f"not supported: {keyword}"):
            compiled({keyword: value}, BACKEND)
    lenient = SchemaOptions(is_lenient=True)
    many = exact_schema({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, lenient)
    assert many == {"type": "array", "items": {"type": "string"}}
    beyond = {"type": "object", "if": {"$ref": "#/$defs/x"}, "$defs": {"x": {"properties": {"c": {}}}}}
    assert exact_schema(beyond, lenient) == {"type": "object"}
    conditional = {
        "properties": {"a": {}},
        "if": {"properties": {"a": {"const": 1}}},
        "then": {"properties": {"b": {}}},
    }
    assert set(exact_schema(conditional, lenient)["properties"]) == {"a", "b"}, "a name in a branch is allowed"


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool


class Tree(pydantic.BaseModel):
    value: Annotated[int, pydantic.Field(ge=0, le=9)]
    children: Annotated[list[Tree], pydantic.Field(max_length=1)] = []


Short = Annotated[str, pydantic.StringConstraints(max_length=5)]


class Everything(pydantic.BaseModel):
    """What people put into models."""

    maybe: int | None = None
    either: Colour | int
    colours: set[Colour]
    words: frozenset[Short]
    counts: Annotated[dict[str, int], pydantic.Field(max_length=1)]
    by_colour: dict[Colour, bool]
    by_day: Annotated[dict[datetime.date, bool], pydantic.Field(max_length=1)]
    at: datetime.datetime
    day: datetime.date
    when: datetime.time
    path: Path
    secret: Annotated[pydantic.SecretStr, pydantic.Field(max_length=5)]
    raw: Annotated[bytes, pydantic.Field(max_length=5)]
    pattern: re.Pattern[str]
    id: pydantic.UUID4
    network: ipaddress.IPv4Network
    json_text: pydantic.Json[Any]
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    pair: tuple[bool, Colour]
    tree: Tree
    old: Annotated[bool, pydantic.Field(deprecated=True, examples=[True])] = True


def test_pydantic_parses_every_answer_to_its_schema() -> None:
    grammar, num_over = compiled(Everything.model_json_schema(), BACKEND), 0
    for seed in range(20):
        answer = walk(grammar, seed, 3000)
        if answer is not None:
            num_over += 1
            made = Everything.model_validate_json(answer)
            assert set(json.loads(answer)) <= set(Everything.model_fields) and made.pet.kind in ("cat", "dog")
    assert num_over >= 5
