"""Rewrite a schema for the compiler: merge the parts that apply together, then close objects.

    {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {}}}]}   →   one object with the names of both, closed

The target of a `$ref` is written once, under a number, and so is every merged group: schemas may be recursive.
"""

from __future__ import annotations

from typing import Any

from quire.grammar.alternatives import Alternatives, SchemaOptions
from quire.grammar.containers import OF_ARRAYS, Containers
from quire.grammar.formats import COMPILED, largest_integer, string_patterns
from quire.grammar.keywords import (
    ANNOTATIONS,
    IN_PLACE,
    OF_OBJECTS,
    TYPES,
    UNSUPPORTED,
    Alternative,
    Subschema,
    allowed_types,
    allowed_values,
    json_type,
)
from quire.grammar.references import References
from quire.grammar.schema import Schema, invalid_schema

MAX_INLINE = 40  # nested merged groups; deeper ones become references
MAX_WHOLE = 10**18  # bound of an unbounded integer: a small model would write digits for ever


def exact_schema(schema: Schema, options: SchemaOptions = SchemaOptions()) -> Schema:  # noqa: B008  # a value
    """The schema for the compiler. Raises InvalidRequest for what the compiler would accept but not enforce."""
    return SchemaWriter(schema, options).write()


class SchemaWriter:
    """Rewrites one document."""

    def __init__(self, root: Schema, options: SchemaOptions) -> None:
        self._root = root
        self._references = References(root)
        self._alternatives = Alternatives(self._references, options)
        self._containers = Containers(self._alternatives, self._schema)
        self._names: dict[tuple[int, ...], str] = {}
        self._enclosing: set[tuple[int, ...]] = set()  # merged groups around the current one
        self._merges: dict[tuple[int, ...], int] = {}
        self._pending: list[tuple[str, tuple[Subschema, ...]]] = []  # referenced, not written yet

    def write(self) -> Schema:
        """The whole document. Raises InvalidRequest for what cannot be enforced."""
        written = self._schema((self._root,))
        if written is False:
            where, why = self._containers.impossible_object or ("#", "no value is valid")
            raise invalid_schema(where, why)
        definitions: dict[str, Subschema] = {}
        while self._pending:  # a loop, because a chain of references may exceed the recursion limit
            name, parts = self._pending.pop()
            definitions[name] = self._definition(parts)
        about = {key: self._root[key] for key in ("$schema",) if key in self._root}
        below = {"$defs": definitions} if definitions else {}
        return {**about, **(written if isinstance(written, dict) else {}), **below}

    def _schema(self, subschemas: tuple[Subschema, ...]) -> Subschema:
        """The schema of a value to which all of these apply."""
        if any(part is False for part in subschemas):
            return False
        parts = tuple({id(part): part for part in subschemas if isinstance(part, dict) and part}.values())
        if len(parts) == 1:
            resolved = self._resolve(parts[0])
            if resolved is not parts[0]:
                return resolved if isinstance(resolved, bool) else self._reference((resolved,))
        if not parts:
            return True
        return self._inline(parts) if len(self._enclosing) < MAX_INLINE else self._reference(parts)

    def _inline(self, parts: tuple[Schema, ...]) -> Subschema:
        """The schema written inline, or a reference if it is recursive or was written before."""
        key = tuple(map(id, parts))
        if key in self._enclosing or key in self._names:
            return self._reference(parts)
        if len(parts) == 1 and self._can_write_alone(parts[0]):
            return self._write_alone(parts[0])
        self._enclosing.add(key)
        written = self._definition(parts)
        self._enclosing.remove(key)
        self._merges[key] = self._merges.get(key, 0) + 1
        return self._reference(parts) if self._merges[key] > 1 and written is not False else written

    def _can_write_alone(self, part: Schema) -> bool:
        """Can this part be written without merging?"""
        self._alternatives.check(part)
        keys = set(part) - ANNOTATIONS
        applicators = keys & {*IN_PLACE, "unevaluatedProperties"}
        return not applicators or (applicators in ({"anyOf"}, {"oneOf"}) and not keys & OF_OBJECTS)

    def _write_alone(self, part: Schema) -> Subschema:
        if "oneOf" in part:
            return self._write_one_of(part)
        if "anyOf" in part:
            return _any_of([self._schema((branch,)) for branch in part["anyOf"]], self._plain_keywords(part))
        return self._merged((part,))

    def _write_one_of(self, part: Schema) -> Subschema:
        """Each branch, with the property by which it differs from the others if that is needed."""
        beside = self._alternatives.keep({key: part[key] for key in ("type",) if key in part})
        branches = [
            (each, part, branch_index)
            for branch_index, branch in enumerate(part["oneOf"])
            for each in self._alternatives.expand((branch, beside))
        ]
        tag = self._alternatives.tag(branches)
        tags = () if tag is None else (tag,)
        return _any_of([self._schema((branch, *tags)) for branch in part["oneOf"]], self._plain_keywords(part))

    def _reference(self, parts: tuple[Subschema, ...]) -> Subschema:
        """A reference to a definition, which is written once."""
        key = tuple(map(id, parts))
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._pending.append((self._names[key], parts))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _definition(self, parts: tuple[Subschema, ...]) -> Subschema:
        only = parts[0]
        if len(parts) == 1 and isinstance(only, dict) and self._can_write_alone(only):
            return self._write_alone(only)
        return _any_of([self._merged(each) for each in self._alternatives.expand_whole(parts)], {})

    def _resolve(self, part: Subschema) -> Subschema:
        """Follow a chain of references to its end."""
        seen: set[int] = set()
        while isinstance(part, dict):
            self._alternatives.check(part)
            keys = set(part) - ANNOTATIONS
            if keys not in ({"$ref"}, {"allOf"}) or (keys == {"allOf"} and len(part["allOf"]) != 1):
                break
            if id(part) in seen:
                raise invalid_schema(self._references.path(part), "its references form a loop")
            seen.add(id(part))
            part = self._references.target(part) if "$ref" in keys else part["allOf"][0]
        return part

    # ── merging ──

    def _merged(self, parts: Alternative) -> Subschema:
        types = allowed_types(parts)
        values = allowed_values(parts)
        if values is not None:
            types &= {json_type(value) for value in values}
        others = [self._plain_keywords(part, "type") for part in parts]
        if "object" in types:
            about_objects = self._containers.object(parts)
            types -= {"object"} if about_objects is None else set()
            others.insert(0, about_objects or {})
        if "array" in types:
            others += self._containers.arrays(parts, types)
        if not types:
            return False
        written = _types(parts, types)
        for other in others:
            if set(other) & set(written):
                written.setdefault("allOf", []).append({**_type_alone(written), **other})
            else:
                written |= other
        return _bounded(written, parts)

    def _plain_keywords(self, part: Schema, *without: str) -> Schema:
        """The keywords of a part for strings, numbers and values."""
        left_out = {*ANNOTATIONS, *IN_PLACE, *OF_OBJECTS, *OF_ARRAYS, *UNSUPPORTED, *without}
        written = {key: value for key, value in part.items() if key not in left_out}
        if written.get("format", COMPILED[0]) not in COMPILED:
            del written["format"]
        if "string" in allowed_types((part,)) and (patterns := string_patterns(part)):
            written["allOf"] = [{"pattern": pattern} for pattern in patterns]
        return written


