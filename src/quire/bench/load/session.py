"""What is sent: requests, sessions of requests, and the contract of a workload."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ChatMessage = Mapping[str, Any]
TokenIds = Sequence[int]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request: chat messages, token ids, or a recorded body."""

    messages: tuple[ChatMessage, ...] = ()
    max_tokens: int = 1
    extra_fields: Mapping[str, Any] = field(default_factory=dict)  # added to the body, such as a schema
    expects_json: bool = False  # the answer must be JSON, and may end when the JSON is complete
    path: str = ""  # of a recorded request: where it was sent
    body: Mapping[str, Any] | None = None  # of a recorded request: replaces the fields above
    prompt: TokenIds | None = None  # replaces `messages`


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of one client. Each is sent when the previous one has been answered."""

    requests: tuple[LoadRequest, ...]
    start: float | None = None  # seconds after the first session, of a recorded one


class SessionSource(Protocol):
    """A workload: a frozen dataclass whose fields are its options. Equal seeds give equal sessions."""

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions in the order in which they are sent; most workloads never end."""
        ...


def single_request(content: str, max_tokens: int) -> Session:
    """Return a session of one user message."""
    return Session((LoadRequest((chat_message("user", content),), max_tokens),))


def chat_message(role: str, content: str) -> ChatMessage:
    """Return a message in OpenAI's form."""
    return {"role": role, "content": content}
