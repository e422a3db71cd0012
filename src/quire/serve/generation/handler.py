"""The one handler: what a client asks becomes requests of the engine, their news become events, and those an answer.

A stream's status waits for the first token, for a little while: so that a request that is refused or fails early is
told so by its status. A client that goes away takes its requests with it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from quire.observe.record import Record
from quire.serve.access.keys import Key
from quire.serve.dialects.contract import AnswerWriter, CountEndpoint, GenerateEndpoint, Reply
from quire.serve.errors import ShuttingDown
from quire.serve.generation.feed import Feed
from quire.serve.generation.response_state import ResponseState
from quire.serve.generation.routing import with_fallback
from quire.serve.http.exchange import Exchange
from quire.serve.residency.engines import Engine
from quire.serve.residency.model import Model
from quire.serve.service import Service
from quire.text.answer_collector import AnswerCollector
from quire.text.output_format import output_format_of
from quire.text.prompts import Prompt, drop_forbidden_tools, fill_defaults
from quire.types.answer import Usage
from quire.types.chat import Answered, Ask, ChatRequest, CompletionRequest
from quire.types.errors import ContextTooLong, QuireError
from quire.types.request import Constraint, GenerateRequest, SamplingParams

HEAD_PATIENCE = 5.0  # seconds that a stream's status waits for the first token


async def generate(service: Service, exchange: Exchange, endpoint: GenerateEndpoint) -> None:
    """Answer a request that runs the model, or only loads or unloads it."""
    record = exchange.record
    decoded = await service.decoded(exchange, endpoint.decode)
    ask = drop_forbidden_tools(decoded.ask)
    record.client_id, record.decoded = ask.terms.id, time.monotonic()
    record.operation = "chat" if isinstance(ask, ChatRequest) else "text_completion"
    record.sampling, record.streams = ask.sampling, ask.stream
    if _asks_nothing(ask) and ask.terms.keep_alive == 0:
        model = await service.models.unload(ask.model)
        await _say_nothing(exchange, decoded.writer(_reply(ask, model)), ask.stream)
        return
    with service.quotas.running(exchange.key, record.decoded), _watched(exchange) as gone:
        work = partial(_answer, service, exchange, decoded.writer, gone)
        choice = await service.route(exchange, ask)
        await with_fallback(choice, exchange, ask, work, partial(_refund, service, exchange))


async def _answer(
    service: Service,
    exchange: Exchange,
    writer_of: Callable[[Reply], AnswerWriter],
    gone: asyncio.Future[None],
    ask: Ask,
) -> None:
    """By one model."""
    record = exchange.record
    async with service.models.using(ask.model, ask.terms.keep_alive, gone) as (model, engine):
        record.model = model.name
        reply = _reply(ask, model)
        if _asks_nothing(ask):
            await _say_nothing(exchange, writer_of(reply), ask.stream)
            return
        ask = fill_defaults(ask, engine.model_text.defaults)
        record.sampling, reply = ask.sampling, reply._replace(sampling=ask.sampling)
        prompts = await service.prompts(exchange, ask, engine.model_text, engine.client.ready.max_context)
        if service.config.serve.log_prompts:
            record.prompt = "\n".join(prompt.text or "" for prompt in prompts)
        record.charged = sum(len(prompt.tokens) for prompt in prompts)
        service.quotas.charge(exchange.key, record.charged)
        forms = await service.constraints(ask, prompts, engine.model_text)
        requests = [
            _request(f"{reply.id}-{place}", prompt, ask, engine, exchange.key, form)
            for place, (prompt, form) in enumerate(zip(prompts, forms, strict=True))
        ]
        _note(record, requests, service.config.serve.request_log is not None)
        wakes_late = not ask.stream and not ask.sampling.stop
        feed = Feed(engine.client, requests, service.meters.of(model.name).gap.add, wakes_late)
        gone.add_done_callback(lambda watch: None if watch.cancelled() else feed.abandon())
        run = ResponseState(prompts, requests, output_format_of(ask, prompts, engine.model_text), feed.stop)
        try:
            with _followed(exchange, feed, run):
                feed.submit()
                record.submitted = time.monotonic()
                await (_stream if ask.stream else _whole)(exchange, writer_of(reply), feed, run)
        finally:
            service.quotas.charge(exchange.key, record.output_tokens)


def _refund(service: Service, exchange: Exchange) -> None:
    """The prompt of an attempt that came to nothing."""
    service.quotas.charge(exchange.key, -exchange.record.charged)
    exchange.record.charged = 0


async def count(service: Service, exchange: Exchange, endpoint: CountEndpoint) -> None:
    """Answer how many tokens a prompt has."""
    asked = await service.decoded(exchange, endpoint.decode)

    async def answer(ask: Ask) -> None:
        async with service.models.using(ask.model) as (model, engine):
            exchange.record.model = model.name
            prompts = await service.prompts(exchange, ask, engine.model_text)
        await exchange.respond(endpoint.encode(sum(len(prompt.tokens) for prompt in prompts)))

    await with_fallback(await service.route(exchange, asked), exchange, asked, answer, lambda: None)


async def _stream(exchange: Exchange, writer: AnswerWriter, feed: Feed, run: ResponseState) -> None:
    """Write events as they come. Whatever has come while the client did not read is one piece."""
    news = await feed.take(HEAD_PATIENCE)
    _time(exchange, feed)
    await exchange.begin(200, writer.content_type, {"cache-control": "no-cache", "x-accel-buffering": "no"})
    try:
        events = run.take(news)
        head = writer.open(run.usage(feed.first_token))
        while True:
            piece = head + writer.write(events)
            if run.is_over:
                await exchange.write(piece + writer.close(run.usage(feed.first_token)), more=False)
                return
            if piece:
                await exchange.write(piece)
            head, events = b"", run.take(await feed.take())
    except QuireError as error:
        exchange.record.fail(error)
        await exchange.write(writer.fail(error), more=False)
    except asyncio.CancelledError:  # the server ends, and with it this task, whose last words these are
        exchange.record.fail(ShuttingDown())
        await exchange.write(writer.fail(ShuttingDown()), more=False)


async def _whole(exchange: Exchange, writer: AnswerWriter, feed: Feed, run: ResponseState) -> None:
    collector = AnswerCollector()
    while not run.is_over:
        collector.take(run.take(await feed.take()))
    _time(exchange, feed)
    await exchange.respond(writer.whole(Answered(collector.choices(), run.usage(feed.first_token))))


async def _say_nothing(exchange: Exchange, writer: AnswerWriter, stream: bool) -> None:
    usage = Usage(0, 0, 0, 0.0, 0.0)
    if stream:
        await exchange.respond(writer.open(usage) + writer.close(usage), writer.content_type)
    else:
        await exchange.respond(writer.whole(Answered((), usage)))


def _asks_nothing(ask: Ask) -> bool:
    """It is about the model alone."""
    return isinstance(ask, CompletionRequest) and not ask.prompts


def _reply(ask: Ask, model: Model) -> Reply:
    return Reply(secrets.token_hex(12), time.time(), ask.model or model.name, model.fingerprint)


@contextmanager
def _watched(exchange: Exchange) -> Iterator[asyncio.Future[None]]:
    """What is done when the client has gone."""
    gone = asyncio.ensure_future(exchange.gone())
    try:
        yield gone
    finally:
        gone.cancel()


@contextmanager
def _followed(exchange: Exchange, feed: Feed, run: ResponseState) -> Iterator[None]:
    """See to it that nothing runs on for nobody, and that the record is complete, whatever happens."""
    record = exchange.record
    try:
        yield
    finally:
        feed.cancel()
        usage = run.usage(feed.first_token)
        record.first_token, record.waited, record.endings = feed.first_token, run.waited, run.endings
        record.prompt_tokens, record.cached_tokens, record.output_tokens = usage.prompt, usage.cached, usage.output
        record.forced_tokens, record.reasoning_tokens = usage.forced, usage.reasoning


def _note(record: Record, requests: Sequence[GenerateRequest], is_logged: bool) -> None:
    """What observers are told of requests; their tokens only if these are wanted, as marks."""
    first = requests[0]
    record.form = None if first.constraint is None else str(first.constraint.kind)
    if is_logged:
        record.prompts, record.salt = tuple(request.prompt for request in requests), first.cache.salt
        record.session = first.session


def _time(exchange: Exchange, feed: Feed) -> None:
    submitted = exchange.record.submitted
    if feed.first_token is not None and submitted is not None:
        exchange.timing = {"prepare": submitted - exchange.record.arrived, "first-token": feed.first_token - submitted}


def _request(
    id: str, prompt: Prompt, ask: Ask, engine: Engine, key: Key, constraint: Constraint | None
) -> GenerateRequest:
    """What the engine is asked: within what the key allows, and apart from what others have cached.

    A prompt that can never fit is refused here: a busy engine would take a step to say so.
    """
    terms, cache = ask.terms, key.cache_key(ask.terms.salt)
    longest = engine.client.ready.max_context
    limit = longest if terms.max_context is None else min(longest, terms.max_context)
    if len(prompt.tokens) >= limit:
        raise ContextTooLong(len(prompt.tokens), limit, of_request=limit < longest)
    return GenerateRequest(
        id,
        prompt.tokens,
        ask.sampling if limit == longest else _shortened(ask.sampling, limit - len(prompt.tokens)),
        engine.model_text.eos_ids + prompt.ends,
        priority=terms.priority if key.priority is None else max(terms.priority, key.priority),
        key=key.name,
        weight=key.weight,
        deadline=None if terms.timeout is None else time.monotonic() + terms.timeout,
        cache=cache,
        session=None if terms.session is None else f"{cache.salt}/{terms.session}",
        pins=prompt.pins,
        constraint=constraint,
    )


def _shortened(sampling: SamplingParams, room: int) -> SamplingParams:
    """At most `room` tokens of answer: that is what the request's own context limit leaves."""
    return sampling if (sampling.max_tokens or room + 1) <= room else replace(sampling, max_tokens=room)
