"""A server without sockets, clock or model: the real client's requests are decoded, canned events are the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import httpx2
import openai

from quire.serve.dialects.contract import (
    AnswerWriter,
    CountEndpoint,
    Decoded,
    GenerateEndpoint,
    ListEndpoint,
    Reply,
    RequestLimits,
    ShowEndpoint,
)
from quire.serve.dialects.openai import dialect as chat
from quire.serve.dialects.responses import dialect as responses
from quire.text.answer_collector import AnswerCollector
from quire.types.answer import Usage
from quire.types.chat import (
    Answered,
    Ask,
    Event,
    ModelCard,
    ScoredToken,
)
from quire.types.errors import QuireError

REPLY = Reply("0123abcd", 1_700_000_000.25, "tiny", "fp_1")
USAGE = Usage(prompt=11, cached=8, output=7, first_token_seconds=0.1, seconds=2.0, forced=2, reasoning=3, kept=1)
CARDS = (ModelCard("tiny", created=5.5, max_context=2048), ModelCard("hf.co/org/repo:q4_0"))
PATHS = {endpoint.path: endpoint for dialect in (chat.DIALECT, responses.DIALECT) for endpoint in dialect.endpoints}


def scored(text: str, logprob: float | None, *others: tuple[str, float]) -> ScoredToken:
    top = tuple(ScoredToken(100 + place, word, word.encode(), value) for place, (word, value) in enumerate(others))
    return ScoredToken(7, text, text.encode(), logprob, top)


class Canned:
    """Answers every request with the same events. `asked` is what the last request was decoded into."""

    def __init__(self, *events: Event, failure: QuireError | None = None) -> None:
        self.events = events
        self.failure = failure  # in place of the end of a stream
        self.asked: Ask | None = None
        transport = httpx2.MockTransport(self.answer)
        self.client = openai.OpenAI(
            base_url="http://quire/v1", api_key="none", max_retries=0, http_client=httpx2.Client(transport=transport)
        )

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        try:
            match PATHS.get(path) or PATHS["/v1/models/{name}"]:
                case GenerateEndpoint(_, decode):
                    return self._generate(decode(request.read(), RequestLimits()))
                case CountEndpoint(_, decode, encode):
                    self.asked = decode(request.read(), RequestLimits())
                    return _json(encode(42))
                case ListEndpoint(_, encode):
                    return _json(encode(CARDS))
                case ShowEndpoint(_, encode):
                    named = {card.name: card for card in CARDS}
                    return _json(encode(named[path.removeprefix("/v1/models/")]))
        except QuireError as error:
            return _json(chat.DIALECT.error(error), error.status)
        raise AssertionError(path)

    def _generate(self, decoded: Decoded) -> httpx2.Response:
        self.asked = decoded.ask
        writer = decoded.writer(REPLY)
        if decoded.ask.stream:
            pieces = self._stream(writer)
            return httpx2.Response(200, headers={"content-type": writer.content_type}, content=pieces)
        return _json(writer.whole(gathered(self.events)))

    def _stream(self, writer: AnswerWriter) -> Iterator[bytes]:
        yield writer.open(USAGE)
        yield writer.write(self.events[:1])
        yield writer.write(self.events[1:])
        yield writer.fail(self.failure) if self.failure is not None else writer.close(USAGE)


def _json(body: bytes, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=body)


def gathered(events: Sequence[Event]) -> Answered:
    """What the events amount to."""
    gathering = AnswerCollector()
    gathering.take(events)
    return Answered(gathering.choices(), USAGE)
