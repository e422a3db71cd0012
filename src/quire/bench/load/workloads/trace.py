"""Recorded requests, replayed at their recorded times with their recorded lengths.

A request log has lengths and shared prefixes but no text: then each token is replaced by a word, and equal prefixes by
equal words, so prompts share as much as the recorded ones did.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.bench.load.random_words import WORDS, random_words
from quire.bench.load.session import LoadRequest, Session, chat_message
from quire.report.trace import CHAT, COMPLETIONS, TracedRequest, read_trace
from quire.types.errors import InvalidRequest

DEFAULT_OUTPUT = 64  # tokens, if the trace has no length
REPLAYED_PATHS = (CHAT, COMPLETIONS)


@dataclass(frozen=True, slots=True)
class RecordedSessions:
    """`speed` 2 replays twice as fast."""

    file: str = ""
    speed: float = 1.0

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield the recorded requests in the order of their times."""
        if not self.file:
            raise InvalidRequest("The workload trace needs a file: use --workload trace=FILE.", field="workload")
        for request in read_trace(Path(self.file)).requests:
            yield Session((_replayed(request, rng),), start=(request.time or 0.0) / self.speed)


def _replayed(request: TracedRequest, rng: random.Random) -> LoadRequest:
    max_tokens = request.num_output or request.max_tokens or DEFAULT_OUTPUT
    if request.body is not None and request.path in REPLAYED_PATHS:
        body = dict(request.body)
        if request.num_output:
            body |= {"max_tokens": request.num_output, "ignore_eos": True}
            body.pop("max_completion_tokens", None)
        return LoadRequest(max_tokens=max_tokens, path=request.path, body=body)
    if request.text is not None:
        content = request.text
    elif request.tokens is not None:
        content = " ".join(WORDS[mark % len(WORDS)] for mark in request.tokens)
    else:
        content = random_words(rng, request.num_prompt or 1)
    return LoadRequest((chat_message("user", content),), max_tokens)


WORKLOAD = RecordedSessions
