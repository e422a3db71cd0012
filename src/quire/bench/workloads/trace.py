"""Requests that were recorded, sent again at their own times: one JSON object a line, with `time` and `body`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.bench.asks import Ask, Session
from quire.types.errors import InvalidRequest

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Trace:
    """`speed` 2 sends them twice as fast."""

    file: str = ""
    speed: float = 1.0

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """As many as there are, in the order of their times. Chance has no part in it."""
        if not self.file:
            raise InvalidRequest("Which trace? Write --workload trace=FILE.", field="workload")
        found = [json.loads(line) for line in Path(self.file).read_text().splitlines() if line.strip()]
        found.sort(key=lambda each: each["time"])
        for each in found:
            ask = Ask(path=each.get("path", CHAT), body=each["body"])
            yield Session((ask,), at=(each["time"] - found[0]["time"]) / self.speed)


WORKLOAD = Trace
