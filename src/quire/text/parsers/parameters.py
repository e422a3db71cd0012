"""What a tool's schema says of its parameters, for families that do not write arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from quire.text.parsers.python_literal import literal_as_json
from quire.types.chat import Tool

_NO_LIMITS = frozenset({"type", "description", "title", "default", "examples", "enum", "const"})
_KNOWN = frozenset({"type", "properties", "required", "additionalProperties", "description", "title", "$schema"})
_DEFINITIONS = ("$defs", "definitions")
_LITERALS = ("[", "{", "T", "F", "N")  # of Python, by their first character: some templates write those
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_MAX_DEPTH = 8


class Parameter(NamedTuple):
    """One parameter. `kinds` are the JSON types of its values; empty if the schema does not say."""

    name: str
    schema: Mapping[str, Any]
    kinds: frozenset[str]
    is_required: bool

    @property
    def is_free_text(self) -> bool:
        """Is every string a value, and nothing else?"""
        return self.kinds == {"string"} and set(self.schema) <= _NO_LIMITS and self.choices is None

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """The only values there are; None if the schema does not list them."""
        if "const" in self.schema:
            return (self.schema["const"],)
        return tuple(self.schema["enum"]) if isinstance(self.schema.get("enum"), list) else None


def tool_parameter(tool: Tool | None, name: str) -> Parameter:
    """The parameter of this name. If the tool has none, nothing is known about its values."""
    schema = {} if tool is None else tool.parameters
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    found = found if isinstance(found, Mapping) else {}
    required = schema.get("required")
    return Parameter(name, found, _kinds(found, schema), isinstance(required, list) and name in required)


def separate_parameters(tool: Tool) -> list[Parameter] | None:
    """The parameters of a tool whose arguments are valid if each of them is; None if its schema says more."""
    schema = tool.parameters
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not set(schema) <= {*_KNOWN, *_DEFINITIONS} or schema.get("type", "object") != "object":
        return None
    if not isinstance(schema.get("additionalProperties", False), bool):
        return None
    if not isinstance(properties, Mapping) or not set(required) <= set(properties):
        return None
    return [tool_parameter(tool, name) for name in properties]


def with_definitions(parameter: Parameter, tool: Tool) -> dict[str, Any]:
    """The parameter's schema with the definitions that it may refer to."""
    return {**{key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}, **parameter.schema}


def value_as_json(text: str, kinds: frozenset[str]) -> str:
    """The JSON text of a value that was written as plain text."""
    plain = text.strip()
    if "string" in kinds and not (plain == "null" and "null" in kinds):
        return json.dumps(text, ensure_ascii=False)
    try:
        json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return literal_as_json(plain) if plain[:1] in _LITERALS else json.dumps(text, ensure_ascii=False)
    return plain


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    if isinstance(schema.get("$ref"), str):
        return _kinds(_referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(_TYPES.get(type(value), "null") for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            parts = [_kinds(part, root, depth + 1) for part in schema[key]]
            return frozenset().union(*parts) if all(parts) else frozenset()
    return frozenset()


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root if reference.startswith("#/") else None
    for step in reference.split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
