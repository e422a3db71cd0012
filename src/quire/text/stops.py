"""Finds stop strings in a text that arrives in pieces.

One automaton (Aho-Corasick) reads every character once, whatever the number and length of the stop strings. Its state
is the longest suffix of the text that begins a stop string: exactly what must be held back.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from quire.types.errors import InvalidRequest


@dataclass(slots=True)
class _Node:
    depth: int
    next: dict[str, _Node] = field(default_factory=dict)
    fallback: _Node | None = None  # the longest proper suffix of this node's text that is a node too
    stop: str | None = None  # the longest stop string that ends here


class StopStrings:
    """The compiled set. Not changed after construction, so streams may share it."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise InvalidRequest("A stop string must be text of at least one character.", field="stop")
        self.root = _Node(0)
        for stop in stops:
            node = self.root
            for char in stop:
                node = node.next.setdefault(char, _Node(node.depth + 1))
            node.stop = stop
        self._link()
        # Most text has no character that begins a stop string: a native search skips it.
        self.first = re.compile("[" + "".join(map(re.escape, self.root.next)) + "]") if stops else None

    def _link(self) -> None:
        queue = deque([self.root])
        while queue:
            node = queue.popleft()
            for char, child in node.next.items():
                queue.append(child)
                child.fallback = self.step(node.fallback, char) if node.fallback else self.root
                if child.stop is None:
                    child.stop = child.fallback.stop

    def step(self, node: _Node, char: str) -> _Node:
        """The state after one more character."""
        while char not in node.next:
            if node.fallback is None:
                return node
            node = node.fallback
        return node.next[char]


class StopScanner:
    """One stream. `feed` returns text that cannot be part of a stop string any more.

    The stop string that ends first wins and, of those that end together, the longest. So the result does not depend on
    how the text is cut into pieces.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._node = stops.root
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str, may_stop: bool = True) -> str:
        """Return the text that is certain. Without `may_stop`, a stop string that ends within `text` does not count."""
        if self.found is not None or not text:
            return ""
        if self._stops.first is None:
            return text
        node, place, root = self._node, 0, self._stops.root
        while place < len(text):
            if node is root:
                begin = self._stops.first.search(text, place)
                if begin is None:
                    break
                place = begin.start()
            node = self._stops.step(node, text[place])
            place += 1
            if may_stop and node.stop is not None:
                return self._cut(self._held + text[:place], node.stop)
        self._node = node
        text = self._held + text
        self._held = text[len(text) - node.depth :]
        return text[: len(text) - node.depth]

    def finish(self) -> str:
        """Return the held text at the end: it is not a stop string."""
        held, self._held, self._node = self._held, "", self._stops.root
        return held

    def _cut(self, text: str, stop: str) -> str:
        self.found, self._held, self._node = stop, "", self._stops.root
        return text[: len(text) - len(stop)]
