"""Requests that were recorded, sent again at their own times, as long as they were.

A request log tells lengths and which prompts begin alike, not what they said: then words stand for its tokens, the same
word wherever the beginning is the same, so prefixes are shared as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.bench.asks import Ask, Session, says
from quire.bench.words import WORDS, text
from quire.report.trace import CHAT, COMPLETIONS, TracedRequest, read_trace
from quire.types.errors import InvalidRequest

ASSUMED_OUTPUT = 64  # tokens, if nothing is known
KNOWN = (CHAT, COMPLETIONS)


@dataclass(frozen=True, slots=True)
class Trace:
    """`speed` 2 sends them twice as fast."""

    file: str = ""
    speed: float = 1.0

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """As many as there are, in the order of their times."""
        if not self.file:
            raise InvalidRequest("Which trace? Write --workload trace=FILE.", field="workload")
        for request in read_trace(Path(self.file)).requests:
            yield Session((_ask(request, chance),), at=(request.time or 0.0) / self.speed)


def _ask(request: TracedRequest, chance: random.Random) -> Ask:
    max_tokens = request.num_output or request.max_tokens or ASSUMED_OUTPUT
    if request.body is not None and request.path in KNOWN:
        body = dict(request.body)
        if request.num_output:
            body |= {"max_tokens": request.num_output, "ignore_eos": True}
            body.pop("max_completion_tokens", None)
        return Ask(max_tokens=max_tokens, path=request.path, body=body)
    if request.text is not None:
        content = request.text
    elif request.tokens is not None:
        content = " ".join(WORDS[mark % len(WORDS)] for mark in request.tokens)
    else:
        content = text(chance, request.num_prompt or 1)
    return Ask((says("user", content),), max_tokens)


WORKLOAD = Trace
