"""More than 300 JSON schemas of many shapes, the same in every run, and a validator of answers to them.

Most strings and lists are short, so that a small model that writes at random comes to an end.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jsonschema

Schema = dict[str, Any]

WORDS = (
    "name", "title", "city", "colour", "price", "weight", "height", "status", "kind", "label", "code", "owner",
    "author", "genre", "year", "month", "level", "score", "rating", "unit", "amount", "total", "currency", "country",
    "street", "number", "language", "version", "size", "shape", "material", "brand", "model", "origin", "target",
    "reason", "comment", "source", "speed", "range", "limit", "count",
)  # fmt: skip


class Case(NamedTuple):
    """A schema, and what a prompt calls it."""

    about: str
    schema: Schema


def cases() -> list[Case]:
    """All of them; no two are equal."""
    chance = random.Random(20)
    made: dict[str, Case] = {}
    for family, count in FAMILIES:
        about = family.__name__.replace("_", " ")
        for number in range(count):
            schema = family(chance, number)
            made.setdefault(json.dumps(schema), Case(about, schema))
    return list(made.values())


# ── leaves ──


def text(chance: random.Random) -> Schema:
    return {"type": "string", "maxLength": chance.randint(4, 16)}


def whole(chance: random.Random) -> Schema:
    low = chance.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + chance.randint(1, 500)}


def fraction(chance: random.Random) -> Schema:
    low = chance.randint(-20, 20)
    bounds = chance.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
    return {"type": "number", bounds[0]: low, bounds[1]: low + chance.randint(1, 9) + chance.choice([0, 0.5])}


def choice(chance: random.Random) -> Schema:
    return {"enum": chance.sample(WORDS, chance.randint(2, 6))}


def flag(chance: random.Random) -> Schema:
    return {"type": "boolean"}


def maybe(chance: random.Random) -> Schema:
    return {"type": [chance.choice(["integer", "boolean"]), "null"]}


def fixed(chance: random.Random) -> Schema:
    return {"const": chance.choice(["v1", 7, None, True, -2.5, ["a", 1], {"x": {"y": []}}, 'quote " and \\ and é'])}


LEAVES = (text, whole, fraction, choice, flag, maybe, fixed)


def leaf(chance: random.Random) -> Schema:
    return chance.choice(LEAVES)(chance)


def closed(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def fields(chance: random.Random, count: int, of: Callable[[random.Random], Schema] = leaf) -> dict[str, Schema]:
    return {name: of(chance) for name in chance.sample(WORDS, count)}


# ── families ──


def flat_object(chance: random.Random, number: int) -> Schema:
    return closed(fields(chance, 1 + number % 7))


def object_with_optional_fields(chance: random.Random, number: int) -> Schema:
    properties = fields(chance, 2 + number % 5)
    return closed(properties, chance.sample(list(properties), chance.randint(0, len(properties) - 1)))


def open_object(chance: random.Random, number: int) -> Schema:
    properties = fields(chance, 1 + number % 3)
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "maxProperties": len(properties) + 1,
    }


def nested_objects(chance: random.Random, number: int) -> Schema:
    inner = closed(fields(chance, 2))
    for _ in range(1 + number % 4):
        inner = closed({chance.choice(WORDS): inner, **fields(chance, 1)})
    return inner


def list_of_values(chance: random.Random, number: int) -> Schema:
    least = number % 3
    return {"type": "array", "items": leaf(chance), "minItems": least, "maxItems": least + chance.randint(1, 4)}


def list_of_objects(chance: random.Random, number: int) -> Schema:
    items = closed(fields(chance, 1 + number % 3))
    return closed({"items": {"type": "array", "items": items, "minItems": 1, "maxItems": 2 + number % 2}})


def grid(chance: random.Random, number: int) -> Schema:
    row = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 3}
    return {"type": "array", "items": row, "minItems": 1 + number % 3, "maxItems": 3}


def fixed_places(chance: random.Random, number: int) -> Schema:
    places = [leaf(chance) for _ in range(2 + number % 4)]
    return {"type": "array", "prefixItems": places, "items": False, "minItems": len(places)}


def chain(chance: random.Random, number: int) -> Schema:
    link = closed({"value": leaf(chance), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]}})
    return {"$ref": "#/$defs/link", "$defs": {"link": link}}


def tree(chance: random.Random, number: int) -> Schema:
    below = {"type": "array", "items": {"$ref": "#"}, "maxItems": 1 + number % 2}
    return closed({chance.choice(WORDS): leaf(chance), "children": below})


def expression(chance: random.Random, number: int) -> Schema:
    sign = {"enum": ["+", "-", "*", "/"][: 2 + number % 3]}
    apart = closed({"op": sign, "left": {"$ref": "#/definitions/e"}, "right": {"$ref": "#/definitions/e"}})
    return {"$ref": "#/definitions/e", "definitions": {"e": {"anyOf": [whole(chance), apart]}}}


def kinds_apart(chance: random.Random, number: int) -> Schema:
    """Branches distinguished by a constant, as typed unions are usually written."""
    names = chance.sample(WORDS, 2 + number % 3)
    return {"oneOf": [closed({"type": {"const": name}, **fields(chance, 1 + number % 2)}) for name in names]}


def one_of_types(chance: random.Random, number: int) -> Schema:
    branches = [text(chance), whole(chance), flag(chance), {"type": "null"}, closed(fields(chance, 2))]
    return closed({chance.choice(WORDS): {"oneOf": chance.sample(branches, 2 + number % 3)}})


def any_of(chance: random.Random, number: int) -> Schema:
    branches = [text(chance), choice(chance), whole(chance), closed(fields(chance, 1)), closed(fields(chance, 2))]
    return closed({chance.choice(WORDS): {"anyOf": chance.sample(branches, 2 + number % 3)}, **fields(chance, 1)})


def all_of(chance: random.Random, number: int) -> Schema:
    first, second = fields(chance, 1 + number % 2), fields(chance, 1)
    parts = [{"type": "object", "properties": part, "required": list(part)} for part in (first, second)]
    if number % 2:
        return {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4 + number}]}
    return closed({"both": {"allOf": parts, "maxProperties": len(first | second)}})


PATTERNS = (
    r"^[A-Z]{2}-\d{4}$",
    r"^#[0-9a-f]{6}$",
    r"^\d+\.\d+\.\d+$",
    r"^(north|south)-(east|west)$",
    r"^\+\d{1,3} \d{6,10}$",
    r"^[a-z_][a-z0-9_]{0,9}$",
    r"^(mon|tue|wed|thu|fri)(, (mon|tue|wed|thu|fri)){0,2}$",
    r"^[^\s@]{1,8}@[a-z]{2,8}\.(com|org)$",
    r"^([01]\d|2[0-3]):[0-5]\d$",
    r"^[\w-]{3,8}/[\w-]{3,8}$",
    r"^\$[1-9]\d{0,3}(\.\d\d)?$",
    r"^(?:[A-Za-z]+ ){1,3}end$",
)


def pattern(chance: random.Random, number: int) -> Schema:
    schema_of_field = {"type": "string", "pattern": PATTERNS[number % len(PATTERNS)]}
    return closed({chance.choice(WORDS): schema_of_field, **fields(chance, number % 3)})


def names_by_pattern(chance: random.Random, number: int) -> Schema:
    names = {"^x_[a-z]{1,6}$": whole(chance), "^y_[a-z]{1,6}$": flag(chance)}
    return {
        "type": "object",
        "patternProperties": names,
        "additionalProperties": False,
        "maxProperties": 1 + number % 4,
    }


FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")


def format_of_text(chance: random.Random, number: int) -> Schema:
    schema_of_field: Schema = {"type": "string", "format": FORMATS[number % len(FORMATS)]}
    if schema_of_field["format"] in ("email", "hostname", "uri"):
        schema_of_field["maxLength"] = 24
    return closed({chance.choice(WORDS): schema_of_field, **fields(chance, number // len(FORMATS))})


def big_enum(chance: random.Random, number: int) -> Schema:
    count = (60, 200, 600, 2000)[number % 4]
    kinds: list[Callable[[int], Any]] = [
        lambda i: f"{chance.choice(WORDS)}-{i}",
        lambda i: i * 37 - 999,
        lambda i: f"{chance.choice(WORDS)} {chance.choice(WORDS)} of {i}",
        lambda i: [i, str(i)] if i % 3 else {"n": i},
    ]
    return closed({chance.choice(WORDS): {"enum": [kinds[number // 4 % 4](i) for i in range(count)]}})


def numbers(chance: random.Random, number: int) -> Schema:
    step = chance.choice([2, 3, 5, 7, 10])
    schema_of_field: list[Schema] = [
        {"type": "integer", "multipleOf": step, "minimum": 0, "maximum": 1000},
        {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 100},
        {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5},
        {"type": "number", "minimum": -0.5, "maximum": 0.5},
        {"type": "integer", "minimum": 10 ** (1 + number), "maximum": 10 ** (2 + number)},
        {"type": "integer", "maximum": -1, "minimum": -(10 ** (1 + number % 6))},
        fraction(chance),
    ]
    return closed(
        {
            name: schema_of_field[(number + i) % len(schema_of_field)]
            for i, name in enumerate(chance.sample(WORDS, 1 + number % 3))
        }
    )


def lengths(chance: random.Random, number: int) -> Schema:
    least = chance.randint(1, 6)
    return closed({chance.choice(WORDS): {"type": "string", "minLength": least, "maxLength": least + number % 9}})


def map_of_values(chance: random.Random, number: int) -> Schema:
    return {
        "type": "object",
        "additionalProperties": leaf(chance),
        "minProperties": number % 2,
        "maxProperties": 2 + number % 3,
    }


def bare_value(chance: random.Random, number: int) -> Schema:
    return leaf(chance)


def shared_definitions(chance: random.Random, number: int) -> Schema:
    point = closed({"x": whole(chance), "y": whole(chance)})
    both = {name: {"$ref": "#/$defs/point"} for name in chance.sample(WORDS, 1 + number % 3)}
    return closed(both) | {"$defs": {"point": point}}


def order_of_a_shop(chance: random.Random, number: int) -> Schema:
    line = closed({"sku": {"type": "string", "pattern": "^[A-Z]{3}\\d{3}$"}, "quantity": whole(chance)})
    return closed(
        {
            "order_id": {"type": "string", "format": "uuid"},
            "customer": closed({"name": text(chance), "email": {"type": "string", "format": "email", "maxLength": 24}}),
            "lines": {"type": "array", "items": line, "minItems": 1, "maxItems": 1 + number % 3},
            "status": {"enum": ["new", "paid", "sent", "returned"]},
            "paid": {"type": ["boolean", "null"]},
        },
        ["order_id", "customer", "lines", "status"],
    )


def tool_call(chance: random.Random, number: int) -> Schema:
    names = chance.sample(WORDS, 3)
    calls = [
        closed({"name": {"const": f"get_{name}"}, "arguments": closed(fields(chance, 1 + number % 3))})
        for name in names
    ]
    return {"anyOf": calls}


FAMILIES: tuple[tuple[Callable[[random.Random, int], Schema], int], ...] = (
    (flat_object, 28),
    (object_with_optional_fields, 20),
    (open_object, 10),
    (nested_objects, 16),
    (list_of_values, 16),
    (list_of_objects, 12),
    (grid, 3),
    (fixed_places, 12),
    (chain, 10),
    (tree, 10),
    (expression, 6),
    (kinds_apart, 16),
    (one_of_types, 14),
    (any_of, 16),
    (all_of, 12),
    (pattern, 24),
    (names_by_pattern, 6),
    (format_of_text, 30),
    (big_enum, 16),
    (numbers, 16),
    (lengths, 12),
    (map_of_values, 10),
    (bare_value, 10),
    (shared_definitions, 8),
    (order_of_a_shop, 8),
    (tool_call, 12),
)


# ── the judge ──

CHECKER = jsonschema.FormatChecker()


@CHECKER.checks("date-time", raises=ValueError)
def _is_date_time(value: Any) -> bool:
    plain = str(value).upper().replace(":60", ":59").replace("0000-", "2000-")
    return datetime.datetime.fromisoformat(plain).tzinfo is not None


@CHECKER.checks("date", raises=ValueError)
def _is_date(value: Any) -> bool:
    return bool(datetime.date.fromisoformat(str(value).replace("0000-", "2000-")))


@CHECKER.checks("time", raises=ValueError)
def _is_time(value: Any) -> bool:
    return datetime.time.fromisoformat(str(value).upper().replace(":60", ":59")).tzinfo is not None


@CHECKER.checks("duration")
def _is_duration(value: Any) -> bool:
    date, time = r"(\d+Y)?(\d+M)?(\d+D)?", r"(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?"
    return bool(re.fullmatch(rf"P(?=[\dT])({date}{time}|\d+W)", str(value)))


@CHECKER.checks("hostname")
def _is_hostname(value: Any) -> bool:
    return all(re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)", part) for part in str(value).split("."))


@CHECKER.checks("ipv6", raises=ValueError)
def _is_ipv6(value: Any) -> bool:
    return bool(ipaddress.IPv6Address(value))


@CHECKER.checks("uri", raises=ValueError)
def _is_uri(value: Any) -> bool:
    return bool(urlsplit(str(value)).scheme)


def judge(schema: Schema, answer: str) -> None:
    """Raises if the answer is not JSON or not valid for the schema, formats included."""
    judging = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    judging(schema, format_checker=CHECKER).validate(json.loads(answer))
