"""Continuing a stream by its text, for upstreams that are not Quire: another one is asked to continue what was sent.

The text may differ from that of an undisturbed run, because a text can be cut into tokens in several ways: hence only
with the setting `resume_text`. The events of the second upstream get the id of the first.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from quire.gateway.relay.request import AnswerProgress, RelayedRequest
from quire.types.chat import ChatRequest, CompletionRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ID = re.compile(rb'("id": ?)"[^"]*"')
ROLE = re.compile(rb'"role": ?"assistant", ?')


def can_continue_text(request: RelayedRequest) -> bool:
    """Can the answer of this request be continued by its text? One choice of plain text can."""
    ask, path = request.ask, request.exchange.record.path
    if ask is None or ask.sampling.n != 1 or ask.sampling.logprobs is not None or ask.constraint is not None:
        return False
    if isinstance(ask, ChatRequest):
        return path == CHAT and not ask.tools and not ask.continue_last
    is_plain = isinstance(ask, CompletionRequest) and len(ask.prompts) == 1 and isinstance(ask.prompts[0], str)
    return path == COMPLETIONS and is_plain and not ask.echo


def continued_body(request: RelayedRequest, progress: AnswerProgress) -> bytes:
    """The body that asks an upstream to continue the text that the client has."""
    fields: dict[str, Any] = msgspec.json.decode(request.body)
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(fields.get(name), int):
            fields[name] = max(1, fields[name] - progress.num_tokens)
    if request.exchange.record.path == COMPLETIONS:
        fields["prompt"] = fields["prompt"] + progress.text
    else:
        answer = {"role": "assistant", "content": progress.text}
        fields |= {"messages": [*fields["messages"], answer], "continue_final_message": True}
        fields["add_generation_prompt"] = False
    return msgspec.json.encode(fields)


class ContinuedEvents:
    """Rewrites the events of further upstreams, so that they look like those of the first."""

    def __init__(self) -> None:
        self._id: bytes | None = None
        self.is_continuation = False

    def rewrite(self, events: bytes) -> bytes:
        """The events as the client should see them."""
        found = ID.search(events)
        if self._id is None:
            self._id = found[0] if found else None
        if not self.is_continuation or self._id is None:
            return events
        return ROLE.sub(b"", ID.sub(self._id.replace(b"\\", b"\\\\"), events))
