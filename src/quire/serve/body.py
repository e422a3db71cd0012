"""A request's body: bytes to a typed shape, or one sentence that names the field that is wrong and says what it takes.

A shape is a msgspec.Struct. What a field may hold is said there alone: the JSON schema for /openapi.json is made of it.
If a name comes twice in an object, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from quire.types.errors import InvalidRequest

Shape = TypeVar("Shape", bound=msgspec.Struct)

MAX_SHOWN = 80  # characters of what a client sent, in a sentence about it
MAX_DEPTH = 64  # of what has no shape of its own: schemas, variables of a template

_NOUNS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_ERROR = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]*)`(?:, got `(?P<got>[^`]*)`|(?P<rule> .*))?", re.DOTALL)
_NAMED = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?:\d+|\.\.\.)\]")


class Refusal(NamedTuple):
    """Why a field that others honour is not honoured here."""

    why: str
    harmless: tuple[object, ...] = ()  # values that ask for nothing; null is always one


def read(body: bytes, shape: type[Shape], refused: Mapping[str, Refusal] | None = None) -> Shape:
    """The body as this shape. A name that neither the shape nor `refused` has is an error; `refused` comes first."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        _check_names(given, shape, refused or {})
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise _invalid(error, shape) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("The body is not valid UTF-8.") from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error


def shaped(value: object, shape: type[Shape], field: str) -> Shape:
    """A value out of a body as this shape, whose errors are told with the path of the field that it came from."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise _invalid(error, shape, field) from error


def check_depth(value: object, field: str) -> None:
    """Refuse what is nested so deeply that it would exhaust the stack of one who walks through it later."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise InvalidRequest(f"{field} is nested too deeply: at most {MAX_DEPTH} levels.", field=field)


def shown(value: object) -> str:
    """A value as a sentence may quote it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def schema_of(shape: type[msgspec.Struct], refused: Mapping[str, Refusal] | None = None) -> dict[str, Any]:
    """The JSON schema of a body, in one piece: it holds no references."""
    schema = dict(_schema(shape))
    only = {name: {"enum": [None, *refusal.harmless]} for name, refusal in (refused or {}).items()}
    return schema | {"properties": {**schema["properties"], **only}, "additionalProperties": False}


class Schemas(Mapping[str, object]):
    """Of each path the schema of its body, made when it is asked for: most servers are never asked."""

    def __init__(self, bodies: Mapping[str, tuple[type[msgspec.Struct], Mapping[str, Refusal]]]) -> None:
        self._bodies = bodies

    def __getitem__(self, path: str) -> object:
        return schema_of(*self._bodies[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._bodies)

    def __len__(self) -> int:
        return len(self._bodies)


def _check_names(given: Mapping[str, msgspec.Raw], shape: type[msgspec.Struct], refused: Mapping[str, Refusal]) -> None:
    known = _names(shape)
    for name, raw in given.items():
        if name in refused:
            value = msgspec.json.decode(raw)
            if value is not None and value not in refused[name].harmless:
                raise InvalidRequest(f"{name} is not supported: {refused[name].why}", field=name)
        elif name not in known:
            raise _unknown(name)


def _unknown(field: str) -> InvalidRequest:
    field = field[:MAX_SHOWN]
    return InvalidRequest(f"Unrecognized request argument supplied: {field}", field=field)


def _invalid(error: msgspec.ValidationError, shape: type[msgspec.Struct], start: str = "") -> InvalidRequest:
    """msgspec's words with its paths ("Expected `int | null`, got `str` - at `$.n`") as a sentence for a client."""
    found = _ERROR.fullmatch(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    field = (start + path).lstrip(".")
    subject = field or "The body"
    if found and found["key"]:
        subject = f"A name in {subject}"
    if named := _NAMED.fullmatch(what):
        full = f"{field}.{named['name']}".lstrip(".")
        if named["how"] == "contains unknown":
            return _unknown(full)
        return InvalidRequest(f"Missing required parameter: {full}", field=full)
    if expected := _EXPECTED.fullmatch(what):
        wanted = " or ".join(_NOUNS.get(name, name) for name in expected["wanted"].split(" | "))
        rest = f", not {_NOUNS.get(got, got)}" if (got := expected["got"]) else expected["rule"] or ""
        return InvalidRequest(f"{subject} must be {wanted}{rest}.", field=field or None)
    if given := _VALUE.fullmatch(what):
        choices = ", ".join(repr(choice) for choice in _choices(_schema(shape), path) if choice is not None)
        public = f"{subject} is {given['value'][:MAX_SHOWN]}; it must be one of {choices}."
        return InvalidRequest(public, field=field or None)
    return InvalidRequest(f"{subject}: {what[:1].lower()}{what[1:]}.", field=field or None)


def _choices(schema: Mapping[str, Any], path: str) -> list[object]:
    """The values that the schema lists for the field at this path."""
    nodes = [schema]
    for step in _STEP.finditer(path):
        kinds = [kind for node in nodes for kind in (node, *node.get("anyOf", ()))]
        if name := step["name"]:
            nodes = [kind["properties"][name] for kind in kinds if name in kind.get("properties", {})]
        else:
            nodes = [kind["items"] for kind in kinds if "items" in kind]
    kinds = [kind for node in nodes for kind in (node, *node.get("anyOf", ()))]
    return [value for kind in kinds for value in kind.get("enum", ())]


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


@cache
def _names(shape: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(shape.__struct_encode_fields__)


@cache
def _schema(shape: type[msgspec.Struct]) -> dict[str, Any]:
    whole = msgspec.json.schema(shape)
    inlined: dict[str, Any] = _inlined({"$ref": whole["$ref"]}, whole["$defs"])
    return inlined


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    """No shape holds itself, so that this ends."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].removeprefix("#/$defs/")], definitions)
        return {key: _inlined(value, definitions) for key, value in node.items()}
    return [_inlined(value, definitions) for value in node] if isinstance(node, list) else node
