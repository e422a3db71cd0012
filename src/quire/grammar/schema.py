"""JSON schemas on their way to a compiler: read, checked, made exact, and searched for what a compiler refuses.

Law: an answer that follows the compiled schema is valid by the schema as it was given. What the compiler takes too
lightly is refused here, or written so that it cannot be mistaken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from quire.types.errors import InvalidRequest

Schema = dict[str, Any]
Refusal = Callable[[Schema], str | None]  # what a compiler says against a schema; None: it takes it

ONE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SHARED = ("$defs", "definitions", "$schema")  # what a part of a schema may refer to, wherever it stands

SEARCH_SECONDS = 1.0  # for the place of an error: it is worth that, and no more


def read(text: str) -> Schema:
    """The schema that a text spells. Raises InvalidRequest that names line and column."""
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise refused(f"line {error.lineno}, column {error.colno}", error.msg) from error
    if schema is False:
        raise refused("#", "nothing is valid by it")
    if not isinstance(schema, dict | bool):
        raise refused("#", f"a schema is an object, not {json.dumps(schema)[:40]}")
    return schema if isinstance(schema, dict) else {}


def locate(schema: Schema, refusal: Refusal, said: str) -> str:
    """The smallest part of a schema that is refused in the same words, as a path from its root.

    First by itself; then with what it refers to, which is how a reference may be wrong though both of its ends are not.
    """
    deadline = time.monotonic() + SEARCH_SECONDS
    shared = {key: schema[key] for key in SHARED if key in schema}
    for around in ({}, shared) if shared else ({},):
        for path, part in parts(schema):
            if time.monotonic() > deadline:
                return "#"
            if path != "#" and refusal({**around, **part}) == said:
                return path
    return "#"


def parts(schema: Any, path: str = "#") -> Iterator[tuple[str, Schema]]:
    """Every schema within a schema, with its path: the innermost first, itself last."""
    if not isinstance(schema, dict):
        return
    for key in ONE:
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key], f"{path}/{key}")
    for key in LISTS:
        if isinstance(schema.get(key), list):
            for index, part in enumerate(schema[key]):
                yield from parts(part, f"{path}/{key}/{index}")
    for key in NAMED:
        if isinstance(schema.get(key), dict):
            for name, part in schema[key].items():
                yield from parts(part, f"{path}/{key}/{name.replace('~', '~0').replace('/', '~1')}")
    yield path, schema


def refused(where: str, why: str) -> InvalidRequest:
    """The error that says where."""
    return InvalidRequest(f"The JSON schema cannot be followed: at {where}: {why}.", field="constraint")
