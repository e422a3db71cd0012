"""Resolve `$ref`: a JSON pointer, an anchor, or the `$id` of a schema."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from quire.grammar.schema import Schema, invalid_schema, subschemas


class References:
    """The references of one document. Parts are identified by `id`, so the document must outlive this object."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._paths = {id(part): path for path, part in subschemas(root)}
        self._bases: dict[int, str] = {}  # the base URI of each part
        self._outer_bases: dict[int, str] = {}  # the outer base URI of a part with `$id` beside `$ref`
        self._resources: dict[str, Schema] = {"": root}
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._read(root, "")

    def path(self, part: Any) -> str:
        """The path of a part, for an error."""
        return self._paths.get(id(part), "#")

    def target(self, part: Schema) -> Schema | bool:
        """The schema that the `$ref` of a part refers to. Raises InvalidRequest if there is none."""
        found = self._find(part, self._bases.get(id(part), ""))
        if id(part) in self._outer_bases and self._find(part, self._outer_bases[id(part)]) not in (None, found):
            why = "$ref beside $id has two meanings, depending on the version of JSON Schema; separate them with allOf"
            raise invalid_schema(self.path(part), why)
        if not isinstance(found, dict | bool):
            raise invalid_schema(self.path(part), f"$ref {part['$ref']!r} does not refer to a schema")
        return found

    def _find(self, part: Schema, base: str) -> Any:
        base, fragment = urldefrag(urljoin(base, part["$ref"]))
        found = self._resources.get(base)
        if found is None or not fragment:
            return found
        if not fragment.startswith("/"):
            return self._anchors.get((base, unquote(fragment)))
        there = _at(found, unquote(fragment))
        if isinstance(there, dict):
            self._bases.setdefault(id(there), base)
            self._paths.setdefault(id(there), f"#{fragment}")
        return there

    def _read(self, part: Any, base: str) -> None:
        """Record every object, whatever its key: a pointer may refer to one below an unknown keyword."""
        if isinstance(part, list):
            for each in part:
                self._read(each, base)
        if not isinstance(part, dict):
            return
        name = part.get("$id", part.get("id"))
        if isinstance(name, str) and not name.startswith("#"):
            if "$ref" in part and part is not self._root:
                self._outer_bases[id(part)] = base
            base = urldefrag(urljoin(base, name))[0]
            self._resources.setdefault(base, part)
        for anchor in (part.get("$anchor"), name[1:] if isinstance(name, str) and name.startswith("#") else None):
            if isinstance(anchor, str):
                self._anchors.setdefault((base, anchor), part)
        self._bases.setdefault(id(part), base)
        for key, each in part.items():
            if key not in ("enum", "const", "default", "examples"):
                self._read(each, base)


def _at(found: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found
