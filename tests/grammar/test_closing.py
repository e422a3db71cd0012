"""Objects have the properties that their schema declares and no others, after all parts are merged.

Answers are validated by `jsonschema` with the original schema.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

pytest.importorskip("llguidance")

from quire.grammar.guidance import Guidance
from quire.types.errors import InvalidRequest
from tests.grammar.walking import BYTES, compiled, takes, walk

pytestmark = pytest.mark.pure

CLOSED, OPEN = Guidance(BYTES), Guidance(BYTES, open_objects=True)
A, B = {"a": {"type": "integer"}}, {"b": {"type": "integer"}}
BASE = {"$defs": {"base": {"type": "object", "properties": A, "required": ["a"]}}}
REF = {"$ref": "#/$defs/base"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat", "default": "cat"}, "n": {"type": "integer"}}}
DOG = {"type": "object", "properties": {"kind": {"const": "dog", "default": "dog"}}, "required": []}
PETS = {"$defs": {"cat": CAT, "dog": DOG}}
PET = {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "kind"}}
NODE = {"properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        ({"type": "object", "properties": A}, ['{"a": 1}', "{}"], ['{"a": 1, "x": 1}', '{"x": 1}']),
        ({"type": "object", "properties": {}}, ["{}"], ['{"x": 1}']),
        ({"type": "object"}, ["{}", '{"x": 1}'], []),
        ({"properties": A, "additionalProperties": True}, ['{"a": 1, "x": "y"}'], []),
        ({"properties": A, "additionalProperties": {"const": 3}}, ['{"a": 1, "x": 3}'], ['{"a": 1, "x": 4}']),
        ({"properties": A, "unevaluatedProperties": True}, ['{"a": 1, "x": "y"}'], []),
        ({"properties": A, "required": ["a", "q"]}, ['{"a": 1, "q": [1]}'], ['{"a": 1}', '{"a": 1, "q": 1, "x": 1}']),
        ({"type": "object", "patternProperties": {"^x": {"const": 1}}}, ["{}", '{"xy": 1}'], ['{"a": 1}', '{"x": 2}']),
        ({"items": {"properties": A}}, ['[{"a": 1}]'], ['[{"x": 1}]']),
        # in place: what is declared together is closed together
        ({"allOf": [REF], "properties": B, **BASE}, ['{"a": 1, "b": 2}'], ['{"b": 2}', '{"a": 1, "x": 2}']),
        ({**REF, "properties": B, **BASE}, ['{"a": 1, "b": 2}', '{"a": 1}'], ['{"a": 1, "x": 2}']),
        ({"allOf": [{"properties": A}, {"properties": B}]}, ['{"a": 1, "b": 2}'], ['{"a": 1, "x": 2}']),
        (
            {"properties": A, "anyOf": [{"required": ["a"]}, {"properties": B, "required": ["b"]}]},
            ['{"a": 1}', '{"b": 2}', '{"a": 1, "b": 2}'],
            ["{}", '{"a": 1, "x": 2}'],
        ),
        ({"anyOf": [{"properties": A}, {"properties": B}]}, ['{"a": 1}', '{"b": 2}'], ['{"a": 1, "b": 2}', '{"x": 1}']),
        (
            {"properties": {"x": {"properties": A}}, "allOf": [{"properties": {"x": {"properties": B}}}]},
            ['{"x": {"a": 1, "b": 2}}'],
            ['{"x": {"a": 1, "c": 2}}'],
        ),
        (
            {"allOf": [{"items": {"properties": A}}, {"items": {"properties": B}}]},
            ['[{"a": 1, "b": 2}]'],
            ['[{"c": 2}]'],
        ),
        ({"allOf": [{"properties": A, "additionalProperties": True}, {"properties": B}]}, ['{"a": 1, "x": 2}'], []),
        # what JSON Schema itself has for this
        (
            {"allOf": [REF], "properties": B, "unevaluatedProperties": False, **BASE},
            ['{"a": 1, "b": 2}'],
            ['{"a": 1, "x": 2}'],
        ),
        (
            {"allOf": [{"properties": A, "unevaluatedProperties": False}], "properties": B, "type": "object"},
            ['{"a": 1}'],
            ['{"b": 1}'],
        ),
        ({"properties": A, "unevaluatedProperties": {"const": 1}}, ['{"a": 5, "x": 1}'], ['{"a": 5, "x": 2}']),
        (
            {"type": "object", "properties": A | B, "dependentRequired": {"a": ["b"]}},
            ["{}", '{"b": 1}', '{"a": 1, "b": 1}'],
            ['{"a": 1}'],
        ),
        (
            {"type": "object", "properties": A, "dependentSchemas": {"a": {"properties": B, "required": ["b"]}}},
            ["{}", '{"a": 1, "b": 1}'],
            ['{"a": 1}', '{"b": 1}'],
        ),
        (
            {"type": "object", "properties": A, "minProperties": 2, "required": ["a"]},
            ['{"a": 1, "x": 2}'],
            ['{"a": 1}'],
        ),
        ({"properties": A, "const": {"a": 1, "b": 2}}, ['{"a": 1, "b": 2}'], []),
        # one of several: an answer never fits two
        (
            {**PET, **PETS},
            ['{"kind": "cat", "n": 1}', '{"kind": "dog"}'],
            ["{}", '{"n": 1}', '{"kind": "dog", "n": 1}'],
        ),
        (
            {"type": "object", "oneOf": [{"properties": A, "required": ["a"]}, {"properties": B, "required": ["b"]}]},
            ['{"a": 1}', '{"b": 1}'],
            ['{"a": 1, "b": 1}', "{}"],
        ),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE | {"type": "object"}}}, ['{"v": 1, "next": {"v": 2}}'], []),
        # a definition that is its own part, with keywords beside the reference
        (
            {
                "$ref": "#/$defs/n",
                "$defs": {"n": {"properties": A | {"n": {"$ref": "#/$defs/n", "properties": B}}, "type": "object"}},
            },
            ['{"a": 1, "n": {"a": 2, "n": {"b": 3}, "b": 4}}'],
            ['{"a": 1, "n": {"x": 2}}', '{"b": 1}'],
        ),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict) else "",
)
def test_an_object_is_closed_after_all_its_parts_are_merged(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = compiled(schema, CLOSED)
    assert [text for text in good if not takes(grammar, text)] == []
    assert [text for text in bad if takes(grammar, text)] == []
    for text in good:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_the_setting_keeps_objects_open_and_a_strict_schema_closes_them() -> None:
    schema = {"properties": A, "allOf": [{"properties": B}]}
    assert takes(compiled(schema, OPEN), '{"a": 1, "b": 2, "x": 3}')
    assert not takes(compiled(schema, OPEN, strict=True), '{"a": 1, "b": 2, "x": 3}')
    assert not takes(compiled(schema | {"unevaluatedProperties": False}, OPEN), '{"a": 1, "b": 2, "x": 3}')


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"properties": A, "required": ["a"]}, {"properties": B}]},
        # closed by itself the first lacks b, but beside the reference it has it
        {
            "allOf": [{"oneOf": [{"properties": A, "required": ["a"]}, {"properties": B, "required": ["b"]}]}],
            "properties": A | B,
            "type": "object",
        },
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    ],
)
def test_overlapping_one_of_branches_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="exclude each other"):
        compiled(schema, CLOSED)


def test_many_branches_are_distinguished_by_a_constant_even_if_it_is_optional() -> None:
    kinds = [{"type": "object", "properties": {"k": {"const": f"k{i}"}, "x": {"type": "integer"}}} for i in range(300)]
    grammar = compiled({"oneOf": kinds}, CLOSED)
    assert takes(grammar, '{"k": "k7", "x": 1}') and not takes(grammar, '{"x": 1}') and not takes(grammar, "{}")
    with pytest.raises(InvalidRequest, match="exclude each other"):
        compiled({"oneOf": [*kinds, kinds[3]]}, CLOSED)


def leaf(chance: random.Random) -> Any:
    few: list[Any] = [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["x", "y"]}, {"const": "z"}]
    return chance.choice([*few, {"type": "boolean"}, {"type": "string", "maxLength": 3}, True])


def declared(chance: random.Random, depth: int, count: int) -> dict[str, Any]:
    names = chance.sample("abcd", count)
    inner = [random_schema(chance, depth + 1) if depth < 2 and chance.random() < 0.3 else leaf(chance) for _ in names]
    made: dict[str, Any] = {"properties": dict(zip(names, inner, strict=True))}
    for share, key, values in (
        (0.5, "required", [[names[0]], ["a"]]),
        (0.5, "type", ["object"]),
        (0.15, "additionalProperties", [False, True, leaf(chance)]),
        (0.1, "unevaluatedProperties", [False, True, leaf(chance)]),
        (0.06, "patternProperties", [{"^p": leaf(chance)}]),
        (0.05, "dependentRequired", [{names[0]: ["a"]}]),
        (0.05, "propertyNames", [{"enum": ["a", "b", "c"]}, {"pattern": "^[a-c]"}, {"maxLength": 2}]),
        (0.05, "minProperties", [1]),
    ):
        if chance.random() < share:
            made[key] = chance.choice(values)
    return made


def random_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Applicators in place, one beside the other, in any order."""
    ref = {"$ref": chance.choice(["#/$defs/one", "#/$defs/two"])}
    made = declared(chance, depth, chance.randint(1, 2)) if depth == 0 or chance.random() < 0.75 else {}
    if chance.random() < 0.35:
        made["allOf"] = [chance.choice([ref, declared(chance, 2, 1)]) for _ in range(chance.randint(1, 2))]
    if chance.random() < 0.25:
        made["anyOf"] = [chance.choice([ref, declared(chance, 2, 1), {"required": ["b"]}]), {"type": "null"}]
    if chance.random() < 0.1:
        made["oneOf"] = [{"properties": {"t": {"const": tag}} | declared(chance, 2, 1)["properties"]} for tag in "xy"]
    if chance.random() < 0.2:
        made |= ref
    items = list(made.items()) or [("type", "null")]
    chance.shuffle(items)
    return dict(items)


def with_definitions(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    two = {"type": "object", "properties": {"b": {"type": "integer", "maximum": 5}, "me": {"$ref": "#/$defs/two"}}}
    return random_schema(chance) | {"$defs": {"one": declared(chance, 2, 2), "two": two}}


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_every_answer_is_valid_for_the_clients_schema(start: int) -> None:
    """And closing makes no schema impossible that has answers when it is open."""
    num_taken = 0
    for seed in range(start, start + 50):
        schema = with_definitions(seed)
        judge = jsonschema.Draft202012Validator(schema)
        try:
            grammars = [compiled(schema, backend) for backend in (OPEN, CLOSED)]
        except InvalidRequest:
            with pytest.raises(InvalidRequest):
                compiled(schema, OPEN)
            continue
        num_taken += 1
        for grammar in grammars:
            for walk_seed in range(3):
                answer = walk(grammar, walk_seed)
                if answer is not None:
                    judge.validate(json.loads(answer))
    assert num_taken >= 15
