"""A schema as alternatives: each a list of flat parts that hold together, with nothing left that applies in place.

    {"properties": P, "allOf": [A, {"$ref": "#/$defs/B"}], "anyOf": [C, D]}  →  [P A B C], [P A B D]

Whether an object is closed can be said of an alternative alone: of all the names that its parts declare together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quire.grammar.keywords import (
    ANNOTATIONS,
    CONDITIONAL,
    IN_PLACE,
    NOT_KEPT,
    TYPES,
    Alternative,
    Part,
    as_key,
    matches,
    required,
    said_of,
    type_of,
    types_of,
    values_of,
)
from quire.grammar.references import References
from quire.grammar.schema import Schema, refused

MAX_ALTERNATIVES = 1000
MAX_PAIRS = 2500  # of branches that are compared one by one
MAX_DEPTH = 8  # of properties, in the search for what tells two branches apart

_WHAT = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
_FORMS: dict[str, tuple[type, ...]] = {
    "$ref": (str,),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "required", "enum"), (list,)),
    **dict.fromkeys(("properties", "patternProperties", "dependentRequired", "dependentSchemas"), (dict,)),
    "dependencies": (dict,),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames"), (dict, bool)),
    "items": (dict, bool, list),
    "type": (str, list),
    "format": (str,),
    "pattern": (str,),
    "uniqueItems": (bool,),
}


@dataclass(frozen=True, slots=True)
class Rules:
    """How schemas are read."""

    closes: bool = True  # an object that declares properties has no others, unless it says so
    lenient: bool = False  # what no grammar can keep is let pass


class Chosen(dict[str, Any]):
    """A part that says nothing but which branch of a `oneOf` was taken."""

    def __init__(self, schema: Schema, place: int) -> None:
        self.schema, self.place = schema, place


class Alternatives:
    """Of the schemas of one document. What it makes itself it keeps, since parts are known by their identity."""

    def __init__(self, references: References, rules: Rules) -> None:
        self.references = references
        self.rules = rules
        self._required: dict[str, Schema] = {}
        self._kept: list[Schema] = []

    def of(self, schemas: tuple[Part, ...]) -> list[Alternative]:
        """All that may hold where these hold together; none if nothing can."""
        found: list[Alternative] = [()]
        for schema in schemas:
            found = self._joined(found, self._of(schema, frozenset()), schema)
        return found

    def whole(self, schemas: tuple[Part, ...]) -> list[Alternative]:
        """The same where nothing else holds of a value: of `oneOf`, no other branch fits what one allows."""
        found = self.of(schemas)
        for schema in {id(each.schema): each.schema for each in _choices(found)}.values():
            asked: list[tuple[Alternative, Schema, int]] = []
            rest: list[Alternative] = []
            for parts in found:
                places = {each.place for each in _choices([parts]) if each.schema is schema}
                if not places:
                    rest.append(parts)
                elif len(places) == 1:
                    asked.append((parts, schema, places.pop()))
            tag = self.tag(asked)
            found = [*rest, *(parts if tag is None else (*parts, tag) for parts, _, _ in asked)]
        return found

    def required(self, name: str) -> Schema:
        """A part that wants a property; one and the same for each name."""
        return self._required.setdefault(name, {"required": [name]})

    def kept(self, part: Schema) -> Schema:
        """A part that is in no document."""
        self._kept.append(part)
        return part

    def tag(self, found: list[tuple[Alternative, Schema, int]]) -> Schema | None:
        """A property that all must have, so that branches of a `oneOf` are apart; None: they are without it.

        One that the schema names as its discriminator is what readers look at first, so it comes in any case.
        """
        schema = found[0][1] if found else {}
        given = schema.get("discriminator")
        named = given.get("propertyName") if isinstance(given, dict) else None
        is_lenient = self.rules.lenient
        declared = [name for name in [named] if isinstance(name, str) and all(said_of(each[0], name) for each in found)]
        for name in declared:
            if is_lenient or self._are_apart(found, name):
                return self.required(name)
        if is_lenient or self._are_apart(found):
            return None
        first = self.of(tuple(schema["oneOf"][:1]))
        for name in dict.fromkeys(name for parts in first for part in parts for name in part.get("properties", {})):
            if self._are_apart(found, name):
                return self.required(name)
        why = "oneOf is supported where its branches exclude each other, which these may not; use anyOf"
        raise refused(self.references.path(schema), why)

    def closes(self, parts: Alternative) -> bool:
        """Does an object of these parts have no other names than they declare, though none of them says so?"""
        if not self.rules.closes or not any(map(_declares, parts)):
            return False
        if any(key in part for part in parts for key in ("additionalProperties", "unevaluatedProperties")):
            return False
        if any("enum" in part or "const" in part for part in parts):
            return False
        least = max((part["minProperties"] for part in parts if type(part.get("minProperties")) is int), default=0)
        return least <= len(self.names(parts)) or any(part.get("patternProperties") for part in parts)

    def names(self, parts: Alternative) -> dict[str, None]:
        """The names that an object of these parts declares or demands, in their order."""
        found = {
            name: None for part in parts for name, value in part.get("properties", {}).items() if value is not False
        }
        found |= {name: None for part in parts for name in required(part)}
        if self.rules.lenient:
            found |= {name: None for part in parts for key in CONDITIONAL for name in _conditional(part.get(key))}
        return found

    # ── applied in place ──

    def _of(self, schema: Part, above: frozenset[int]) -> list[Alternative]:
        if isinstance(schema, bool):
            return [()] if schema else []
        if id(schema) in above:
            raise refused(self.references.path(schema), "it refers to itself without end")
        above |= {id(schema)}
        self.check(schema)
        found: list[Alternative] = [()]
        is_in = False
        for key in schema:
            if key in IN_PLACE:
                for options in self._applied(schema, key, above):
                    found = self._joined(found, options, schema)
            elif key not in ANNOTATIONS and key != "unevaluatedProperties" and not is_in:
                is_in = True
                found = [(*each, schema) for each in found]
        if "unevaluatedProperties" in schema:
            found = [self._evaluated(each, schema["unevaluatedProperties"]) for each in found]
        return found

    def _applied(self, schema: Schema, key: str, above: frozenset[int]) -> Iterator[list[Alternative]]:
        """All of these hold, each as one of its alternatives."""
        given = schema[key]
        if key == "$ref":
            yield self._of(self.references.target(schema), above)
        elif key == "allOf":
            for each in given:
                yield self._of(each, above)
        elif key in ("anyOf", "oneOf"):
            yield [
                (*([Chosen(schema, place)] if key == "oneOf" else ()), *found)
                for place, branch in enumerate(given)
                for found in self._of(branch, above)
            ]
        else:
            for name, needed in given.items():
                has = self.required(name)
                if isinstance(needed, list):
                    with_it: list[Alternative] = [(has, self.kept({"required": needed}))]
                else:
                    with_it = [(has, *each) for each in self._of(needed, above)]
                yield [(self.kept({"properties": {name: False}}),), *with_it]

    def _joined(self, first: list[Alternative], second: list[Alternative], schema: Part) -> list[Alternative]:
        if len(first) * len(second) > MAX_ALTERNATIVES:
            why = f"its branches combine in {len(first) * len(second)} ways; at most {MAX_ALTERNATIVES} can be followed"
            raise refused(self.references.path(schema), why)
        return [tuple({id(part): part for part in (*one, *two)}.values()) for one in first for two in second]

    def _evaluated(self, parts: Alternative, others: Part) -> Alternative:
        """With `unevaluatedProperties`: what no part of this alternative has looked at."""
        if others is True or any("additionalProperties" in part for part in parts):
            return (*parts, self.kept({"additionalProperties": True})) if others is True else parts
        declared: dict[str, Part] = {name: True for part in parts for name in part.get("properties", {})}
        if self.rules.lenient:
            declared |= {name: True for part in parts for key in CONDITIONAL for name in _conditional(part.get(key))}
        patterns = {pattern: True for part in parts for pattern in part.get("patternProperties", {})}
        closing = {"properties": declared, "patternProperties": patterns, "additionalProperties": others}
        return (*parts, self.kept({key: value for key, value in closing.items() if value != {}}))

    def check(self, schema: Schema) -> None:
        """Keywords can be kept, and those that are looked at here have the form that they should have."""
        if not self.rules.lenient and (found := sorted(NOT_KEPT & set(schema))):
            raise refused(self.references.path(schema), f"not supported: {', '.join(found)}")
        for key, forms in _FORMS.items():
            if key in schema and not isinstance(schema[key], forms):
                wanted = " or ".join(_WHAT[form] for form in forms)
                raise refused(self.references.path(schema), f"{key} must be {wanted}")
        lists = [schema[key] for key in ("allOf", "anyOf", "oneOf", "prefixItems") if key in schema]
        maps = ("properties", "patternProperties", "dependentSchemas")
        lists += [list(schema[key].values()) for key in maps if key in schema]
        lists += [schema["items"]] if isinstance(schema.get("items"), list) else []
        if not all(isinstance(each, dict | bool) for given in lists for each in given):
            raise refused(self.references.path(schema), "a schema is an object, true or false")
        needed = [schema.get("required", []), *schema.get("dependentRequired", {}).values()]
        needed += [each for each in schema.get("dependencies", {}).values() if not isinstance(each, dict | bool)]
        if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in needed):
            raise refused(self.references.path(schema), "what is required is a list of names")
        said = schema.get("type", [])
        for name in [said] if isinstance(said, str) else said:
            if not isinstance(name, str) or name not in (*TYPES, "integer"):
                raise refused(self.references.path(schema), f"there is no type {name!r}")

    # ── do branches exclude each other? ──

    def _are_apart(self, found: list[tuple[Alternative, Schema, int]], tag: str | None = None) -> bool:
        """Does no other branch of a `oneOf` allow anything that these parts, of one branch, do?

        The parts are all that hold of a value, closed where they close. The other branches are as they are given.
        """
        if not found:
            return True
        branches = [self.of((branch,)) for branch in found[0][1]["oneOf"]]
        if tag is not None and _are_told_by(tag, [(parts, place) for parts, _, place in found], branches):
            return True
        if len(found) * len(branches) > MAX_PAIRS:
            return False
        more = () if tag is None else (self.required(tag),)
        return all(
            self._differ((*parts, *more), other, 0)
            for parts, _, place in found
            for index, branch in enumerate(branches)
            if index != place
            for other in branch
        )

    def _apart(self, first: list[Alternative], second: list[Alternative], depth: int) -> bool:
        return all(self._differ(one, two, depth) for one in first for two in second)

    def _differ(self, closed: Alternative, given: Alternative, depth: int) -> bool:
        """Can nothing be of both? The first is closed where it closes, the second is as it is given."""
        common = types_of(closed) & types_of(given)
        values = [values_of(parts) for parts in (closed, given)]
        if values[0] is not None and values[1] is not None:
            return not {as_key(value) for value in values[0]} & {as_key(value) for value in values[1]}
        for known in values:
            if known is not None:
                common &= {type_of(value) for value in known}
        if not common:
            return True
        if common != {"object"} or depth == MAX_DEPTH:
            return False
        demanded = [{name for part in parts for name in required(part)} for parts in (closed, given)]
        if self._lacks(closed, demanded[1]) or _forbid(closed, demanded[1]) or _forbid(given, demanded[0]):
            return True
        for name in demanded[0] | demanded[1]:
            one, two = (self.of(said_of(parts, name)) for parts in (closed, given))
            if self._apart(one, two, depth + 1):
                return True
        return False

    def _lacks(self, parts: Alternative, demanded: set[str]) -> bool:
        """Is an object of these parts closed, so that it cannot have all of these names?"""
        return self.closes(parts) and any(
            name not in self.names(parts) and not any(matches(part, name) for part in parts) for name in demanded
        )


def _choices(found: list[Alternative]) -> list[Chosen]:
    return [part for parts in found for part in parts if isinstance(part, Chosen)]


def _are_told_by(tag: str, found: list[tuple[Alternative, int]], branches: list[list[Alternative]]) -> bool:
    """Does a property have other values in each branch? It is the same as comparing all of them, and quicker."""
    owners: dict[Any, set[int]] = {}
    for place, alternatives in enumerate(branches):
        for parts in alternatives:
            for value in _listed(parts, tag) or ():
                owners.setdefault(as_key(value), set()).add(place)
    for parts, place in found:
        values = _listed(parts, tag)
        if types_of(parts) != {"object"} or not values or any(owners.get(as_key(each)) != {place} for each in values):
            return False
    return all(_listed(parts, tag) is not None for alternatives in branches for parts in alternatives)


def _listed(parts: Alternative, name: str) -> list[Any] | None:
    said = [part for part in said_of(parts, name) if isinstance(part, dict)]
    return values_of(tuple(said))


def _declares(part: Schema) -> bool:
    given = part.get("properties")
    declares = given is not None and (not given or any(value is not False for value in given.values()))
    return declares or bool(part.get("patternProperties"))


def _forbid(parts: Alternative, names: set[str]) -> bool:
    """Does a part say itself that one of these names cannot come?"""
    closed = [part for part in parts if part.get("additionalProperties") is False]
    return any(name not in part.get("properties", {}) and not matches(part, name) for part in closed for name in names)


def _conditional(schema: Any) -> Iterator[str]:
    """Names that a condition or its consequence speaks of."""
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict):
        yield from schema["properties"]
    for key in CONDITIONAL:
        yield from _conditional(schema.get(key))
    for key in ("allOf", "anyOf", "oneOf"):
        for each in schema[key] if isinstance(schema.get(key), list) else ():
            yield from _conditional(each)
