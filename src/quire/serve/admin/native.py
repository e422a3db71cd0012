"""Our own endpoints: health, version, settings, metrics, and tokenization."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from urllib.parse import parse_qsl

import msgspec

from quire import __version__
from quire.config import settings
from quire.engine.messages import EngineDied
from quire.observe.exposition import expose
from quire.observe.metrics import engine_samples
from quire.serve.admin.prompt_body import PromptBody, ask_of
from quire.serve.dialects.body import read_body
from quire.serve.dialects.contract import Dialect
from quire.serve.errors import Forbidden, ModelLoading, ShuttingDown
from quire.serve.http.exchange import Exchange
from quire.serve.residency.contract import RETRY_SECONDS
from quire.serve.service import Service
from quire.types.errors import InvalidRequest, QuireError

BUNDLE = "application/x-quire-text"


def error_body(error: QuireError) -> bytes:
    """An error in the format of our own endpoints."""
    facts = {"code": error.code, "message": error.public, "field": getattr(error, "field", None)}
    return msgspec.json.encode({"error": {name: fact for name, fact in facts.items() if fact is not None}})


NATIVE = Dialect("native", endpoints=(), error=error_body, headers={}, schemas={})


class TokenizeBody(PromptBody, kw_only=True):
    """The fields of vLLM (prompt) and of llama.cpp (content)."""

    content: str | None = None
    add_special_tokens: bool | None = None  # of a text prompt; None: as the model's tokenizer does


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens to decode."""

    tokens: list[int]
    model: str = ""


async def root(service: Service, exchange: Exchange) -> None:
    """The server is running: Ollama's clients ask this first."""
    await exchange.respond(b"Quire is running", "text/plain")


async def health(service: Service, exchange: Exchange) -> None:
    """The process is alive. Lists engines that do not run or do not respond."""
    troubles = {model.name: f"The engine {model.trouble}." for model in service.models if model.trouble is not None}
    reply = {"status": "degraded", "models": troubles} if troubles else {"status": "ok"}
    await exchange.respond(msgspec.json.encode(reply))


async def ready(service: Service, exchange: Exchange) -> None:
    """The models of the command line have been loaded, and all engines run."""
    if service.is_draining:
        raise ShuttingDown
    status = service.models.status
    if status.error is not None:
        raise status.error
    for model in status.models:
        if model.is_named and not model.is_loaded and not status.is_started:
            raise ModelLoading(model.name, RETRY_SECONDS)
        if model.trouble is not None:
            raise EngineDied(f"The engine of {model.name} {model.trouble}.")
    await exchange.respond(b'{"status":"ready"}')


async def show_version(service: Service, exchange: Exchange) -> None:
    """The version of Quire."""
    await exchange.respond(msgspec.json.encode({"version": __version__}))


async def props(service: Service, exchange: Exchange) -> None:
    """Settings without secrets, limits, models and memory."""
    require_admin(exchange)
    config = service.config
    values = {each.name: getattr(getattr(config, each.section), each.name) for each in settings() if not each.secret}
    reply = {
        "version": __version__,
        "dialects": [dialect.name for dialect in service.dialects],
        "models": await service.models.engines(),
        "memory": await service.models.memory(),
        "routes": service.router.describe(),
        "limits": asdict(service.limits(exchange.key)),
        "settings": values,
    }
    await exchange.respond(msgspec.json.encode(reply))


async def metrics(service: Service, exchange: Exchange) -> None:
    """Metrics, in the format that the scraper accepts. An engine that does not answer is left out."""
    if service.config.serve.metrics_for == "admins":
        require_admin(exchange)
    samples = service.samples()
    for model, counters in (await service.models.counters()).items():
        values = {name: getattr(counters, name) for name in (*counters.__slots__, "kv_usage")}
        samples += engine_samples(model, values)
    body, content_type = await asyncio.to_thread(expose, samples, exchange.header("accept") or "")
    await exchange.respond(body, content_type)


async def tokenize(service: Service, exchange: Exchange) -> None:
    """The tokens of a prompt."""
    body = await service.parse_body(exchange, lambda data: read_body(data, TokenizeBody))
    if body.content is not None:
        if body.prompt is not None:
            raise InvalidRequest("Give one of prompt and content.", field="content")
        body.prompt = body.content
    async with service.models.using(body.model) as (_, engine):
        model_text = engine.model_text
        if isinstance(body.prompt, str) and body.add_special_tokens is not None:
            encode = partial(model_text.encode, body.prompt, framed=body.add_special_tokens)
            tokens = await service.run_sized(exchange, encode)
        else:
            limits = service.limits(exchange.key)
            ask = await service.run_sized(exchange, lambda: ask_of(body, service.dialects, limits))
            prompt = (await service.prompts(exchange, ask, engine.model_text))[0]
            tokens = prompt.tokens if prompt.source is None else prompt.source.tokens
        reply = {"count": len(tokens), "max_model_len": engine.client.ready.max_context, "tokens": tokens}
    await exchange.respond(await service.run_sized(exchange, partial(msgspec.json.encode, reply)))


async def show_text(service: Service, exchange: Exchange) -> None:
    """The files that a model's tokenizer and template are read from, packed for a gateway."""
    require_admin(exchange)
    name = dict(parse_qsl(exchange.scope["query_string"].decode("latin-1"))).get("model", "")
    async with service.models.using(name) as (_, engine):
        model_text = engine.model_text
        digest = await asyncio.to_thread(lambda: model_text.digest)
    if not digest:
        raise InvalidRequest(f"The model {name} was not read from files.", field="model")
    await exchange.respond(model_text.bundle, BUNDLE, more={"x-quire-digest": digest})


async def detokenize(service: Service, exchange: Exchange) -> None:
    """The text of tokens, including special ones, in the fields of vLLM and of llama.cpp."""
    body = await service.parse_body(exchange, lambda data: read_body(data, DetokenizeBody))
    async with service.models.using(body.model) as (_, engine):
        engine.check_tokens(body.tokens, "tokens")
        text = await service.run_sized(exchange, lambda: engine.model_text.decode(body.tokens))
    await exchange.respond(msgspec.json.encode({"prompt": text, "content": text}))


def require_admin(exchange: Exchange) -> None:
    """Refuse API keys that are not admins."""
    if not exchange.key.admin:
        raise Forbidden(f"The key {exchange.key.name} may not do this: use a key with admin = true.")
