"""Expand a schema into alternatives: each a list of flat schemas that all apply, without in-place applicators.

    {"properties": P, "allOf": [A, {"$ref": "#/$defs/B"}], "anyOf": [C, D]}  →  [P A B C], [P A B D]

Whether an object is closed depends on all names that the parts of an alternative declare together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quire.grammar.keywords import (
    ANNOTATIONS,
    CONDITIONAL,
    IN_PLACE,
    TYPES,
    UNSUPPORTED,
    Alternative,
    Subschema,
    allowed_types,
    allowed_values,
    as_key,
    has_pattern_for,
    json_type,
    property_schemas,
    required_names,
)
from quire.grammar.references import References
from quire.grammar.schema import Schema, invalid_schema

MAX_ALTERNATIVES = 1000
MAX_PAIRS = 2500  # of branches that are compared with each other
MAX_DEPTH = 8  # of nested properties, in the comparison of two branches

_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
_VALUE_TYPES: dict[str, tuple[type, ...]] = {
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
class SchemaOptions:
    """How schemas are interpreted."""

    closes_objects: bool = True  # an object that declares properties has no others, unless the schema allows them
    is_lenient: bool = False  # keywords that no grammar can enforce are ignored


class OneOfBranch(dict[str, Any]):
    """An empty part that records which branch of a `oneOf` was taken."""

    def __init__(self, schema: Schema, branch_index: int) -> None:
        self.schema, self.branch_index = schema, branch_index


class Alternatives:
    """Expands the schemas of one document. New parts are kept alive, because parts are identified by `id`."""

    def __init__(self, references: References, options: SchemaOptions) -> None:
        self.references = references
        self.options = options
        self._required: dict[str, Schema] = {}
        self._kept: list[Schema] = []

    def expand(self, schemas: tuple[Subschema, ...]) -> list[Alternative]:
        """The alternatives of schemas that all apply; none if no value is valid."""
        alternatives: list[Alternative] = [()]
        for schema in schemas:
            alternatives = self._combine(alternatives, self._expand(schema, frozenset()), schema)
        return alternatives

    def expand_whole(self, schemas: tuple[Subschema, ...]) -> list[Alternative]:
        """Like `expand`, for schemas to which no other is added: the branches of each `oneOf` exclude each other."""
        alternatives = self.expand(schemas)
        for schema in {id(each.schema): each.schema for each in _branches_taken(alternatives)}.values():
            of_branches: list[tuple[Alternative, Schema, int]] = []
            rest: list[Alternative] = []
            for parts in alternatives:
                indexes = {each.branch_index for each in _branches_taken([parts]) if each.schema is schema}
                if not indexes:
                    rest.append(parts)
                elif len(indexes) == 1:
                    of_branches.append((parts, schema, indexes.pop()))
            tag = self.tag(of_branches)
            alternatives = [*rest, *(parts if tag is None else (*parts, tag) for parts, _, _ in of_branches)]
        return alternatives

    def required(self, name: str) -> Schema:
        """A part that requires a property; always the same object for one name."""
        return self._required.setdefault(name, {"required": [name]})

    def keep(self, part: Schema) -> Schema:
        """Keep a new part alive, which is in no document."""
        self._kept.append(part)
        return part

    def tag(self, branches: list[tuple[Alternative, Schema, int]]) -> Schema | None:
        """A part that requires the property by which branches of a `oneOf` differ. None: they need none.

        The schema's own discriminator is always required, because readers look at it first.
        """
        schema = branches[0][1] if branches else {}
        discriminator = schema.get("discriminator")
        named: Any = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        is_lenient = self.options.is_lenient
        is_declared = isinstance(named, str) and all(property_schemas(each[0], named) for each in branches)
        if is_declared and (is_lenient or self._are_exclusive(branches, named)):
            return self.required(named)
        if is_lenient or self._are_exclusive(branches):
            return None
        first = self.expand(tuple(schema["oneOf"][:1]))
        for name in dict.fromkeys(name for parts in first for part in parts for name in part.get("properties", {})):
            if self._are_exclusive(branches, name):
                return self.required(name)
        why = "oneOf is supported only if its branches exclude each other, which these may not; use anyOf"
        raise invalid_schema(self.references.path(schema), why)

    def closes(self, parts: Alternative) -> bool:
        """Is an object of these parts implicitly closed: without names that no part declares?"""
        if not self.options.closes_objects or not any(map(_declares_properties, parts)):
            return False
        if any(key in part for part in parts for key in ("additionalProperties", "unevaluatedProperties")):
            return False
        if any("enum" in part or "const" in part for part in parts):
            return False
        least = max((part["minProperties"] for part in parts if type(part.get("minProperties")) is int), default=0)
        return least <= len(self.names(parts)) or any(part.get("patternProperties") for part in parts)

    def names(self, parts: Alternative) -> dict[str, None]:
        """The names that these parts declare or require, in order."""
        names = {
            name: None for part in parts for name, value in part.get("properties", {}).items() if value is not False
        }
        names |= {name: None for part in parts for name in required_names(part)}
        if self.options.is_lenient:
            names |= {name: None for part in parts for key in CONDITIONAL for name in _conditional_names(part.get(key))}
        return names

    # ── in-place applicators ──

    def _expand(self, schema: Subschema, above: frozenset[int]) -> list[Alternative]:
        if isinstance(schema, bool):
            return [()] if schema else []
        if id(schema) in above:
            raise invalid_schema(self.references.path(schema), "its references form a loop")
        above |= {id(schema)}
        self.check(schema)
        alternatives: list[Alternative] = [()]
        is_added = False
        for key in schema:
            if key in IN_PLACE:
                for applied in self._apply(schema, key, above):
                    alternatives = self._combine(alternatives, applied, schema)
            elif key not in ANNOTATIONS and key != "unevaluatedProperties" and not is_added:
                is_added = True
                alternatives = [(*each, schema) for each in alternatives]
        if "unevaluatedProperties" in schema:
            alternatives = [self._close_evaluated(each, schema["unevaluatedProperties"]) for each in alternatives]
        return alternatives

    def _apply(self, schema: Schema, key: str, above: frozenset[int]) -> Iterator[list[Alternative]]:
        """The alternatives of each schema that an applicator adds; all of those schemas apply."""
        value = schema[key]
        if key == "$ref":
            yield self._expand(self.references.target(schema), above)
        elif key == "allOf":
            for each in value:
                yield self._expand(each, above)
        elif key in ("anyOf", "oneOf"):
            yield [
                (*([OneOfBranch(schema, branch_index)] if key == "oneOf" else ()), *parts)
                for branch_index, branch in enumerate(value)
                for parts in self._expand(branch, above)
            ]
        else:
            for name, needed in value.items():
                has = self.required(name)
                if isinstance(needed, list):
                    with_it: list[Alternative] = [(has, self.keep({"required": needed}))]
                else:
                    with_it = [(has, *each) for each in self._expand(needed, above)]
                yield [(self.keep({"properties": {name: False}}),), *with_it]

    def _combine(self, first: list[Alternative], second: list[Alternative], schema: Subschema) -> list[Alternative]:
        if len(first) * len(second) > MAX_ALTERNATIVES:
            why = f"its branches combine in {len(first) * len(second)} ways; at most {MAX_ALTERNATIVES} are supported"
            raise invalid_schema(self.references.path(schema), why)
        return [tuple({id(part): part for part in (*one, *two)}.values()) for one in first for two in second]

    def _close_evaluated(self, parts: Alternative, others: Subschema) -> Alternative:
        """Apply `unevaluatedProperties` to the names that no part of this alternative declares."""
        if others is True or any("additionalProperties" in part for part in parts):
            return (*parts, self.keep({"additionalProperties": True})) if others is True else parts
        declared: dict[str, Subschema] = {name: True for part in parts for name in part.get("properties", {})}
        if self.options.is_lenient:
            declared |= {
                name: True for part in parts for key in CONDITIONAL for name in _conditional_names(part.get(key))
            }
        patterns = {pattern: True for part in parts for pattern in part.get("patternProperties", {})}
        closing = {"properties": declared, "patternProperties": patterns, "additionalProperties": others}
        return (*parts, self.keep({key: value for key, value in closing.items() if value != {}}))

    def check(self, schema: Schema) -> None:
        """Refuse unsupported keywords, and keywords whose values have the wrong type."""
        if not self.options.is_lenient and (keys := sorted(UNSUPPORTED & set(schema))):
            raise invalid_schema(self.references.path(schema), f"not supported: {', '.join(keys)}")
        for key, types in _VALUE_TYPES.items():
            if key in schema and not isinstance(schema[key], types):
                expected = " or ".join(_TYPE_NAMES[each] for each in types)
                raise invalid_schema(self.references.path(schema), f"{key} must be {expected}")
        lists = [schema[key] for key in ("allOf", "anyOf", "oneOf", "prefixItems") if key in schema]
        maps = ("properties", "patternProperties", "dependentSchemas")
        lists += [list(schema[key].values()) for key in maps if key in schema]
        lists += [schema["items"]] if isinstance(schema.get("items"), list) else []
        if not all(isinstance(each, dict | bool) for values in lists for each in values):
            raise invalid_schema(self.references.path(schema), "a schema must be an object, true or false")
        needed = [schema.get("required", []), *schema.get("dependentRequired", {}).values()]
        needed += [each for each in schema.get("dependencies", {}).values() if not isinstance(each, dict | bool)]
        if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in needed):
            raise invalid_schema(self.references.path(schema), "required must be a list of names")
        types_or_type = schema.get("type", [])
        for name in [types_or_type] if isinstance(types_or_type, str) else types_or_type:
            if not isinstance(name, str) or name not in (*TYPES, "integer"):
                raise invalid_schema(self.references.path(schema), f"unknown type {name!r}")

    # ── exclusive branches ──

    def _are_exclusive(self, taken: list[tuple[Alternative, Schema, int]], tag: str | None = None) -> bool:
        """Does no other branch of a `oneOf` allow a value that the alternatives of one branch allow?

        The alternatives are complete and implicitly closed; the other branches are compared as written.
        """
        if not taken:
            return True
        branches = [self.expand((branch,)) for branch in taken[0][1]["oneOf"]]
        if tag is not None and _discriminates(tag, [(parts, index) for parts, _, index in taken], branches):
            return True
        if len(taken) * len(branches) > MAX_PAIRS:
            return False
        more = () if tag is None else (self.required(tag),)
        return all(
            self._are_disjoint((*parts, *more), other, 0)
            for parts, _, branch_index in taken
            for index, branch in enumerate(branches)
            if index != branch_index
            for other in branch
        )

    def _all_disjoint(self, first: list[Alternative], second: list[Alternative], depth: int) -> bool:
        return all(self._are_disjoint(one, two, depth) for one in first for two in second)

    def _are_disjoint(self, closed: Alternative, as_written: Alternative, depth: int) -> bool:
        """Is no value valid for both? The first is implicitly closed, the second is taken as written."""
        common = allowed_types(closed) & allowed_types(as_written)
        values = [allowed_values(parts) for parts in (closed, as_written)]
        if values[0] is not None and values[1] is not None:
            return not {as_key(value) for value in values[0]} & {as_key(value) for value in values[1]}
        for listed in values:
            if listed is not None:
                common &= {json_type(value) for value in listed}
        if not common:
            return True
        if common != {"object"} or depth == MAX_DEPTH:
            return False
        needed = [{name for part in parts for name in required_names(part)} for parts in (closed, as_written)]
        if self._lacks(closed, needed[1]) or _forbid(closed, needed[1]) or _forbid(as_written, needed[0]):
            return True
        for name in needed[0] | needed[1]:
            one, two = (self.expand(property_schemas(parts, name)) for parts in (closed, as_written))
            if self._all_disjoint(one, two, depth + 1):
                return True
        return False

    def _lacks(self, parts: Alternative, needed: set[str]) -> bool:
        """Is an object of these parts implicitly closed, so that it cannot have all of these names?"""
        return self.closes(parts) and any(
            name not in self.names(parts) and not any(has_pattern_for(part, name) for part in parts) for name in needed
        )


def _branches_taken(alternatives: list[Alternative]) -> list[OneOfBranch]:
    return [part for parts in alternatives for part in parts if isinstance(part, OneOfBranch)]


def _discriminates(tag: str, taken: list[tuple[Alternative, int]], branches: list[list[Alternative]]) -> bool:
    """Does a property have different values in each branch? A faster test than comparing all branches."""
    owners: dict[Any, set[int]] = {}
    for branch_index, alternatives in enumerate(branches):
        for parts in alternatives:
            for value in _listed_values(parts, tag) or ():
                owners.setdefault(as_key(value), set()).add(branch_index)
    for parts, branch_index in taken:
        values = _listed_values(parts, tag)
        if (
            allowed_types(parts) != {"object"}
            or not values
            or any(owners.get(as_key(each)) != {branch_index} for each in values)
        ):
            return False
    return all(_listed_values(parts, tag) is not None for alternatives in branches for parts in alternatives)


def _listed_values(parts: Alternative, name: str) -> list[Any] | None:
    schemas = [part for part in property_schemas(parts, name) if isinstance(part, dict)]
    return allowed_values(tuple(schemas))


def _declares_properties(part: Schema) -> bool:
    properties = part.get("properties")
    has_own = properties is not None and (not properties or any(value is not False for value in properties.values()))
    return has_own or bool(part.get("patternProperties"))


def _forbid(parts: Alternative, names: set[str]) -> bool:
    """Does a part explicitly forbid one of these names?"""
    closed = [part for part in parts if part.get("additionalProperties") is False]
    return any(
        name not in part.get("properties", {}) and not has_pattern_for(part, name) for part in closed for name in names
    )


def _conditional_names(schema: Any) -> Iterator[str]:
    """The names in a condition and in its branches."""
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict):
        yield from schema["properties"]
    for key in CONDITIONAL:
        yield from _conditional_names(schema.get(key))
    for key in ("allOf", "anyOf", "oneOf"):
        for each in schema[key] if isinstance(schema.get(key), list) else ():
            yield from _conditional_names(each)
