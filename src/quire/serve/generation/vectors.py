"""The handler of all requests whose answers are vectors or scores."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial

from quire.engine.messages import Ready
from quire.serve.access.keys import ApiKey
from quire.serve.dialects.contract import DecodedVectors, Reply, VectorEndpoint
from quire.serve.generation.feed import Feed
from quire.serve.http.exchange import Exchange
from quire.serve.residency.models import ModelEngine
from quire.serve.service import Service
from quire.text.vectors import EncodedText, VectorFacts, encode_texts, finish_vectors
from quire.types.output import Finished
from quire.types.request import GenerateRequest, SamplingParams
from quire.types.vectors import VectorAnswer, VectorRequest

NOTHING_SAMPLED = SamplingParams(temperature=0, max_tokens=1)


async def make_vectors(service: Service, exchange: Exchange, endpoint: VectorEndpoint) -> None:
    """Handle a request: encode its texts, compute them all together, encode the answer."""
    record = exchange.record
    decoded: DecodedVectors = await service.decoded(exchange, endpoint.decode)
    ask = decoded.ask
    record.client_id, record.decoded = ask.terms.id, time.monotonic()
    record.operation = "embeddings"
    gone = asyncio.ensure_future(exchange.gone())
    try:
        with service.quotas.running(exchange.key, record.decoded):
            async with service.models.using(ask.model, ask.terms.keep_alive, gone) as (model, engine):
                record.model, loaded = model.name, time.monotonic()
                reply = Reply(secrets.token_hex(12), time.time(), ask.model or model.name, model.fingerprint)
                answer = await _answer(service, exchange, ask, engine, gone)
                seconds, load_seconds = time.monotonic() - record.decoded, loaded - record.decoded
                timed = answer._replace(seconds=seconds, load_seconds=load_seconds)
                await exchange.respond(decoded.encode(reply, timed))
    finally:
        gone.cancel()


async def _answer(
    service: Service, exchange: Exchange, ask: VectorRequest, engine: ModelEngine, gone: asyncio.Future[None]
) -> VectorAnswer:
    record, text = exchange.record, engine.model_text
    facts = _facts(engine.client.ready)
    encoded = await service.run_sized(exchange, partial(encode_texts, ask, text, facts))
    record.prompt_tokens = record.charged = sum(len(each.tokens) for each in encoded)
    service.quotas.charge(exchange.key, record.charged)
    name = secrets.token_hex(8)
    requests = [_request(f"{name}-{n}", each, ask, exchange.key) for n, each in enumerate(encoded)]
    if not requests:
        return finish_vectors(ask, [], [], text.embedding)
    feed = Feed(engine.client, requests, lambda seconds, count: None, wakes_late=True)
    gone.add_done_callback(lambda watch: None if watch.cancelled() else feed.abandon())
    found: dict[str, bytes] = {}
    try:
        feed.submit()
        record.submitted = time.monotonic()
        while len(found) < len(requests):
            found |= {each.request_id: each.vector for each in await feed.take() if isinstance(each, Finished)}
    finally:
        feed.cancel()
    return finish_vectors(ask, [found[each.id] for each in requests], encoded, text.embedding)


def _facts(ready: Ready) -> VectorFacts:
    """What the engine has said about its model."""
    return VectorFacts(ready.kinds, ready.max_context, ready.vector_size)


def _request(id: str, each: EncodedText, ask: VectorRequest, key: ApiKey) -> GenerateRequest:
    terms = ask.terms
    return GenerateRequest(
        id,
        each.tokens,
        NOTHING_SAMPLED,
        priority=terms.priority if key.priority is None else max(terms.priority, key.priority),
        key=key.name,
        weight=key.weight,
        deadline=None if terms.timeout is None else time.monotonic() + terms.timeout,
        cache=key.cache_key(terms.salt),
        kind=each.kind,
        second_at=each.second_at,
    )
