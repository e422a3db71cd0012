"""The handler of all requests for text: a decoded body becomes engine requests, their output becomes the response.

The status of a stream is sent with its first token, or after HEAD_SECONDS: a request that is refused or fails early
gets the status of its error. If the client disconnects, its requests are cancelled.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from quire.observe.record import Record
from quire.serve.access.keys import ApiKey
from quire.serve.dialects.contract import (
    AnswerWriter,
    CountEndpoint,
    GenerateEndpoint,
    Reply,
)
from quire.serve.errors import ShuttingDown
from quire.serve.generation.feed import Feed
from quire.serve.generation.response_state import ResponseState
from quire.serve.generation.routing import with_fallback
from quire.serve.http.exchange import Exchange
from quire.serve.relayed.frames import USAGE
from quire.serve.relayed.journal import Journal, resumed_requests
from quire.serve.relayed.note import NO_NOTE, RelayNote
from quire.serve.relayed.stream import FramedStream, PlainStream, StreamForm
from quire.serve.residency.models import ModelEngine, ModelIdentity
from quire.serve.service import Service
from quire.text.answer_collector import AnswerCollector
from quire.text.output_format import output_format_of
from quire.text.prompts import Prompt, drop_forbidden_tools, fill_defaults
from quire.types.answer import Usage
from quire.types.chat import Answered, Ask, ChatRequest, CompletionRequest
from quire.types.errors import ContextTooLong, QuireError
from quire.types.request import Constraint, GenerateRequest, SamplingParams

HEAD_SECONDS = 5.0  # that a stream's status waits for the first token


async def generate(service: Service, exchange: Exchange, endpoint: GenerateEndpoint) -> None:
    """Handle a request that runs the model, or only loads or unloads it."""
    record = exchange.record
    decoded = await service.decoded(exchange, endpoint.decode)
    ask = _relayed(exchange.note, drop_forbidden_tools(decoded.ask))
    record.client_id, record.decoded = ask.terms.id, time.monotonic()
    record.operation = "chat" if isinstance(ask, ChatRequest) else "text_completion"
    record.sampling, record.streams = ask.sampling, ask.stream
    if _has_no_prompt(ask) and ask.terms.keep_alive == 0:
        model = await service.models.unload(ask.model)
        await _respond_empty(exchange, decoded.writer(_reply(ask, model)), ask.stream)
        return
    with service.quotas.running(exchange.key, record.decoded), _disconnection(exchange) as disconnected:
        work = partial(_answer, service, exchange, decoded.writer, disconnected)
        choice = await service.route(exchange, ask)
        await with_fallback(choice, exchange, ask, work, partial(_refund, service, exchange))


def _relayed(note: RelayNote, ask: Ask) -> Ask:
    """The request with what a gateway has changed: the model behind an alias, and the time that is left."""
    if note.elapsed and ask.terms.timeout is not None:
        ask = replace(ask, terms=replace(ask.terms, timeout=ask.terms.timeout - note.elapsed))
    return replace(ask, model=note.model) if note.model else ask


async def _answer(
    service: Service,
    exchange: Exchange,
    writer_of: Callable[[Reply], AnswerWriter],
    disconnected: asyncio.Future[None],
    ask: Ask,
) -> None:
    """Answer a request with the model that it names."""
    record = exchange.record
    async with service.models.using(ask.model, ask.terms.keep_alive, disconnected) as (model, engine):
        record.model = model.name
        reply = _reply(ask, model, exchange.note)
        if _has_no_prompt(ask):
            await _respond_empty(exchange, writer_of(reply), ask.stream)
            return
        ask = fill_defaults(ask, engine.model_text.defaults)
        record.sampling, reply = ask.sampling, reply._replace(sampling=ask.sampling)
        prompts = await service.prompts(exchange, ask, engine.model_text, engine.client.ready.max_context)
        if service.config.serve.log_prompts:
            record.prompt = "\n".join(prompt.text or engine.model_text.decode(prompt.tokens) for prompt in prompts)
        record.charged = sum(prompt.num_read for prompt in prompts)
        service.quotas.charge(exchange.key, record.charged)
        constraints = await service.constraints(ask, prompts, engine.model_text)
        id = secrets.token_hex(12) if exchange.note.reply_id else reply.id  # another attempt of it may still be here
        requests = [
            _request(f"{id}-{place}", prompt, ask, engine, exchange.key, constraint)
            for place, (prompt, constraint) in enumerate(zip(prompts, constraints, strict=True))
        ]
        if exchange.note.prefix_source is not None:
            requests[0] = replace(requests[0], prefix_source=exchange.note.prefix_source)
        _record_requests(record, requests, service.config.serve.request_log is not None)
        wakes_late = not ask.stream and not ask.sampling.stop
        feed = Feed(engine.client, requests, service.meters.of(model.name).gap.add, wakes_late)
        disconnected.add_done_callback(lambda watch: None if watch.cancelled() else feed.abandon())
        form = replace(output_format_of(ask, prompts, engine.model_text), call_seed=reply.id)
        running = _Running(feed, ResponseState(prompts, requests, form, feed.stop), writer_of(reply))
        try:
            with _recorded(exchange, feed, running.state):
                feed.submit(_resume(exchange.note, requests, running) if exchange.note.is_begun else None)
                record.submitted = time.monotonic()
                if ask.stream:
                    await _stream(exchange, running, _stream_form(exchange.note, requests, running.writer))
                else:
                    await _respond_whole(exchange, running)
        finally:
            service.quotas.charge(exchange.key, record.output_tokens)


def _refund(service: Service, exchange: Exchange) -> None:
    """Give back what the prompt of a failed attempt was charged."""
    service.quotas.charge(exchange.key, -exchange.record.charged)
    exchange.record.charged = 0


async def count(service: Service, exchange: Exchange, endpoint: CountEndpoint) -> None:
    """Respond with the number of tokens of a prompt."""
    counted = await service.decoded(exchange, endpoint.decode)

    async def answer(ask: Ask) -> None:
        async with service.models.using(ask.model) as (model, engine):
            exchange.record.model = model.name
            prompts = await service.prompts(exchange, ask, engine.model_text)
        await exchange.respond(endpoint.encode(sum(prompt.num_read for prompt in prompts)))

    await with_fallback(await service.route(exchange, counted), exchange, counted, answer, lambda: None)


class _Running(NamedTuple):
    """An answer while it is generated and written."""

    feed: Feed
    state: ResponseState
    writer: AnswerWriter

    def usage(self) -> Usage:
        """What it has cost so far."""
        return self.state.usage(self.feed.first_token)


def _resume(note: RelayNote, requests: Sequence[GenerateRequest], running: _Running) -> list[GenerateRequest]:
    """Restore the state of an answer that another server began; return the requests that are left of it."""
    scored = {request.id for request in requests if request.sampling.prompt_logprobs is not None}
    outputs = Journal(requests).decode(note.journal)
    with_tokens = {output.request_id for output in outputs if output.tokens}
    # The engine reports the scores of a prompt again, all of them, unless there is a token behind it.
    outputs = [output for output in outputs if output.request_id not in scored - with_tokens]
    running.writer.open(running.usage())
    running.writer.write(running.state.take(outputs))  # the client has these bytes
    return resumed_requests(requests, outputs, running.state)


def _stream_form(note: RelayNote, requests: Sequence[GenerateRequest], writer: AnswerWriter) -> StreamForm:
    return FramedStream(writer.content_type, Journal(requests)) if note.in_frames else PlainStream(writer.content_type)


async def _stream(exchange: Exchange, running: _Running, form: StreamForm) -> None:
    """Write events as they come. Output that arrives while the socket is blocked is written as one piece."""
    feed, state, writer = running
    outputs = [] if state.is_over else await feed.take(HEAD_SECONDS)
    _set_timing(exchange, feed)
    await exchange.begin(
        200, form.content_type, {"cache-control": "no-cache", "x-accel-buffering": "no", **form.headers}
    )
    try:
        events = state.take(outputs)
        head = b"" if exchange.note.is_begun else writer.open(running.usage())
        while True:
            piece = head + writer.write(events)
            if state.is_over:
                await exchange.write(form.last(piece + writer.close(running.usage()), running.usage()), more=False)
                return
            if sent := form.piece(piece, outputs):
                await exchange.write(sent)
            outputs = await feed.take()
            head, events = b"", state.take(outputs)
    except QuireError as error:
        exchange.record.fail(error)
        await exchange.write(form.failure(writer.fail(error), error), more=False)
    except asyncio.CancelledError:  # the server is shutting down
        exchange.record.fail(ShuttingDown())
        await exchange.write(form.failure(writer.fail(ShuttingDown()), ShuttingDown()), more=False)


async def _respond_whole(exchange: Exchange, running: _Running) -> None:
    feed, state, writer = running
    collector = AnswerCollector()
    while not state.is_over:
        collector.take(state.take(await feed.take()))
    _set_timing(exchange, feed)
    usage = running.usage()
    if exchange.note.in_frames:
        exchange.headers[USAGE] = f"{usage.prompt},{usage.cached},{usage.output}"
    await exchange.respond(writer.whole(Answered(collector.choices(), usage)))


async def _respond_empty(exchange: Exchange, writer: AnswerWriter, stream: bool) -> None:
    usage = Usage(0, 0, 0, 0.0, 0.0)
    if stream:
        await exchange.respond(writer.open(usage) + writer.close(usage), writer.content_type)
    else:
        await exchange.respond(writer.whole(Answered((), usage)))


def _has_no_prompt(ask: Ask) -> bool:
    """Does it only load or unload the model?"""
    return isinstance(ask, CompletionRequest) and not ask.prompts


def _reply(ask: Ask, model: ModelIdentity, note: RelayNote = NO_NOTE) -> Reply:
    id, created = note.reply_id or secrets.token_hex(12), note.created or time.time()
    return Reply(id, created, ask.model or model.name, model.fingerprint)


@contextmanager
def _disconnection(exchange: Exchange) -> Iterator[asyncio.Future[None]]:
    """A future that is done when the client disconnects."""
    disconnected = asyncio.ensure_future(exchange.gone())
    try:
        yield disconnected
    finally:
        disconnected.cancel()


@contextmanager
def _recorded(exchange: Exchange, feed: Feed, state: ResponseState) -> Iterator[None]:
    """On the way out, whatever happens: cancel what still runs, and complete the record."""
    record = exchange.record
    try:
        yield
    finally:
        feed.cancel()
        usage = state.usage(feed.first_token)
        record.first_token, record.waited, record.endings = feed.first_token, state.waited, state.endings
        record.prompt_tokens, record.cached_tokens, record.output_tokens = usage.prompt, usage.cached, usage.output
        record.forced_tokens, record.reasoning_tokens = usage.forced, usage.reasoning
        record.drafted_tokens, record.accepted_drafts = usage.drafted, usage.accepted


def _record_requests(record: Record, requests: Sequence[GenerateRequest], with_tokens: bool) -> None:
    """Add the requests to the record that observers get; their tokens only if the request log is on."""
    first = requests[0]
    record.form = None if first.constraint is None else str(first.constraint.kind)
    if with_tokens:
        record.prompts, record.salt = tuple(request.prompt for request in requests), first.cache.salt
        record.session = first.session


def _set_timing(exchange: Exchange, feed: Feed) -> None:
    submitted = exchange.record.submitted
    if feed.first_token is not None and submitted is not None:
        exchange.timing = {"prepare": submitted - exchange.record.arrived, "first-token": feed.first_token - submitted}


def _request(
    id: str, prompt: Prompt, ask: Ask, engine: ModelEngine, key: ApiKey, constraint: Constraint | None
) -> GenerateRequest:
    """Make the engine's request, with the priority, share and cache salt of the API key.

    A prompt that can never fit is refused here: a busy engine would need a step to refuse it.
    """
    terms, cache = ask.terms, key.cache_key(ask.terms.salt)
    max_context = engine.client.ready.max_context
    limit = max_context if terms.max_context is None else min(max_context, terms.max_context)
    if len(prompt.tokens) >= limit:
        raise ContextTooLong(len(prompt.tokens), limit, of_request=limit < max_context)
    return GenerateRequest(
        id,
        prompt.tokens,
        ask.sampling if limit == max_context else _with_limit(ask.sampling, limit - len(prompt.tokens)),
        engine.model_text.eos_ids + prompt.ends,
        priority=terms.priority if key.priority is None else max(terms.priority, key.priority),
        key=key.name,
        weight=key.weight,
        deadline=None if terms.timeout is None else time.monotonic() + terms.timeout,
        cache=cache,
        session=None if terms.session is None else f"{cache.salt}/{terms.session}",
        pins=prompt.pins,
        constraint=constraint,
        predicted=prompt.predicted,
        source=prompt.source,
        speech=prompt.rules,
    )


def _with_limit(sampling: SamplingParams, max_tokens: int) -> SamplingParams:
    """Limit the answer to `max_tokens`: that is what the request's own context limit leaves."""
    is_shorter = (sampling.max_tokens or max_tokens + 1) <= max_tokens
    return sampling if is_shorter else replace(sampling, max_tokens=max_tokens)
