"""Objects and arrays of parts that hold together: every name and every item once, with all that is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

from quire.grammar.alternatives import Alternatives
from quire.grammar.formats import COMPILED, NAMES, PATTERNS
from quire.grammar.keywords import (
    ANNOTATIONS,
    IN_PLACE,
    Alternative,
    Part,
    as_key,
    fits,
    required,
    said_of,
    type_of,
    types_of,
)
from quire.grammar.schema import Schema, refused

OF_ARRAYS = frozenset(("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"))
MAX_SETS = 1000  # that are listed one by one, for items that must differ

# Items that are not listed differ if each is of another kind: words by their first letter, days and ids by their last,
# whole numbers by their size. An array has up to one of each kind, in any order.
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

Written = Callable[[tuple[Part, ...]], Part]


class Containers:
    """`written` writes what is inside."""

    def __init__(self, alternatives: Alternatives, written: Written) -> None:
        self._alternatives = alternatives
        self._written = written
        self._lenient = alternatives.rules.lenient
        self.impossible: tuple[str, str] | None = None  # where there can be no object, and why

    # ── objects ──

    def object(self, parts: Alternative) -> Schema | None:
        """What all parts say of objects; None: there can be none."""
        declared = dict.fromkeys(name for part in parts for name in part.get("properties", {}))
        properties = {name: self._written(said_of(parts, name)) for name in declared}
        patterns = {
            pattern: self._written(_of_pattern(parts, pattern))
            for pattern in dict.fromkeys(pattern for part in parts for pattern in part.get("patternProperties", {}))
        }
        others = tuple(part["additionalProperties"] for part in parts if "additionalProperties" in part)
        left: Part = self._written(others)
        if self._alternatives.closes(parts):
            left = False
            properties = {name: properties.get(name, True) for name in (*properties, *self._alternatives.names(parts))}
        if any("propertyNames" in part for part in parts):
            properties, patterns, left = self._named(parts, properties, patterns, left)
        demanded = list(dict.fromkeys(name for part in parts for name in required(part)))
        for name in demanded:
            if _is_never(name, properties, patterns, left):
                self.impossible = self._path(parts, "required"), f"{name!r} is required, and nothing is valid for it"
                return None
        written: Schema = {
            "properties": properties,
            "patternProperties": patterns,
            "additionalProperties": left,
            "required": demanded,
        }
        defaults: Schema = {"properties": {}, "patternProperties": {}, "additionalProperties": True, "required": []}
        written = {key: value for key, value in written.items() if value != defaults[key]}
        written |= _narrowest(parts, "minProperties", max) | _narrowest(parts, "maxProperties", min)
        self._check_count(parts, written, len(demanded))
        return written

    def _check_count(self, parts: Alternative, written: Schema, num_demanded: int) -> None:
        """Must two names come that are not listed? Nothing keeps them from being one, which a reader counts once."""
        least = written.get("minProperties")
        is_open = written.get("additionalProperties", True) is not False or "patternProperties" in written
        if is_open and isinstance(least, int) and least > 1 + num_demanded and not self._lenient:
            why = "minProperties counts names that the schema does not list; list them"
            raise refused(self._path(parts, "minProperties"), why)

    def _named(
        self, parts: Alternative, properties: dict[str, Part], patterns: dict[str, Part], left: Part
    ) -> tuple[dict[str, Part], dict[str, Part], Part]:
        """With `propertyNames`: of listed names there is each or not; others are as a pattern says."""
        given = tuple(part["propertyNames"] for part in parts if "propertyNames" in part)
        names = self._alternatives.of(given)
        listed = listed_values(names)
        if listed is not None:
            known = [name for name in listed if isinstance(name, str)]
            others = {name: _by_pattern(patterns, name, left) for name in known if name not in properties}
            kept = {name: value if name in known else False for name, value in properties.items()}
            return kept | others, {}, False
        wanted = _pattern_of_names(names[0]) if len(names) == 1 else None
        if wanted == "":
            return properties, patterns, left
        if wanted is None or patterns:
            if self._lenient:
                return properties, patterns, left
            why = (
                "propertyNames takes an enum, or one of pattern, format and lengths, and no patternProperties beside it"
            )
            raise refused(self._path(parts, "propertyNames"), why)
        kept = {name: value if fits(wanted, name) else False for name, value in properties.items()}
        return kept, {wanted: left} if left is not False else {}, False

    # ── arrays ──

    def arrays(self, parts: Alternative, types: set[str]) -> list[Schema]:
        """What parts say of arrays: together where that is about all items alike, else one by one."""
        about = [part for part in parts if OF_ARRAYS & set(part)]
        are_alike = all(
            isinstance(part.get("items", True), dict | bool) and not {"prefixItems", "additionalItems"} & set(part)
            for part in about
        )
        if are_alike and about:
            return [self._list(tuple(about), types)]
        return [self._places(part) for part in about]

    def _list(self, parts: Alternative, types: set[str]) -> Schema:
        items = tuple(part["items"] for part in parts if "items" in part)
        written: Schema = {"items": self._written(items)} if items else {}
        written |= _narrowest(parts, "minItems", max) | _narrowest(parts, "maxItems", min)
        if not any(part.get("uniqueItems") for part in parts):
            return written
        if not items or types != {"array"} or self._lenient:
            return self._at_most_one(written, parts)
        found = self._alternatives.of(items)
        values = listed_values(found)
        if values is not None:
            return self._sets(values, written, parts)
        kinds = [self._written((*items, kind)) for kind in _kinds(found)]
        return self._one_of_each(kinds, written) or self._at_most_one(written, parts)

    def _places(self, part: Schema) -> Schema:
        """Items whose schemas differ from place to place."""
        written: Schema = {}
        for key in OF_ARRAYS & set(part) - {"uniqueItems"}:
            value = part[key]
            if isinstance(value, list):
                written[key] = [self._written((each,)) for each in value]
            else:
                written[key] = self._written((value,)) if isinstance(value, dict) else value
        return self._at_most_one(written, (part,)) if part.get("uniqueItems") else written

    def _sets(self, values: list[Any], written: Schema, parts: Alternative) -> Schema:
        """Every array of different values that is not too long: in any order, or in theirs if there are too many."""
        least, most = written.get("minItems", 0), min(written.get("maxItems", len(values)), len(values))
        if not isinstance(least, int) or not isinstance(most, int):
            return written | {"uniqueItems": True}
        sizes = range(least, most + 1)
        chosen: list[list[Any]] = []
        in_any_order = sum(perm(len(values), size) for size in sizes) <= MAX_SETS
        for size in sizes:
            count = (perm if in_any_order else comb)(len(values), size)
            if len(chosen) + count > MAX_SETS:
                break
            chosen += map(list, (permutations if in_any_order else combinations)(values, size))
        if not chosen and values:
            return self._at_most_one(written, parts)
        return {"enum": chosen}

    def _one_of_each(self, kinds: list[Part], written: Schema) -> Schema | None:
        """Arrays of items that are of different kinds; None: there are none that are long enough."""
        least, most = written.get("minItems", 0), min(written.get("maxItems", len(kinds)), len(kinds))
        if not kinds or not isinstance(least, int) or not isinstance(most, int) or least > most:
            return None
        return {
            "anyOf": [
                {"type": "array", "items": list(chosen), "additionalItems": False, "minItems": size, "maxItems": size}
                for size in range(least, most + 1)
                for chosen in permutations(kinds, size)
            ]
        }

    def _at_most_one(self, written: Schema, parts: Alternative) -> Schema:
        """No grammar can tell whether two items are equal. One is always different from all others."""
        if self._lenient:
            return written
        least, most = written.get("minItems", 0), written.get("maxItems", 1)
        if isinstance(least, int) and least > 1:
            why = (
                f"uniqueItems with minItems {least}: so many items are kept apart if an enum lists them; leave one out"
            )
            raise refused(self._path(parts, "uniqueItems"), why)
        return written | {"maxItems": min(most, 1) if isinstance(most, int) else most}

    def _path(self, parts: Iterable[Schema], key: str) -> str:
        return next((self._alternatives.references.path(part) for part in parts if key in part), "#")


def listed_values(alternatives: list[Alternative]) -> list[Any] | None:
    """The values that these allow, if they say nothing else of them; None: they are not listed."""
    found: dict[Any, Any] = {}
    for parts in alternatives:
        if any(set(part) - ANNOTATIONS - {"type", "enum", "const", *IN_PLACE} for part in parts):
            return None
        lists = [
            [part["const"]] if "const" in part else part["enum"] for part in parts if {"const", "enum"} & set(part)
        ]
        types = types_of(parts)
        if not lists and not types <= {"boolean", "null"}:
            return None
        keys = [{as_key(value) for value in given} for given in lists]
        whole = any(part.get("type") == "integer" for part in parts)
        candidates: list[Any] = lists[0] if lists else [None, False, True]
        for value in candidates:
            is_allowed = type_of(value) in types and not (whole and value != int(value))
            if is_allowed and all(as_key(value) in given for given in keys):
                found[as_key(value)] = value
    return list(found.values())


def _kinds(alternatives: list[Alternative]) -> tuple[Schema, ...]:
    """Schemas that exclude each other, and are no hindrance beside these; empty: none are known."""
    if len(alternatives) != 1:
        return ()
    (parts,) = alternatives
    said = {key for part in parts for key in part} - ANNOTATIONS - set(IN_PLACE)
    types, named = types_of(parts), [part["format"] for part in parts if "format" in part]
    if types == {"string"} and said <= _OF_WORDS:
        is_plain = all(name not in COMPILED and name not in PATTERNS for name in named)
        return _WORDS if is_plain else _BY_END.get(named[0], ()) if len(named) == 1 else ()
    if not any(part.get("type") == "integer" for part in parts) or not said <= _OF_WHOLE:
        return ()
    low, high = (
        [value for part in parts for key in keys if isinstance(value := part.get(key), int | float)]
        for keys in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    fit = [kind for kind in _SIZES if all(kind.get("maximum", value) >= value for value in low)]
    return tuple(kind for kind in fit if all(kind.get("minimum", value) <= value for value in high))


def _of_pattern(parts: Alternative, pattern: str) -> tuple[Part, ...]:
    said: list[Part] = []
    for part in parts:
        if pattern in part.get("patternProperties", {}):
            said.append(part["patternProperties"][pattern])
        elif "additionalProperties" in part:
            said.append(part["additionalProperties"])
    return tuple(said)


def _is_never(name: str, properties: dict[str, Part], patterns: dict[str, Part], left: Part) -> bool:
    return properties.get(name, _by_pattern(patterns, name, left)) is False


def _by_pattern(patterns: dict[str, Part], name: str, left: Part) -> Part:
    found = [value for pattern, value in patterns.items() if fits(pattern, name)]
    return {"allOf": found} if len(found) > 1 else (found or [left])[0]


def _pattern_of_names(parts: Alternative) -> str | None:
    """What a name must match; empty: it may be any; None: one pattern cannot say it."""
    found: list[str] = []
    for part in parts:
        if set(part) - ANNOTATIONS - {"type", "pattern", "format", "minLength", "maxLength"}:
            return None
        if "string" not in types_of((part,)):
            return None
        least, most = part.get("minLength", 0), part.get("maxLength")
        if "minLength" in part or "maxLength" in part:
            found.append(f"^(?s:.{{{least},{'' if most is None else most}}})$")
        found += [part["pattern"]] if "pattern" in part else []
        found += [NAMES[part["format"]]] if part.get("format") in NAMES else []
    return None if len(found) > 1 else (found or [""])[0]


def _narrowest(parts: Alternative, key: str, of: Callable[[list[Any]], Any]) -> Schema:
    given = [part[key] for part in parts if key in part]
    if not given:
        return {}
    return {key: of(given) if all(isinstance(each, int | float) for each in given) else given[0]}
