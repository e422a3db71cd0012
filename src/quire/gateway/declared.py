"""YAML that knows its lines: whatever is wrong in a file is told with its place, before anybody is served by it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from quire.config import BadSetting

MAX_DEPTH = 8  # of what is only shown again; a file may refer to itself


class BadRoutes(BadSetting):
    """The file of routes cannot be used as it is."""

    code = "bad_routes"

    def __init__(self, place: str, line: int | None, problem: str) -> None:
        at = place if line is None else f"{place}, line {line}"
        super().__init__(f"{at}: {problem}", field="routes")
        self.line = line


class Node:
    """A value of the file, and where it stands."""

    def __init__(self, file: str, node: yaml.Node) -> None:
        self.file = file
        self._node = node

    @property
    def line(self) -> int:
        """Counted from 1."""
        return int(self._node.start_mark.line) + 1

    def wrong(self, problem: str) -> BadRoutes:
        """An error about this place, to be raised."""
        return BadRoutes(self.file, self.line, problem)

    @property
    def is_mapping(self) -> bool:
        """Has it keys?"""
        return isinstance(self._node, yaml.MappingNode)

    def entries(self, known: Collection[str] = ()) -> dict[str, Node]:
        """A mapping's values by their keys. With `known`, no other key may be there."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.wrong(f"here must be a mapping{f' of {_listed(known)}' if known else ''}.")
        found: dict[str, Node] = {}
        for key, value in self._node.value:
            place = Node(self.file, key)
            name = place.text()
            if known and name not in known:
                raise place.wrong(f"there is no {name!r} here: choose from {_listed(known)}.")
            if name in found:
                raise place.wrong(f"{name!r} is here twice.")
            found[name] = Node(self.file, value)
        return found

    def items(self) -> list[Node]:
        """A list's values; what is no list is a list of one."""
        if isinstance(self._node, yaml.SequenceNode):
            return [Node(self.file, each) for each in self._node.value]
        return [self]

    def text(self) -> str:
        """A plain value, as it is written."""
        if not isinstance(self._node, yaml.ScalarNode) or not self._node.value.strip():
            raise self.wrong("here must be a text.")
        return str(self._node.value)

    def texts(self) -> list[str]:
        """A text, or a list of them."""
        found = [each.text() for each in self.items()]
        if not found:
            raise self.wrong("this list is empty.")
        return found

    def number(self, low: float, high: float = float("inf")) -> float:
        """A number in this range."""
        try:
            value = float(self.text())
        except ValueError:
            raise self.wrong(f"{self.text()!r} is no number.") from None
        if not low <= value <= high:
            raise self.wrong(f"{value:g} is out of range: it must be {low:g} to {high:g}.")
        return value

    def plain(self, depth: int = 0) -> Any:
        """All of it without lines, to be shown."""
        if depth > MAX_DEPTH:
            return "…"
        if isinstance(self._node, yaml.MappingNode):
            return {name: value.plain(depth + 1) for name, value in self.entries().items()}
        if isinstance(self._node, yaml.SequenceNode):
            return [each.plain(depth + 1) for each in self.items()]
        return str(self._node.value)


def read(path: Path) -> Node:
    """The whole of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRoutes(str(path), None, f"it cannot be read: {error}") from None
    return parse(text, path.name)


def parse(text: str, file: str = "routes.yaml") -> Node:
    """The whole of a text."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadRoutes(file, mark.line + 1 if mark else None, f"this is not YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise BadRoutes(file, None, f"this is not YAML: {error}") from None
    if node is None:
        raise BadRoutes(file, None, "it is empty.")
    return Node(file, node)


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
