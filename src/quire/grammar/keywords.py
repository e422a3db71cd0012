"""Keywords of JSON Schema by what they are about, and what parts that hold together say of types, values and names."""

from __future__ import annotations

import re
from typing import Any

from quire.grammar.schema import Schema

Part = Schema | bool
Alternative = tuple[Schema, ...]

IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "dependentRequired", "dependentSchemas", "dependencies")
ANNOTATIONS = frozenset(
    (
        *("$id", "id", "$schema", "$anchor", "$comment", "$defs", "definitions", "$vocabulary", "title", "description"),
        *("default", "examples", "example", "deprecated", "readOnly", "writeOnly", "contentMediaType"),
        *("contentEncoding", "contentSchema", "discriminator", "x-guidance"),
    )
)
OF_OBJECTS = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    )
)
CONDITIONAL = ("if", "then", "else")
# No grammar keeps these.
NOT_KEPT = frozenset(
    (
        *(*CONDITIONAL, "not", "contains", "minContains", "maxContains", "unevaluatedItems"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    )
)
TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))


def types_of(parts: Alternative) -> set[str]:
    """The types that all parts allow."""
    found = set(TYPES)
    for part in parts:
        said = part.get("type", list(TYPES))
        found &= {"number" if name == "integer" else name for name in ([said] if isinstance(said, str) else said)}
    return found


def lists_of(parts: Alternative) -> list[list[Any]]:
    """The values that parts list."""
    return [[part["const"]] if "const" in part else part["enum"] for part in parts if "const" in part or "enum" in part]


def values_of(parts: Alternative) -> list[Any] | None:
    """The values that all parts list; None: they are not listed."""
    lists = lists_of(parts)
    if not lists:
        return None
    keys = [{as_key(value) for value in given} for given in lists]
    return [value for value in lists[0] if all(as_key(value) in given for given in keys)]


def type_of(value: Any) -> str:
    """In the words of JSON schema."""
    for kind, name in ((bool, "boolean"), (str, "string"), (list, "array"), (dict, "object"), (type(None), "null")):
        if isinstance(value, kind):
            return name
    return "number"


def as_key(value: Any) -> Any:
    """Equal for equal values of JSON: 1 is 1.0, and not true."""
    if isinstance(value, list):
        return ("array", tuple(map(as_key, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, as_key(each)) for name, each in value.items()))
    return (type_of(value), value)


def required(part: Schema) -> list[str]:
    """The names that a part demands."""
    found: list[str] = part.get("required", [])
    return found


def said_of(parts: Alternative, name: str) -> tuple[Part, ...]:
    """All that is said of a property: by its name, or because a part does not know it."""
    said: list[Part] = []
    for part in parts:
        if name in part.get("properties", {}):
            said.append(part["properties"][name])
        elif "additionalProperties" in part and not matches(part, name):
            said.append(part["additionalProperties"])
    return tuple(said)


def matches(part: Schema, name: str) -> bool:
    """Does a pattern of this part look at a name?"""
    return any(fits(pattern, name) for pattern in part.get("patternProperties", {}))


def fits(pattern: str, name: str) -> bool:
    """Is a pattern found in a name? One that cannot be read here is not."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False
