"""A server with a canned answer: a dialect's own functions, and nothing of ours between them and a real client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.serve.dialects.contract import (
    CountEndpoint,
    Decoded,
    Dialect,
    GenerateEndpoint,
    ListEndpoint,
    Reply,
    RequestLimits,
    ShowEndpoint,
    VersionEndpoint,
)
from quire.text.answer_collector import AnswerCollector
from quire.types.answer import Usage
from quire.types.chat import (
    Answered,
    Ask,
    ChatRequest,
    Event,
    ModelCard,
)
from quire.types.errors import InvalidRequest, QuireError

USAGE = Usage(prompt=100, cached=60, output=7, first_token_seconds=0.25, seconds=1.0, reasoning=2, kept=30)


def gather(events: Sequence[Event], usage: Usage = USAGE) -> Answered:
    """What the server makes of events for a client that does not stream."""
    gathering = AnswerCollector()
    gathering.take(events)
    return Answered(gathering.choices(), usage)


@dataclass
class Canned:
    """Answers every request with the same events, and remembers what was asked."""

    dialect: Dialect
    events: Sequence[Event] = ()
    usage: Usage = USAGE
    cards: tuple[ModelCard, ...] = ()
    num_tokens: int = 42
    fails: QuireError | None = None  # after the events of a stream
    asked: list[Ask | ChatRequest] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    def answer(self, path: str, body: bytes) -> tuple[int, str, list[bytes]]:
        """Status, content type, and the body in the pieces in which it would be sent."""
        try:
            endpoint = next(each for each in self.dialect.endpoints if each.path == path)
            if body:
                self.bodies.append(json.loads(body))
            match endpoint:
                case GenerateEndpoint():
                    return self._generate(endpoint.decode(body, RequestLimits()))
                case CountEndpoint():
                    self.asked.append(endpoint.decode(body, RequestLimits()))
                    whole = endpoint.encode(self.num_tokens)
                case ListEndpoint():
                    whole = endpoint.encode([card for card in self.cards if card.is_loaded or not endpoint.only_loaded])
                case ShowEndpoint():
                    assert endpoint.name_of
                    name = endpoint.name_of(body)
                    whole = endpoint.encode(next(card for card in self.cards if card.name == name))
                case VersionEndpoint():
                    whole = endpoint.encode("1.2.3")
            return 200, "application/json", [whole]
        except QuireError as error:
            return error.status, "application/json", [self.dialect.error(error)]

    def _generate(self, decoded: Decoded) -> tuple[int, str, list[bytes]]:
        self.asked.append(decoded.ask)
        writer = decoded.writer(Reply("0123", 1_700_000_000.5, decoded.ask.model))
        is_empty = not isinstance(decoded.ask, ChatRequest) and not decoded.ask.prompts
        if decoded.ask.stream:
            pieces = [writer.open(self.usage), *(writer.write([event]) for event in self.events)]
            pieces.append(writer.fail(self.fails) if self.fails else writer.close(self.usage))
            return 200, writer.content_type, [piece for piece in pieces if piece]
        answered = Answered((), Usage(0, 0, 0, 0.0, 0.0)) if is_empty else gather(self.events, self.usage)
        return 200, "application/json", [writer.whole(answered)]

    def handler(self, response: Any) -> Callable[[Any], Any]:
        """For the MockTransport of a client; `response` is the Response of its HTTP library."""

        def handle(request: Any) -> Any:
            status, kind, pieces = self.answer(request.url.path, request.content)
            return response(status, headers={"content-type": kind}, content=_sync(pieces))

        return handle

    def async_handler(self, response: Any) -> Callable[[Any], Any]:
        async def handle(request: Any) -> Any:
            status, kind, pieces = self.answer(request.url.path, request.content)
            return response(status, headers={"content-type": kind}, content=_async(pieces))

        return handle


def _sync(pieces: list[bytes]) -> Iterator[bytes]:
    yield from pieces


async def _async(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def refusal(
    decode: Callable[[bytes, RequestLimits], Any], body: Any, limits: RequestLimits | None = None
) -> InvalidRequest | None:
    """The error that a body is refused with; None if it is taken."""
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        decode(encoded, limits or RequestLimits())
    except InvalidRequest as error:
        return error
    return None
