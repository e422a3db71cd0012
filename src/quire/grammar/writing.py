"""Writes a schema as the compiler is to have it: merged where parts hold together, and closed after that.

    {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {}}}]}   →   one object with the names of both, closed

What a `$ref` leads to is written once, under a number, and so is every merged group: a schema may be its own part.
"""

from __future__ import annotations

from typing import Any

from quire.grammar.alternatives import Alternatives, Rules
from quire.grammar.containers import OF_ARRAYS, Containers
from quire.grammar.formats import COMPILED, largest_of, patterns_of
from quire.grammar.keywords import (
    ANNOTATIONS,
    IN_PLACE,
    NOT_KEPT,
    OF_OBJECTS,
    TYPES,
    Alternative,
    Part,
    type_of,
    types_of,
    values_of,
)
from quire.grammar.references import References
from quire.grammar.schema import Schema, refused

MAX_INLINE = 40  # merged groups within each other; deeper ones are referred to
MAX_WHOLE = 10**18  # of a number whose schema has no bound: a small model would write digits for ever


def exact(schema: Schema, rules: Rules = Rules()) -> Schema:  # noqa: B008  # a value
    """The schema as it is to be compiled. Raises InvalidRequest for what the compiler would take but not keep."""
    return Writer(schema, rules).write()


class Writer:
    """Of one document."""

    def __init__(self, root: Schema, rules: Rules) -> None:
        self._root = root
        self._references = References(root)
        self._alternatives = Alternatives(self._references, rules)
        self._containers = Containers(self._alternatives, self._schema)
        self._names: dict[tuple[int, ...], str] = {}
        self._above: set[tuple[int, ...]] = set()  # merged groups around what is being written
        self._merges: dict[tuple[int, ...], int] = {}
        self._open: list[tuple[str, tuple[Part, ...]]] = []  # referred to, and not written yet

    def write(self) -> Schema:
        """All of it. Raises InvalidRequest for what cannot be kept."""
        written = self._schema((self._root,))
        if written is False:
            where, why = self._containers.impossible or ("#", "nothing is valid by it")
            raise refused(where, why)
        definitions: dict[str, Part] = {}
        while self._open:  # one after the other, since a chain of references may be longer than a stack is deep
            name, parts = self._open.pop()
            definitions[name] = self._definition(parts)
        about = {key: self._root[key] for key in ("$schema",) if key in self._root}
        below = {"$defs": definitions} if definitions else {}
        return {**about, **(written if isinstance(written, dict) else {}), **below}

    def _schema(self, given: tuple[Part, ...]) -> Part:
        """What holds of one value, if all of these do."""
        if any(part is False for part in given):
            return False
        parts = tuple({id(part): part for part in given if isinstance(part, dict) and part}.values())
        if len(parts) == 1:
            led_to = self._led_to(parts[0])
            if led_to is not parts[0]:
                return led_to if isinstance(led_to, bool) else self._reference((led_to,))
        if not parts:
            return True
        return self._in_place(parts) if len(self._above) < MAX_INLINE else self._reference(parts)

    def _in_place(self, parts: tuple[Schema, ...]) -> Part:
        """Written where it stands, but where it is its own part: then it is referred to there."""
        key = tuple(map(id, parts))
        if key in self._above or key in self._names:
            return self._reference(parts)
        if len(parts) == 1 and self._stands_alone(parts[0]):
            return self._alone(parts[0])
        self._above.add(key)
        written = self._definition(parts)
        self._above.remove(key)
        self._merges[key] = self._merges.get(key, 0) + 1
        return self._reference(parts) if self._merges[key] > 1 and written is not False else written

    def _stands_alone(self, part: Schema) -> bool:
        """Is there nothing in it that must be merged?"""
        self._alternatives.check(part)
        said = set(part) - ANNOTATIONS
        applied = said & {*IN_PLACE, "unevaluatedProperties"}
        return not applied or (applied in ({"anyOf"}, {"oneOf"}) and not said & OF_OBJECTS)

    def _alone(self, part: Schema) -> Part:
        if "oneOf" in part:
            return self._one_of(part)
        if "anyOf" in part:
            return _any_of([self._schema((branch,)) for branch in part["anyOf"]], self._plain(part))
        return self._merged((part,))

    def _one_of(self, part: Schema) -> Part:
        """Each branch by itself, and if need be with the property that tells it from the others."""
        beside = self._alternatives.kept({key: part[key] for key in ("type",) if key in part})
        found = [
            (each, part, place)
            for place, branch in enumerate(part["oneOf"])
            for each in self._alternatives.of((branch, beside))
        ]
        tag = self._alternatives.tag(found)
        tags = () if tag is None else (tag,)
        return _any_of([self._schema((branch, *tags)) for branch in part["oneOf"]], self._plain(part))

    def _reference(self, parts: tuple[Part, ...]) -> Part:
        """Written once, and referred to."""
        key = tuple(map(id, parts))
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._open.append((self._names[key], parts))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _definition(self, parts: tuple[Part, ...]) -> Part:
        only = parts[0]
        if len(parts) == 1 and isinstance(only, dict) and self._stands_alone(only):
            return self._alone(only)
        return _any_of([self._merged(each) for each in self._alternatives.whole(parts)], {})

    def _led_to(self, part: Part) -> Part:
        """Where a chain of references ends."""
        seen: set[int] = set()
        while isinstance(part, dict):
            self._alternatives.check(part)
            said = set(part) - ANNOTATIONS
            if said not in ({"$ref"}, {"allOf"}) or (said == {"allOf"} and len(part["allOf"]) != 1):
                break
            if id(part) in seen:
                raise refused(self._references.path(part), "it refers to itself without end")
            seen.add(id(part))
            part = self._references.target(part) if "$ref" in said else part["allOf"][0]
        return part

    # ── parts that hold together ──

    def _merged(self, parts: Alternative) -> Part:
        types = types_of(parts)
        values = values_of(parts)
        if values is not None:
            types &= {type_of(value) for value in values}
        others = [self._plain(part, "type") for part in parts]
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

    def _plain(self, part: Schema, *without: str) -> Schema:
        """What a part says of strings, of numbers and of values."""
        left_out = {*ANNOTATIONS, *IN_PLACE, *OF_OBJECTS, *OF_ARRAYS, *NOT_KEPT, *without}
        written = {key: value for key, value in part.items() if key not in left_out}
        if written.get("format", COMPILED[0]) not in COMPILED:
            del written["format"]
        if "string" in types_of((part,)) and (patterns := patterns_of(part)):
            written["allOf"] = [{"pattern": pattern} for pattern in patterns]
        return written


def _type_alone(written: Schema) -> Schema:
    """The type alone, so that what is said beside it is read of that type."""
    return {"type": written["type"]} if "type" in written else {}


def _any_of(options: list[Part], beside: Schema) -> Part:
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
    """Whole numbers come to an end, and are no larger than their format says."""
    if "integer" not in written.get("type", ()) or values_of(parts) is not None:
        return written
    given: dict[str, list[Any]] = {
        end: [part[key] for part in parts for key in (end, f"exclusive{end.capitalize()}") if key in part]
        for end in ("minimum", "maximum")
    }
    largest = min([each for part in parts if (each := largest_of(part)) is not None], default=MAX_WHOLE)
    for end, other, bound in (("minimum", "maximum", -largest), ("maximum", "minimum", largest)):
        is_far = any(not isinstance(each, int | float) or abs(each) > largest for each in given[other])
        if not given[end] and not is_far:
            written = {**written, end: bound}
    return written
