"""Merge what the parts of an alternative say of objects and arrays: every property and every item once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from quire.grammar.alternatives import Alternatives
from quire.grammar.formats import COMPILED, PATTERNS, PROPERTY_NAME_PATTERNS
from quire.grammar.keywords import (
    ANNOTATIONS,
    IN_PLACE,
    Alternative,
    Subschema,
    allowed_types,
    as_key,
    json_type,
    pattern_matches,
    property_schemas,
    required_names,
)
from quire.grammar.schema import Schema, invalid_schema

OF_ARRAYS = frozenset(("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"))
MAX_SETS = 1000  # arrays that are listed one by one, for unique items

# Items that are not listed are unique if each is of another kind: words by their first letter, dates and ids by their
# last character, integers by their size. An array has at most one of each kind, in any order.
_WORDS = tuple({"pattern": pattern} for pattern in ("^[a-eA-E]", "^[f-lF-L]", "^[m-rM-R]", "^[^a-rA-R]"))
_DIGITS = tuple({"pattern": pattern} for pattern in ("[01]$", "[2-4]$", "[5-7]$", "[89]$"))
_LETTERS = tuple({"pattern": pattern} for pattern in ("[0-3]$", "[4-7]$", "[89ab]$", "[c-f]$"))
_SIZES: tuple[Schema, ...] = (
    {"maximum": 9},
    {"minimum": 10, "maximum": 99},
    {"minimum": 100, "maximum": 999},
    {"minimum": 1000},
)
_BY_END = {
    "date": _DIGITS,
    "ipv4": _DIGITS,
    "uuid": _LETTERS,
    **{f"uuid{version}": _LETTERS for version in range(1, 9)},
}
_OF_WORDS = frozenset(("type", "minLength", "maxLength", "format"))
_OF_WHOLE = frozenset(("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "format"))

WriteSubschema = Callable[[tuple[Subschema, ...]], Subschema]


class Containers:
    """Merges objects and arrays. `write` merges the schemas of their properties and items."""

    def __init__(self, alternatives: Alternatives, write: WriteSubschema) -> None:
        self._alternatives = alternatives
        self._write = write
        self._lenient = alternatives.options.is_lenient
        self.impossible_object: tuple[str, str] | None = None  # where no object is valid, and why

    # ── objects ──

    def object(self, parts: Alternative) -> Schema | None:
        """The keywords of all parts for objects. None: no object is valid."""
        declared = dict.fromkeys(name for part in parts for name in part.get("properties", {}))
        properties = {name: self._write(property_schemas(parts, name)) for name in declared}
        patterns = {
            pattern: self._write(_pattern_schemas(parts, pattern))
            for pattern in dict.fromkeys(pattern for part in parts for pattern in part.get("patternProperties", {}))
        }
        others = tuple(part["additionalProperties"] for part in parts if "additionalProperties" in part)
        rest: Subschema = self._write(others)
        if self._alternatives.closes(parts):
            rest = False
            properties = {name: properties.get(name, True) for name in (*properties, *self._alternatives.names(parts))}
        if any("propertyNames" in part for part in parts):
            properties, patterns, rest = self._restrict_names(parts, properties, patterns, rest)
        needed = list(dict.fromkeys(name for part in parts for name in required_names(part)))
        for name in needed:
            if _is_impossible(name, properties, patterns, rest):
                self.impossible_object = (
                    self._path(parts, "required"),
                    f"{name!r} is required, but no value is valid for it",
                )
                return None
        written: Schema = {
            "properties": properties,
            "patternProperties": patterns,
            "additionalProperties": rest,
            "required": needed,
        }
        defaults: Schema = {"properties": {}, "patternProperties": {}, "additionalProperties": True, "required": []}
        written = {key: value for key, value in written.items() if value != defaults[key]}
        written |= _tightest(parts, "minProperties", max) | _tightest(parts, "maxProperties", min)
        self._check_count(parts, written, len(needed))
        return written

    def _check_count(self, parts: Alternative, written: Schema, num_required: int) -> None:
        """Refuse `minProperties` that needs two names that are not listed: the model could write one name twice."""
        least = written.get("minProperties")
        is_open = written.get("additionalProperties", True) is not False or "patternProperties" in written
        if is_open and isinstance(least, int) and least > 1 + num_required and not self._lenient:
            why = "minProperties counts names that the schema does not list; list them"
            raise invalid_schema(self._path(parts, "minProperties"), why)

    def _restrict_names(
        self, parts: Alternative, properties: dict[str, Subschema], patterns: dict[str, Subschema], rest: Subschema
    ) -> tuple[dict[str, Subschema], dict[str, Subschema], Subschema]:
        """Apply `propertyNames`: an enum becomes a list of optional properties, anything else a pattern."""
        schemas = tuple(part["propertyNames"] for part in parts if "propertyNames" in part)
        names = self._alternatives.expand(schemas)
        listed = listed_values(names)
        if listed is not None:
            known = [name for name in listed if isinstance(name, str)]
            others = {name: _by_pattern(patterns, name, rest) for name in known if name not in properties}
            kept = {name: value if name in known else False for name, value in properties.items()}
            return kept | others, {}, False
        pattern = _name_pattern(names[0]) if len(names) == 1 else None
        if pattern == "":
            return properties, patterns, rest
        if pattern is None or patterns:
            if self._lenient:
                return properties, patterns, rest
            why = "propertyNames must be an enum, or one of pattern, format and lengths without patternProperties"
            raise invalid_schema(self._path(parts, "propertyNames"), why)
        kept = {name: value if pattern_matches(pattern, name) else False for name, value in properties.items()}
        return kept, {pattern: rest} if rest is not False else {}, False

    # ── arrays ──

    def arrays(self, parts: Alternative, types: set[str]) -> list[Schema]:
        """The keywords of parts for arrays: merged if all items have one schema, else part by part."""
        about = [part for part in parts if OF_ARRAYS & set(part)]
        are_alike = all(
            isinstance(part.get("items", True), dict | bool) and not {"prefixItems", "additionalItems"} & set(part)
            for part in about
        )
        if are_alike and about:
            return [self._list(tuple(about), types)]
        return [self._positions(part) for part in about]

    def _list(self, parts: Alternative, types: set[str]) -> Schema:
        items = tuple(part["items"] for part in parts if "items" in part)
        written: Schema = {"items": self._write(items)} if items else {}
        written |= _tightest(parts, "minItems", max) | _tightest(parts, "maxItems", min)
        if not any(part.get("uniqueItems") for part in parts):
            return written
        if not items or types != {"array"} or self._lenient:
            return self._at_most_one(written, parts)
        alternatives = self._alternatives.expand(items)
        values = listed_values(alternatives)
        if values is not None:
            return self._sets(values, written, parts)
        kinds = [self._write((*items, kind)) for kind in _item_kinds(alternatives)]
        return self._one_of_each(kinds, written) or self._at_most_one(written, parts)

    def _positions(self, part: Schema) -> Schema:
        """Arrays whose items have schemas by position."""
        written: Schema = {}
        for key in OF_ARRAYS & set(part) - {"uniqueItems"}:
            value = part[key]
            if isinstance(value, list):
                written[key] = [self._write((each,)) for each in value]
            else:
                written[key] = self._write((value,)) if isinstance(value, dict) else value
        return self._at_most_one(written, (part,)) if part.get("uniqueItems") else written

    def _sets(self, values: list[Any], written: Schema, parts: Alternative) -> Schema:
        """An enum of all arrays of different values: in any order, or in the listed order if those are too many."""
        least, most = written.get("minItems", 0), min(written.get("maxItems", len(values)), len(values))
        if not isinstance(least, int) or not isinstance(most, int):
            return written | {"uniqueItems": True}
        sizes = range(least, most + 1)
        arrays: list[list[Any]] = []
        in_any_order = sum(perm(len(values), size) for size in sizes) <= MAX_SETS
        for size in sizes:
            count = (perm if in_any_order else comb)(len(values), size)
            if len(arrays) + count > MAX_SETS:
                break
            arrays += map(list, (permutations if in_any_order else combinations)(values, size))
        if not arrays and values:
            return self._at_most_one(written, parts)
        return {"enum": arrays}

    def _one_of_each(self, kinds: list[Subschema], written: Schema) -> Schema | None:
        """Arrays with items of different kinds. None: there are too few kinds for `minItems`."""
        least, most = written.get("minItems", 0), min(written.get("maxItems", len(kinds)), len(kinds))
        if not kinds or not isinstance(least, int) or not isinstance(most, int) or least > most:
            return None
        return {
            "anyOf": [
                {"type": "array", "items": list(order), "additionalItems": False, "minItems": size, "maxItems": size}
                for size in range(least, most + 1)
                for order in permutations(kinds, size)
            ]
        }

    def _at_most_one(self, written: Schema, parts: Alternative) -> Schema:
        """Allow at most one item, because no grammar can compare two items."""
        if self._lenient:
            return written
        least, most = written.get("minItems", 0), written.get("maxItems", 1)
        if isinstance(least, int) and least > 1:
            why = f"uniqueItems with minItems {least} needs items that an enum lists; leave one of the two out"
            raise invalid_schema(self._path(parts, "uniqueItems"), why)
        return written | {"maxItems": min(most, 1) if isinstance(most, int) else most}

    def _path(self, parts: Iterable[Schema], key: str) -> str:
        return next((self._alternatives.references.path(part) for part in parts if key in part), "#")


def listed_values(alternatives: list[Alternative]) -> list[Any] | None:
    """The values that alternatives allow, if they only list values. None: they are not listed."""
    allowed: dict[Any, Any] = {}
    for parts in alternatives:
        if any(set(part) - ANNOTATIONS - {"type", "enum", "const", *IN_PLACE} for part in parts):
            return None
        lists = [
            [part["const"]] if "const" in part else part["enum"] for part in parts if {"const", "enum"} & set(part)
        ]
        types = allowed_types(parts)
        if not lists and not types <= {"boolean", "null"}:
            return None
        keys = [{as_key(value) for value in values} for values in lists]
        whole = any(part.get("type") == "integer" for part in parts)
        candidates: list[Any] = lists[0] if lists else [None, False, True]
        for value in candidates:
            is_allowed = json_type(value) in types and not (whole and value != int(value))
            if is_allowed and all(as_key(value) in each for each in keys):
                allowed[as_key(value)] = value
    return list(allowed.values())


def _item_kinds(alternatives: list[Alternative]) -> tuple[Schema, ...]:
    """Schemas that exclude each other and can be combined with this one; empty: none are known."""
    if len(alternatives) != 1:
        return ()
    (parts,) = alternatives
    keys = {key for part in parts for key in part} - ANNOTATIONS - set(IN_PLACE)
    types, formats = allowed_types(parts), [part["format"] for part in parts if "format" in part]
    if types == {"string"} and keys <= _OF_WORDS:
        is_plain = all(name not in COMPILED and name not in PATTERNS for name in formats)
        return _WORDS if is_plain else _BY_END.get(formats[0], ()) if len(formats) == 1 else ()
    if not any(part.get("type") == "integer" for part in parts) or not keys <= _OF_WHOLE:
        return ()
    low, high = (
        [value for part in parts for key in keys if isinstance(value := part.get(key), int | float)]
        for keys in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    fit = [kind for kind in _SIZES if all(kind.get("maximum", value) >= value for value in low)]
    return tuple(kind for kind in fit if all(kind.get("minimum", value) <= value for value in high))


def _pattern_schemas(parts: Alternative, pattern: str) -> tuple[Subschema, ...]:
    schemas: list[Subschema] = []
    for part in parts:
        if pattern in part.get("patternProperties", {}):
            schemas.append(part["patternProperties"][pattern])
        elif "additionalProperties" in part:
            schemas.append(part["additionalProperties"])
    return tuple(schemas)


def _is_impossible(
    name: str, properties: dict[str, Subschema], patterns: dict[str, Subschema], rest: Subschema
) -> bool:
    return properties.get(name, _by_pattern(patterns, name, rest)) is False


def _by_pattern(patterns: dict[str, Subschema], name: str, rest: Subschema) -> Subschema:
    schemas = [value for pattern, value in patterns.items() if pattern_matches(pattern, name)]
    return {"allOf": schemas} if len(schemas) > 1 else (schemas or [rest])[0]


def _name_pattern(parts: Alternative) -> str | None:
    """The pattern that a name must match; empty: any name. None: it takes more than one pattern."""
    patterns: list[str] = []
    for part in parts:
        if set(part) - ANNOTATIONS - {"type", "pattern", "format", "minLength", "maxLength"}:
            return None
        if "string" not in allowed_types((part,)):
            return None
        least, most = part.get("minLength", 0), part.get("maxLength")
        if "minLength" in part or "maxLength" in part:
            patterns.append(f"^(?s:.{{{least},{'' if most is None else most}}})$")
        patterns += [part["pattern"]] if "pattern" in part else []
        patterns += [PROPERTY_NAME_PATTERNS[part["format"]]] if part.get("format") in PROPERTY_NAME_PATTERNS else []
    return None if len(patterns) > 1 else (patterns or [""])[0]


def _tightest(parts: Alternative, key: str, of: Callable[[list[Any]], Any]) -> Schema:
    bounds = [part[key] for part in parts if key in part]
    if not bounds:
        return {}
    return {key: of(bounds) if all(isinstance(each, int | float) for each in bounds) else bounds[0]}
