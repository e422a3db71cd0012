"""Reads the grammar of an answer from the fields in which a client may give it: at most one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.openai.fields import OpenAIFields, ResponseFormat, StructuredOutputs
from quire.serve.dialects.strict_json import json_text, parse_json
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind

_ANY_OBJECT = Constraint(ConstraintKind.JSON)


def read_constraint(
    given: OpenAIFields, limits: RequestLimits, form: ResponseFormat | None, place: str, strict: bool = False
) -> Constraint | None:
    """The constraint, if one is given. `form` is OpenAI's own field for it; `place` is its path, `strict` its flag."""
    found = {field: constraint for field, constraint in _all(given, form, place, strict) if constraint is not None}
    if len(found) > 1:
        first, second, *_ = found
        raise InvalidRequest(f"{first} and {second} both prescribe a form: give one of them.", field=second)
    for field, constraint in found.items():
        size = len(constraint.text) + sum(map(len, constraint.choices))
        if size > limits.max_schema_bytes:
            public = f"{field} has {size} characters; at most {limits.max_schema_bytes} are allowed."
            raise InvalidRequest(public, field=field)
        return constraint
    return None


def schema_text(schema: str | dict[str, Any], field: str) -> str:
    """A schema as JSON text, in one form for equal schemas. A text is parsed first."""
    if isinstance(schema, str):
        schema = _parsed(schema, field)
    return json_text(schema, field)


def _all(
    given: OpenAIFields, form: ResponseFormat | None, place: str, strict: bool
) -> Iterator[tuple[str, Constraint | None]]:
    if form is not None:
        yield place, _of_format(form, place, strict)
    if given.structured_outputs is not None:
        yield "structured_outputs", _of_structured(given.structured_outputs)
    yield "guided_json", _schema(given.guided_json, "guided_json")
    yield "json_schema", _schema(given.json_schema, "json_schema")
    yield "guided_regex", _regex(given.guided_regex, "guided_regex")
    yield "regex", _regex(given.regex, "regex")
    yield "guided_choice", _choice(given.guided_choice, "guided_choice")
    yield "guided_grammar", _grammar(given.guided_grammar, "guided_grammar")
    yield "ebnf", _ebnf(given.ebnf, "ebnf")
    yield "grammar", _grammar(given.grammar, "grammar")


def _of_format(form: ResponseFormat, place: str, strict: bool) -> Constraint | None:
    given = {name for name in ("json_schema", "schema", "regex", "ebnf") if getattr(form, name) is not None}
    wrapped = "json_schema" if form.json_schema is not None else "schema"
    takes = {"json_object": {"schema"}, "json": {"schema"}, "json_schema": {wrapped}}
    if strange := sorted(given - takes.get(form.type, {form.type})):
        field = f"{place}.{strange[0]}"
        raise InvalidRequest(f"{field} does not go with the type {form.type!r}.", field=field)
    if form.type in ("text", "json_object") and form.schema is None:
        return _ANY_OBJECT if form.type == "json_object" else None
    if not given:
        field = f"{place}.{'schema' if form.type == 'json' else form.type}"
        raise InvalidRequest(f"Missing required parameter: {field}", field=field)
    if form.json_schema is not None:
        return _schema(form.json_schema.schema, f"{place}.json_schema.schema", bool(form.json_schema.strict))
    if form.schema is not None:
        return _schema(form.schema, f"{place}.schema", strict)
    return _regex(form.regex, f"{place}.regex") or _ebnf(form.ebnf, f"{place}.ebnf")


def _of_structured(given: StructuredOutputs) -> Constraint:
    place = "structured_outputs"
    found = [
        _schema(given.json, f"{place}.json"),
        _regex(given.regex, f"{place}.regex"),
        _choice(given.choice, f"{place}.choice"),
        _grammar(given.grammar, f"{place}.grammar"),
        _ANY_OBJECT if given.json_object else None,
    ]
    constraints = [constraint for constraint in found if constraint is not None]
    if len(constraints) != 1:
        raise InvalidRequest(f"{place} takes exactly one of json, regex, choice, grammar, json_object.", field=place)
    return constraints[0]


def _schema(given: str | dict[str, Any] | None, field: str, strict: bool = False) -> Constraint | None:
    return None if given is None else Constraint(ConstraintKind.SCHEMA, schema_text(given, field), strict=strict)


def _regex(given: str | None, field: str) -> Constraint | None:
    return None if given is None else Constraint(ConstraintKind.REGEX, _filled(given, field))


def _ebnf(given: str | None, field: str) -> Constraint | None:
    return None if given is None else Constraint(ConstraintKind.EBNF, _filled(given, field))


def _grammar(given: str | None, field: str) -> Constraint | None:
    """GBNF has `::=` in every rule, and Lark has it in none."""
    if given is None:
        return None
    return Constraint(ConstraintKind.EBNF if "::=" in given else ConstraintKind.LARK, _filled(given, field))


def _choice(given: list[str] | None, field: str) -> Constraint | None:
    if given is None:
        return None
    if not given or not all(given):
        raise InvalidRequest(f"{field} must have at least one string, and none that is empty.", field=field)
    return Constraint(ConstraintKind.CHOICE, choices=tuple(given))


def _filled(text: str, field: str) -> str:
    if not text.strip():
        raise InvalidRequest(f"{field} is empty.", field=field)
    return text


def _parsed(text: str, field: str) -> dict[str, Any]:
    schema = parse_json(text.encode(), field)
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{field} is not the text of a JSON schema: it must be an object.", field=field)
    return schema
