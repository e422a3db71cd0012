"""A prompt in a body of our own endpoints: a text, token ids, messages, or a whole request of any dialect.

The last is how to ask about what an application really sends: its path and its body, as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from quire.serve.dialects.contract import Dialect, GenerateEndpoint, RequestLimits
from quire.text.prompts import drop_forbidden_tools
from quire.types.chat import Ask, ChatRequest, CompletionRequest, Terms
from quire.types.errors import InvalidRequest
from quire.types.message import Message


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message that is text."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Dialogue(msgspec.Struct, forbid_unknown_fields=True):
    """A request as a client would send it."""

    path: str
    body: dict[str, Any]


class PromptBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Exactly one of prompt, messages and request."""

    model: str = ""
    prompt: str | list[int] | None = None
    messages: list[PlainMessage] | None = None
    request: Dialogue | None = None
    salt: str = ""  # as a request would have it


def ask_of(given: PromptBody, dialects: Sequence[Dialect], limits: RequestLimits) -> Ask:
    """What is asked about."""
    if sum(part is not None for part in (given.prompt, given.messages, given.request)) != 1:
        raise InvalidRequest("Give one of prompt, messages and request.", field="prompt")
    terms = Terms(salt=given.salt)
    if given.prompt is not None:
        prompt = given.prompt if isinstance(given.prompt, str) else tuple(given.prompt)
        return CompletionRequest(given.model, (prompt,), terms=terms)
    if given.messages is not None:
        messages = tuple(Message(message.role, message.content) for message in given.messages)
        return ChatRequest(given.model, messages, terms=terms)
    assert given.request is not None
    for endpoint in (endpoint for dialect in dialects for endpoint in dialect.endpoints):
        if isinstance(endpoint, GenerateEndpoint) and endpoint.path == given.request.path:
            return drop_forbidden_tools(endpoint.decode(msgspec.json.encode(given.request.body), limits).ask)
    raise InvalidRequest(f"No model is run at {given.request.path}.", field="request.path")
