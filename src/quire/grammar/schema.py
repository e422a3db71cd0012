"""Parse JSON schemas, and find the part of a schema that a compiler refuses.

Law: an answer that matches the compiled schema is valid for the client's schema. What the compiler would enforce only
in part is refused, or rewritten so that it is enforced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from quire.types.errors import InvalidRequest

Schema = dict[str, Any]
CompileError = Callable[[Schema], str | None]  # the compiler's error for a schema; None: it compiles

ONE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SHARED = ("$defs", "definitions", "$schema")  # keywords of the root that its parts may refer to

SEARCH_SECONDS = 1.0  # for the position of an error


def parse_schema(text: str) -> Schema:
    """Parse a schema. Raises InvalidRequest with line and column."""
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid_schema(f"line {error.lineno}, column {error.colno}", error.msg) from error
    if schema is False:
        raise invalid_schema("#", "no value is valid")
    if not isinstance(schema, dict | bool):
        raise invalid_schema("#", f"a schema must be an object, not {json.dumps(schema)[:40]}")
    return schema if isinstance(schema, dict) else {}


def locate_error(schema: Schema, compile_error: CompileError, message: str) -> str:
    """The path of the smallest subschema that gives the same error as the whole schema.

    Each is tried alone, then with the definitions that it refers to: a reference may be wrong though both ends are not.
    """
    deadline = time.monotonic() + SEARCH_SECONDS
    shared = {key: schema[key] for key in SHARED if key in schema}
    for added in ({}, shared) if shared else ({},):
        for path, part in subschemas(schema):
            if time.monotonic() > deadline:
                return "#"
            if path != "#" and compile_error({**added, **part}) == message:
                return path
    return "#"


def subschemas(schema: Any, path: str = "#") -> Iterator[tuple[str, Schema]]:
    """Every schema within a schema, with its path: the innermost first, the schema itself last."""
    if not isinstance(schema, dict):
        return
    for key in ONE:
        if isinstance(schema.get(key), dict):
            yield from subschemas(schema[key], f"{path}/{key}")
    for key in LISTS:
        if isinstance(schema.get(key), list):
            for index, part in enumerate(schema[key]):
                yield from subschemas(part, f"{path}/{key}/{index}")
    for key in NAMED:
        if isinstance(schema.get(key), dict):
            for name, part in schema[key].items():
                yield from subschemas(part, f"{path}/{key}/{name.replace('~', '~0').replace('/', '~1')}")
    yield path, schema


def invalid_schema(where: str, why: str) -> InvalidRequest:
    """The error for a schema, with the position of the problem."""
    return InvalidRequest(f"The JSON schema cannot be compiled: at {where}: {why}.", field="constraint")
