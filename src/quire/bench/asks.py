"""What is asked: sessions of one request or of several that follow each other, and the contract of a workload."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    messages: tuple[Message, ...] = ()
    max_tokens: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)  # fields of its body besides, such as a schema
    wants_json: bool = False  # the answer must be JSON, and may end when it is
    path: str = ""  # of a request that was recorded: where it was sent, and
    body: Mapping[str, Any] | None = None  # all of it, instead of the above


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of one client: each is sent when the one before is answered."""

    asks: tuple[Ask, ...]
    at: float | None = None  # seconds after the first session's, of a recorded one


class Workload(Protocol):
    """A frozen dataclass whose fields are its options. Sessions may be endless; the same chance makes the same ones."""

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """In the order in which they are sent."""
        ...


def one(content: str, max_tokens: int) -> Session:
    """A single question."""
    return Session((Ask((says("user", content),), max_tokens),))


def says(role: str, content: str) -> Message:
    """A message."""
    return {"role": role, "content": content}
