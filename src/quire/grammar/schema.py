"""JSON schemas on their way to a compiler: read, checked, made exact, and searched for what a compiler refuses.

Law: an answer that follows the compiled schema is valid by the schema as it was given. What the compiler takes too
lightly is refused here, or written so that it cannot be mistaken.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from quire.types.errors import InvalidRequest

Schema = dict[str, Any] | bool
Refusal = Callable[[Schema], str | None]  # what a compiler says against a schema; None: it takes it

ONE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SHARED = ("$defs", "definitions", "$schema")  # what a part of a schema may refer to, wherever it stands

SEARCH_SECONDS = 1.0  # for the place of an error: it is worth that, and no more

# Dates are compiled with 29 days in every February: only every fourth year has them, of whole centuries every fourth.
DAY_EXISTS = (
    r"^(\d{4}-(0[13-9]|1[0-2]|02-([01]|2[0-8]))"
    r"|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
WITH_DATE = ("date", "date-time")


def read(text: str) -> Schema:
    """The schema that a text spells. Raises InvalidRequest that names line and column."""
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise refused(f"line {error.lineno}, column {error.colno}", error.msg) from error
    if not isinstance(schema, dict | bool):
        raise refused("#", f"a schema is an object, not {json.dumps(schema)[:40]}")
    return schema


def exact(schema: Schema) -> Schema:
    """The schema as it is to be compiled. Raises InvalidRequest for what the compiler would take but not keep."""
    if isinstance(schema, bool):
        return schema
    own = copy.deepcopy(schema)
    for path, part in parts(own):
        if _counts_repeated_names(part):
            raise refused(path, "minProperties counts names that the schema does not list; list them")
        if part.get("format") in WITH_DATE:
            part["allOf"] = [*part.get("allOf", []), {"pattern": DAY_EXISTS}]
    return own


def _counts_repeated_names(part: dict[str, Any]) -> bool:
    """Must two names come that are not listed? Nothing keeps them from being one name, which a reader counts once."""
    least, listed = part.get("minProperties", 0), part.get("required", ())
    is_open = part.get("additionalProperties", True) is not False or bool(part.get("patternProperties"))
    return is_open and isinstance(least, int) and least > len(listed) + 1


def locate(schema: Schema, refusal: Refusal, said: str) -> str:
    """The smallest part of a schema that is refused in the same words, as a path from its root."""
    deadline = time.monotonic() + SEARCH_SECONDS
    if isinstance(schema, bool):
        return "#"
    shared = {key: schema[key] for key in SHARED if key in schema}
    for path, part in parts(schema):
        if time.monotonic() > deadline:
            break
        if path != "#" and refusal({**shared, **part}) == said:
            return path
    return "#"


def parts(schema: Schema, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
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
