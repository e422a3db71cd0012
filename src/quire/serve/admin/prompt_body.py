"""The prompt in the body of our own endpoints: a text, token ids, messages, or a whole request of any dialect.

With a whole request (path and body), one can ask about exactly what an application sends.
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
    """A message with text only."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class ClientRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request as a client would send it."""

    path: str
    body: dict[str, Any]


class PromptBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Exactly one of prompt, messages and request."""

    model: str = ""
    prompt: str | list[int] | None = None
    messages: list[PlainMessage] | None = None
    request: ClientRequest | None = None
    salt: str = ""  # as in a request


def ask_of(body: PromptBody, dialects: Sequence[Dialect], limits: RequestLimits) -> Ask:
    """The request that the body describes."""
    if sum(part is not None for part in (body.prompt, body.messages, body.request)) != 1:
        raise InvalidRequest("Give one of prompt, messages and request.", field="prompt")
    terms = Terms(salt=body.salt)
    if body.prompt is not None:
        prompt = body.prompt if isinstance(body.prompt, str) else tuple(body.prompt)
        return CompletionRequest(body.model, (prompt,), terms=terms)
    if body.messages is not None:
        messages = tuple(Message(message.role, message.content) for message in body.messages)
        return ChatRequest(body.model, messages, terms=terms)
    assert body.request is not None
    for endpoint in (endpoint for dialect in dialects for endpoint in dialect.endpoints):
        if isinstance(endpoint, GenerateEndpoint) and endpoint.path == body.request.path:
            return drop_forbidden_tools(endpoint.decode(msgspec.json.encode(body.request.body), limits).ask)
    raise InvalidRequest(f"{body.request.path} is not an endpoint that generates text.", field="request.path")
