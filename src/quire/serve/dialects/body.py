"""Reads a request's body into a typed struct; an error names the wrong field and what it takes, in one sentence.

The struct is the only declaration of a body: the JSON schema for /openapi.json is made from it. Every dialect reads its
bodies with this module, and chooses only how the path of a field is spelled.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from quire.serve.dialects.strict_json import MAX_SHOWN, parse_json
from quire.types.errors import InvalidRequest

Shape = TypeVar("Shape", bound=msgspec.Struct)
MAX_DROPPED = 1000  # unknown fields below the first level that are dropped from one body
MAX_LOGGED = 100  # names

logger = logging.getLogger(__name__)
_ignores_unknown: ContextVar[bool] = ContextVar("ignores_unknown", default=False)

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
_PLACE = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
_PLAIN_NAME = re.compile(r"[A-Za-z_]{1,40}")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?:\d+|\.\.\.)\]")


class Refusal(NamedTuple):
    """Why a field that other servers support is refused here."""

    why: str
    harmless: tuple[object, ...] = ()  # accepted values, which change nothing; null always is one
    is_ignorable: bool = False  # the answer is the same without it


class Spelling(NamedTuple):
    """How errors of a dialect name fields."""

    missing: str
    unknown: str
    dotted: bool  # messages.0.content, not messages[0].content

    def place(self, path: str) -> str:
        """Spell one of msgspec's paths."""
        if self.dotted:
            path = re.sub(r"\[(\d+)\]", r".\1", path.replace("[...]", ".*"))
        return path.strip(".")


BRACKETS = Spelling("Missing required parameter: {}", "Unrecognized request argument supplied: {}", dotted=False)
DOTS = Spelling("{}: Field required", "{}: Extra inputs are not permitted", dotted=True)


def read_body(
    body: bytes,
    shape: type[Shape],
    refused: Mapping[str, Refusal] | None = None,
    spelling: Spelling = BRACKETS,
) -> Shape:
    """Read the body as this struct. With `refused`, a name that neither of the two has is an error."""
    given = parse_json(body)
    if refused is not None and isinstance(given, dict):
        _check_names(given, shape, refused, spelling)
    return convert_value(given, shape, "", spelling)


def convert_value(value: object, shape: type[Shape], field: str, spelling: Spelling = BRACKETS) -> Shape:
    """Convert a value of a body to this struct. `field` is its path, for errors."""
    num_dropped = 0
    while True:
        try:
            return msgspec.convert(value, shape, str_keys=True)
        except msgspec.ValidationError as error:
            if not _ignores_unknown.get() or num_dropped == MAX_DROPPED or not _drop_unknown(value, error):
                raise _invalid(error, shape, field, spelling) from None
            num_dropped += 1
        except RecursionError:
            raise InvalidRequest("The body is nested too deeply.", field=field or None) from None


@contextmanager
def ignore_unknown_fields(ignores: bool) -> Iterator[None]:
    """Drop undeclared fields, in this thread until the end of the block, instead of refusing them."""
    before = _ignores_unknown.set(ignores)
    try:
        yield
    finally:
        _ignores_unknown.reset(before)


def _drop_unknown(value: Any, error: msgspec.ValidationError) -> bool:
    """Remove the unknown field that this error is about. False: it is about something else."""
    found = _ERROR.fullmatch(str(error))
    named = _NAMED.fullmatch(found["what"]) if found else None
    if found is None or named is None or named["how"] != "contains unknown" or "[...]" in (found["path"] or ""):
        return False
    for step in _PLACE.finditer(found["path"] or ""):
        value = value[int(step["index"])] if step["index"] else value[step["name"]]
    del value[named["name"]]
    _log_ignored(named["name"])
    return True


@lru_cache(MAX_LOGGED)
def _log_ignored(name: str) -> None:
    """Log each name once. A name that does not look like a field may be part of a prompt, and is not logged."""
    if _log_ignored.cache_info().currsize < MAX_LOGGED:
        shown = name if _PLAIN_NAME.fullmatch(name) else "…"
        logger.warning("ignored the unknown request field %s (setting unknown_fields)", shown)


def schema_of(shape: type[msgspec.Struct], refused: Mapping[str, Refusal] | None = None) -> dict[str, Any]:
    """The JSON schema of a body, without references."""
    schema = dict(_schema(shape))
    if refused is None:
        return schema
    only = {name: {"enum": [None, *refusal.harmless]} for name, refusal in refused.items()}
    return schema | {"properties": {**schema["properties"], **only}, "additionalProperties": False}


class Schemas(Mapping[str, object]):
    """The schema of each path's body, made at first use: most servers never need them."""

    def __init__(self, bodies: Mapping[str, tuple[type[msgspec.Struct], Mapping[str, Refusal] | None]]) -> None:
        self._bodies = bodies

    def __getitem__(self, path: str) -> object:
        return schema_of(*self._bodies[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._bodies)

    def __len__(self) -> int:
        return len(self._bodies)


def _check_names(
    given: dict[str, object], shape: type[msgspec.Struct], refused: Mapping[str, Refusal], spelling: Spelling
) -> None:
    known = _names(shape)
    for name, value in tuple(given.items()):
        if name in refused:
            if value is None or _is_among(value, refused[name].harmless):
                continue
            if _ignores_unknown.get() and refused[name].is_ignorable:
                _log_ignored(name)
            else:
                raise InvalidRequest(f"{name} is not supported: {refused[name].why}", field=name)
        elif name not in known and _ignores_unknown.get():
            del given[name]
            _log_ignored(name)
        elif name not in known:
            field = name[:MAX_SHOWN]
            raise InvalidRequest(spelling.unknown.format(field), field=field)


def _is_among(value: object, harmless: tuple[object, ...]) -> bool:
    """Compare with booleans and numbers apart: True is not 1."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in harmless)


def _invalid(
    error: msgspec.ValidationError, shape: type[msgspec.Struct], start: str, spelling: Spelling
) -> InvalidRequest:
    """Rewrite msgspec's message ("Expected `int | null`, got `str` - at `$.n`") as a sentence for a client."""
    found = _ERROR.fullmatch(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    field = spelling.place(start + path)
    subject = field or "The body"
    if found and found["key"]:
        subject = f"A name in {subject}"
    if named := _NAMED.fullmatch(what):
        is_unknown = named["how"] == "contains unknown"
        full = f"{field}.{named['name'][:MAX_SHOWN]}".lstrip(".")
        return InvalidRequest((spelling.unknown if is_unknown else spelling.missing).format(full), field=full)
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
    return list(dict.fromkeys(value for kind in kinds for value in kind.get("enum", ())))


@cache
def _names(shape: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(shape.__struct_encode_fields__)


@cache
def _schema(shape: type[msgspec.Struct]) -> dict[str, Any]:
    whole = msgspec.json.schema(shape)
    inlined: dict[str, Any] = _inlined({"$ref": whole["$ref"]}, whole["$defs"])
    return inlined


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Replace references; it ends, as no struct contains itself. Discriminators are dropped: they are references."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].removeprefix("#/$defs/")], definitions)
        return {key: _inlined(value, definitions) for key, value in node.items() if key != "discriminator"}
    return [_inlined(value, definitions) for value in node] if isinstance(node, list) else node
