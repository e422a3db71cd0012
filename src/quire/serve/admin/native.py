"""Endpoints of our own: life, version, settings, metrics, and tokens without a model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec

from quire import __version__
from quire.config import settings
from quire.engine.messages import EngineDied, Snapshot
from quire.observe.metrics import CONTENT_TYPE, engine_samples, render
from quire.serve.admin.prompt_body import PromptBody, ask_of
from quire.serve.dialects.body import read_body
from quire.serve.dialects.contract import Dialect
from quire.serve.errors import EngineBusy, Forbidden, ModelLoading, ShuttingDown
from quire.serve.http.exchange import Exchange
from quire.serve.residency.engines import Engine
from quire.serve.residency.residents import RETRY_SECONDS
from quire.serve.service import Service
from quire.types.errors import InvalidRequest, QuireError


def error_body(error: QuireError) -> bytes:
    """What went wrong, plainly."""
    facts = {"code": error.code, "message": error.public, "field": getattr(error, "field", None)}
    return msgspec.json.encode({"error": {name: fact for name, fact in facts.items() if fact is not None}})


NATIVE = Dialect("native", endpoints=(), error=error_body, headers={}, schemas={})


class TokenizeBody(PromptBody, kw_only=True):
    """As vLLM (prompt) and llama.cpp (content) have it."""

    content: str | None = None
    add_special_tokens: bool | None = None  # None: as the model has it; of a prompt that is text


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens to be spelled."""

    tokens: list[int]
    model: str = ""


async def root(service: Service, exchange: Exchange) -> None:
    """Someone is here: what Ollama's clients ask first."""
    await exchange.respond(b"Quire is running", "text/plain")


async def health(service: Service, exchange: Exchange) -> None:
    """The process is alive. Engines that do not run or respond are named."""
    troubles = {
        model.name: f"The engine {model.engine.client.trouble}."
        for model in service.models
        if model.engine is not None and not model.is_ready
    }
    said = {"status": "degraded", "models": troubles} if troubles else {"status": "ok"}
    await exchange.respond(msgspec.json.encode(said))


async def ready(service: Service, exchange: Exchange) -> None:
    """Models that were named are loaded, and engines run; others are loaded when they are asked for."""
    if service.is_draining:
        raise ShuttingDown
    if service.models.error is not None:
        raise service.models.error
    for model in service.models:
        if model.engine is None and model.is_named and not service.models.is_loaded:
            raise ModelLoading(model.name, RETRY_SECONDS)
        if model.engine is not None and not model.is_ready:
            raise EngineDied(f"The engine of {model.name} {model.engine.client.trouble}.")
    await exchange.respond(b'{"status":"ready"}')


async def version(service: Service, exchange: Exchange) -> None:
    """Which Quire this is."""
    await exchange.respond(msgspec.json.encode({"version": __version__}))


async def props(service: Service, exchange: Exchange) -> None:
    """Settings, without secrets; limits; and what the models are."""
    only_admin(exchange)
    await service.models.refresh()
    config = service.config
    values = {each.name: getattr(getattr(config, each.section), each.name) for each in settings() if not each.secret}
    models = {model.name: None if model.engine is None else _facts(model.engine) for model in service.models}
    said = {
        "version": __version__,
        "dialects": [dialect.name for dialect in service.dialects],
        "models": models,
        "memory": service.models.memory(),
        "routes": service.router.describe(),
        "limits": asdict(service.limits(exchange.key)),
        "settings": values,
    }
    await exchange.respond(msgspec.json.encode(said))


def _facts(engine: Engine) -> dict[str, Any]:
    defaults = engine.model_text.defaults
    told = {name: {"value": value, "source": defaults.sources[name]} for name, value in defaults.values.items()}
    return asdict(engine.client.ready) | {"sampling_defaults": told}


async def metrics(service: Service, exchange: Exchange) -> None:
    """In Prometheus' text format. An engine that does not answer is left out."""
    if service.config.serve.metrics_for == "admins":
        only_admin(exchange)
    samples = service.samples()
    for model in service.models:
        if model.engine is not None and model.slot is not None and model.slot.first is model:  # each engine once
            with suppress(EngineBusy, EngineDied):
                counters = await model.engine.ask(Snapshot())
                samples += engine_samples(model.name, {name: getattr(counters, name) for name in counters.__slots__})
    await exchange.respond(render(samples).encode(), CONTENT_TYPE)


async def tokenize(service: Service, exchange: Exchange) -> None:
    """A prompt's tokens."""
    given = await service.parsed(exchange, lambda body: read_body(body, TokenizeBody))
    if given.content is not None:
        if given.prompt is not None:
            raise InvalidRequest("Give one of prompt and content.", field="content")
        given.prompt = given.content
    async with service.models.using(given.model) as (_, engine):
        model_text = engine.model_text
        if isinstance(given.prompt, str) and given.add_special_tokens is not None:
            encode = partial(model_text.encode, given.prompt, framed=given.add_special_tokens)
            tokens = await service.beside(exchange, encode)
        else:
            limits = service.limits(exchange.key)
            ask = await service.beside(exchange, lambda: ask_of(given, service.dialects, limits))
            tokens = (await service.prompts(exchange, ask, engine.model_text))[0].tokens
        said = {"count": len(tokens), "max_model_len": engine.client.ready.max_context, "tokens": tokens}
    await exchange.respond(await service.beside(exchange, partial(msgspec.json.encode, said)))


async def detokenize(service: Service, exchange: Exchange) -> None:
    """The text of tokens, special ones by their names; under the names that vLLM and llama.cpp have for it."""
    given = await service.parsed(exchange, lambda body: read_body(body, DetokenizeBody))
    async with service.models.using(given.model) as (_, engine):
        engine.check_tokens(given.tokens, "tokens")
        text = await service.beside(exchange, lambda: engine.model_text.decode(given.tokens))
    await exchange.respond(msgspec.json.encode({"prompt": text, "content": text}))


def only_admin(exchange: Exchange) -> None:
    """Refuse keys that may not see or change what belongs to all."""
    if not exchange.key.admin:
        raise Forbidden(f"The key {exchange.key.name} may not do this: it needs a key with admin = true.")