def _type_alone(written: Schema) -> Schema:
    """The type, repeated in `allOf` so that its other keywords apply to that type."""
    return {"type": written["type"]} if "type" in written else {}


def _any_of(options: list[Subschema], beside: Schema) -> Subschema:
    left = [option for option in options if option is not False]
    if not left:
        return False
    if any(option is True for option in left):
        return beside or True
    if len(left) == 1 and not beside:
        return left[0]
    return {**beside, "anyOf": left}


def _types(parts: Alternative, types: set[str]) -> Schema:
    lists = [[part["type"]] if isinstance(part["type"], str) else part["type"] for part in parts if "type" in part]
    if not lists and types == TYPES:
        return {}
    is_whole = any("integer" in each and "number" not in each for each in lists)
    names = sorted("integer" if name == "number" and is_whole else name for name in types)
    return {"type": names[0] if len(names) == 1 else names}


def _bounded(written: Schema, parts: Alternative) -> Schema:
    """Bound integers by their format, or by MAX_WHOLE."""
    if "integer" not in written.get("type", ()) or allowed_values(parts) is not None:
        return written
    bounds: dict[str, list[Any]] = {
        end: [part[key] for part in parts for key in (end, f"exclusive{end.capitalize()}") if key in part]
        for end in ("minimum", "maximum")
    }
    largest = min([each for part in parts if (each := largest_integer(part)) is not None], default=MAX_WHOLE)
    for end, other, bound in (("minimum", "maximum", -largest), ("maximum", "minimum", largest)):
        is_far = any(not isinstance(each, int | float) or abs(each) > largest for each in bounds[other])
        if not bounds[end] and not is_far:
            written = {**written, end: bound}
    return written
