"""The handler of recordings: it drives a transcription with the engine's answers, and writes the text."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial

from quire.serve.access.keys import ApiKey
from quire.serve.dialects.contract import DecodedSpeech, SpeechEndpoint
from quire.serve.dialects.openai.replies import EVENT_STREAM
from quire.serve.generation.feed import Feed
from quire.serve.http.exchange import Exchange
from quire.serve.residency.models import ModelEngine
from quire.serve.service import Service
from quire.speech.audio import read_audio
from quire.speech.transcribe import Conversation, transcribe
from quire.types.errors import QuireError
from quire.types.output import Finished
from quire.types.request import GenerateRequest
from quire.types.speech import Segment, SpeechAnswer, SpeechRequest, Transcript


async def answer_speech(service: Service, exchange: Exchange, endpoint: SpeechEndpoint) -> None:
    """Handle a request: decode its recording, transcribe it window by window, write the text."""
    record = exchange.record
    decode = partial(endpoint.decode, exchange.header("content-type"))
    decoded: DecodedSpeech = await service.decoded(exchange, decode)
    record.decoded, record.operation, record.streams = time.monotonic(), "transcription", decoded.streams
    gone = asyncio.ensure_future(exchange.gone())
    try:
        with service.quotas.running(exchange.key, record.decoded):
            async with service.models.using(decoded.model, None, gone) as (model, engine):
                record.model = model.name
                speech = engine.model_text.needed_speech(engine.client.ready.kinds)
                samples = await asyncio.to_thread(read_audio, decoded.audio)
                task = transcribe(speech, samples, decoded.options)
                await _Writing(service, exchange, decoded, engine, gone).run(task)
    finally:
        gone.cancel()


class _Writing:
    """One transcription of one exchange."""

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        decoded: DecodedSpeech,
        engine: ModelEngine,
        gone: asyncio.Future[None],
    ) -> None:
        self._service, self._exchange, self._decoded, self._engine = service, exchange, decoded, engine
        self._gone = gone
        self._name = secrets.token_hex(8)
        self._num_requests = 0

    async def run(self, task: Conversation) -> None:
        """Drive the transcription to its end."""
        answer: SpeechAnswer | None = None
        try:
            while True:
                asked = await asyncio.to_thread(_next, task, answer)  # features of a window take some 50 ms
                answer = None
                if isinstance(asked, Transcript):
                    await self._finish(asked)
                    return
                if isinstance(asked, SpeechRequest):
                    answer = await self._ask(asked)
                elif self._decoded.streams:
                    await self._write(asked)
        except QuireError as error:
            if not self._exchange.has_begun:
                raise
            self._exchange.record.fail(error)
            await self._exchange.write(b"data: " + self._exchange.dialect.error(error) + b"\n\n", more=False)

    async def _write(self, segment: Segment) -> None:
        if not self._exchange.has_begun:
            await self._exchange.begin(200, EVENT_STREAM, {"cache-control": "no-cache", "x-accel-buffering": "no"})
        await self._exchange.write(self._decoded.delta(segment))

    async def _finish(self, found: Transcript) -> None:
        if not self._decoded.streams:
            await self._exchange.respond(self._decoded.whole(found), self._decoded.content_type)
            return
        if not self._exchange.has_begun:
            await self._exchange.begin(200, EVENT_STREAM, {"cache-control": "no-cache"})
        await self._exchange.write(self._decoded.done(found), more=False)

    async def _ask(self, asked: SpeechRequest) -> SpeechAnswer:
        self._num_requests += 1
        request = _request(asked, f"{self._name}-{self._num_requests}", self._exchange.key)
        feed = Feed(self._engine.client, [request], lambda seconds, count: None, wakes_late=True)
        self._gone.add_done_callback(lambda watch: None if watch.cancelled() else feed.abandon())
        record = self._exchange.record
        tokens: list[int] = []
        logprobs: list[float] = []
        rows = b""
        try:
            feed.submit()
            record.submitted = record.submitted or time.monotonic()
            is_over = False
            while not is_over:
                for each in await feed.take():
                    tokens += each.tokens
                    logprobs += [scored.logprob for scored in each.logprobs]
                    if isinstance(each, Finished):
                        is_over, rows = True, each.vector
        finally:
            feed.cancel()
            record.prompt_tokens += len(asked.prompt)
            record.output_tokens += len(tokens)
            self._service.quotas.charge(self._exchange.key, len(asked.prompt) + len(tokens))
        return SpeechAnswer(tuple(tokens), tuple(logprobs), rows)


def _next(task: Conversation, answer: SpeechAnswer | None) -> SpeechRequest | Segment | Transcript:
    """Return what the transcription yields next, or its result."""
    try:
        return task.send(answer)
    except StopIteration as ended:
        found: Transcript = ended.value
        return found


def _request(asked: SpeechRequest, id: str, key: ApiKey) -> GenerateRequest:
    return GenerateRequest(
        id,
        asked.prompt,
        asked.sampling,
        (asked.rules.end,) if asked.rules.end else (),
        priority=key.priority or 0,
        key=key.name,
        weight=key.weight,
        cache=key.cache_key(""),
        source=asked.source,
        speech=asked.rules,
        kind=asked.kind,
    )
