"""Expected models: requests for them wait in a bounded queue while they have no upstream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from quire.gateway.yaml_nodes import YamlNode

OF_EXPECTED = ("wait_seconds", "max_waiting")


@dataclass(frozen=True, slots=True)
class ExpectedModel:
    """A model that may have no upstream for a while, for example because a cluster has scaled it to zero."""

    wait_seconds: float = 300.0  # longest wait of a request for an upstream
    max_waiting: int = 1000  # most requests that wait at once; further ones are refused


def read_expected(node: YamlNode) -> dict[str, ExpectedModel]:
    """Read `models: {NAME: {wait_seconds: 300, max_waiting: 1000}}` of a fleet file."""
    found = {}
    for name, each in node.entries().items():
        parts = each.entries(OF_EXPECTED)
        default = ExpectedModel()
        seconds = parts["wait_seconds"].number(0) if "wait_seconds" in parts else default.wait_seconds
        most = int(parts["max_waiting"].number(0)) if "max_waiting" in parts else default.max_waiting
        found[name] = ExpectedModel(seconds, most)
    return found


class WaitingRequests:
    """The requests that wait for an upstream, by model. Used in the event loop's thread."""

    def __init__(self) -> None:
        self.expected: Mapping[str, ExpectedModel] = {}
        self._since: dict[str, dict[int, float]] = {}
        self._numbers = count()

    def seconds_for(self, model: str, default: float) -> float:
        """Return the seconds that a request for this model may wait; 0 if the queue is full."""
        expected = self.expected.get(model)
        if expected is None:
            return default
        return expected.wait_seconds if len(self._since.get(model, ())) < expected.max_waiting else 0.0

    @contextmanager
    def waiting(self, model: str, now: float) -> Iterator[None]:
        """Count a request while it waits."""
        number = next(self._numbers)
        self._since.setdefault(model, {})[number] = now
        try:
            yield
        finally:
            del self._since[model][number]
            if not self._since[model]:
                del self._since[model]  # clients choose the names, so keeping them would grow without bound

    def describe(self, now: float) -> dict[str, dict[str, Any]]:
        """Return, for GET /v1/upstreams, the number of waiting requests and the longest wait of each model."""
        return {
            model: {"num": len(queue), "seconds": round(now - min(queue.values()), 3)}
            for model, queue in self._since.items()
        }
