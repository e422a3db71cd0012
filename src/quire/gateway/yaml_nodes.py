"""YAML with line numbers: an error in a file is reported with its line, before the file is used."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from quire.config import BadSetting

MAX_DEPTH = 8  # of values shown in /props: a file may refer to itself


class BadRoutes(BadSetting):
    """The routes file is invalid."""

    code = "bad_routes"
    setting = "routes"

    def __init__(self, place: str, line: int | None, problem: str) -> None:
        at = place if line is None else f"{place}, line {line}"
        super().__init__(f"{at}: {problem}", field=self.setting)
        self.line = line


class BadFleet(BadRoutes):
    """The fleet file is invalid."""

    code = "bad_fleet"
    setting = "fleet"


class YamlNode:
    """A value in the file, and its position."""

    def __init__(self, file: str, node: yaml.Node, error: type[BadRoutes] = BadRoutes) -> None:
        self.file = file
        self._node = node
        self._error = error

    @property
    def line(self) -> int:
        """Counted from 1."""
        return int(self._node.start_mark.line) + 1

    def error(self, problem: str) -> BadRoutes:
        """An error about this value, to be raised."""
        return self._error(self.file, self.line, problem)

    @property
    def is_mapping(self) -> bool:
        """Is it a mapping?"""
        return isinstance(self._node, yaml.MappingNode)

    def entries(self, known: Collection[str] = ()) -> dict[str, YamlNode]:
        """A mapping's values by key. With `known`, other keys are errors."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error(f"expected a mapping{f' of {_listed(known)}' if known else ''}.")
        found: dict[str, YamlNode] = {}
        for key, value in self._node.value:
            key_node = YamlNode(self.file, key, self._error)
            name = key_node.text()
            if known and name not in known:
                raise key_node.error(f"there is no {name!r} here: choose from {_listed(known)}.")
            if name in found:
                raise key_node.error(f"{name!r} appears twice.")
            found[name] = YamlNode(self.file, value, self._error)
        return found

    def items(self) -> list[YamlNode]:
        """A list's values. Any other value counts as a list of one."""
        if isinstance(self._node, yaml.SequenceNode):
            return [YamlNode(self.file, each, self._error) for each in self._node.value]
        return [self]

    def text(self) -> str:
        """A scalar, as it is written."""
        if not isinstance(self._node, yaml.ScalarNode) or not self._node.value.strip():
            raise self.error("expected a text.")
        return str(self._node.value)

    def texts(self) -> list[str]:
        """A text, or a list of them."""
        found = [each.text() for each in self.items()]
        if not found:
            raise self.error("this list is empty.")
        return found

    def number(self, low: float, high: float = float("inf")) -> float:
        """A number in this range."""
        try:
            value = float(self.text())
        except ValueError:
            raise self.error(f"{self.text()!r} is not a number.") from None
        if not low <= value <= high:
            raise self.error(f"{value:g} is out of range: it must be {low:g} to {high:g}.")
        return value

    def plain(self, depth: int = 0) -> Any:
        """The value without line numbers, for /props."""
        if depth > MAX_DEPTH:
            return "…"
        if isinstance(self._node, yaml.MappingNode):
            return {name: value.plain(depth + 1) for name, value in self.entries().items()}
        if isinstance(self._node, yaml.SequenceNode):
            return [each.plain(depth + 1) for each in self.items()]
        return str(self._node.value)


def read_yaml(path: Path, kind: type[BadRoutes] = BadRoutes) -> YamlNode:
    """The root value of a file. `kind`: of the errors in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise kind(str(path), None, f"it cannot be read: {error}") from None
    return parse_yaml(text, path.name, kind)


def parse_yaml(text: str, file: str = "routes.yaml", kind: type[BadRoutes] = BadRoutes) -> YamlNode:
    """The root value of a text."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise kind(file, mark.line + 1 if mark else None, f"this is not YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise kind(file, None, f"this is not YAML: {error}") from None
    if node is None:
        raise kind(file, None, "it is empty.")
    return YamlNode(file, node, kind)


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
