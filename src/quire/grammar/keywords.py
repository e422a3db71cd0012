"""Keywords of JSON Schema by topic, and what the parts of an alternative together allow: types, values, names."""

from __future__ import annotations

import re
from typing import Any

from quire.grammar.schema import Schema

Subschema = Schema | bool
Alternative = tuple[Schema, ...]  # parts that all apply

# Applicators whose schemas apply to the same value.
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
# No grammar can enforce these.
UNSUPPORTED = frozenset(
    (
        *(*CONDITIONAL, "not", "contains", "minContains", "maxContains", "unevaluatedItems"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    )
)
TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))


def allowed_types(parts: Alternative) -> set[str]:
    """The types that all parts allow."""
    allowed = set(TYPES)
    for part in parts:
        types = part.get("type", list(TYPES))
        allowed &= {"number" if name == "integer" else name for name in ([types] if isinstance(types, str) else types)}
    return allowed


def value_lists(parts: Alternative) -> list[list[Any]]:
    """The `enum` or `const` of each part that has one."""
    return [[part["const"]] if "const" in part else part["enum"] for part in parts if "const" in part or "enum" in part]


def allowed_values(parts: Alternative) -> list[Any] | None:
    """The values that all `enum` and `const` allow. None: there are none."""
    lists = value_lists(parts)
    if not lists:
        return None
    keys = [{as_key(value) for value in values} for values in lists]
    return [value for value in lists[0] if all(as_key(value) in each for each in keys)]


def json_type(value: Any) -> str:
    """The type of a value, as JSON Schema names it."""
    for kind, name in ((bool, "boolean"), (str, "string"), (list, "array"), (dict, "object"), (type(None), "null")):
        if isinstance(value, kind):
            return name
    return "number"


def as_key(value: Any) -> Any:
    """A key that is equal for equal JSON values: 1 equals 1.0, but not true."""
    if isinstance(value, list):
        return ("array", tuple(map(as_key, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, as_key(each)) for name, each in value.items()))
    return (json_type(value), value)


def required_names(part: Schema) -> list[str]:
    """The names that a part requires."""
    names: list[str] = part.get("required", [])
    return names


def property_schemas(parts: Alternative, name: str) -> tuple[Subschema, ...]:
    """All schemas that apply to a property: by its name, or as an additional property."""
    schemas: list[Subschema] = []
    for part in parts:
        if name in part.get("properties", {}):
            schemas.append(part["properties"][name])
        elif "additionalProperties" in part and not has_pattern_for(part, name):
            schemas.append(part["additionalProperties"])
    return tuple(schemas)


def has_pattern_for(part: Schema, name: str) -> bool:
    """Does a pattern of this part match a name?"""
    return any(pattern_matches(pattern, name) for pattern in part.get("patternProperties", {}))


def pattern_matches(pattern: str, name: str) -> bool:
    """Does a pattern match in a name? False for a pattern that Python cannot compile."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False
