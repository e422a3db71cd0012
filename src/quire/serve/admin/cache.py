"""/v1/cache: what is in the KV cache, why a prompt hits or misses it, and what is to stay there.

A key sees and pins what is cached under its own salt. What concerns all is for keys that are admins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from quire.engine.messages import Changed, Counters, Explain, Explained, Flush, PinPrefix, Snapshot, UnpinPrefix
from quire.serve.admin.native import only_admin
from quire.serve.admin.prompt_body import PromptBody, ask_of
from quire.serve.dialects.body import read_body
from quire.serve.http.exchange import Exchange
from quire.serve.residency.engines import Engine
from quire.serve.service import Service
from quire.text.model_text import ModelText
from quire.types.errors import InvalidRequest
from quire.types.request import CacheKey, Pin

SHOWN = ("num_blocks", "num_free_blocks", "num_held_blocks", "num_cached_blocks", "num_sessions")
ENDINGS = {  # why a hit ends where it ends
    "whole": ".",
    "diverged": "; at position {hit} the prompt goes on with {given!r}, the cache with {cached!r}.",
    "evicted": "; what follows was cached, and had to go {ago:.1f} s ago.",
    "other_salt": "; what follows is cached for another key, salt or model.",
    "unseen": "; what follows was not computed before, or is long forgotten.",
}


class PinBody(PromptBody, kw_only=True):
    """What is to stay, and for how long."""

    seconds: float | None = None  # None: until it is unpinned
    rank: int = 50


class FlushBody(msgspec.Struct, forbid_unknown_fields=True):
    """Of which model."""

    model: str = ""


async def stats(service: Service, exchange: Exchange) -> None:
    """Blocks by state, and how much was found, of each model."""
    only_admin(exchange)
    said = {}
    for model in service.models:
        if model.engine is not None:
            counters: Counters = await model.engine.ask(Snapshot())
            said[model.name] = {name: getattr(counters, name) for name in (*SHOWN, "queried_tokens", "hit_tokens")}
    await exchange.respond(msgspec.json.encode({"models": said}))


async def explain(service: Service, exchange: Exchange) -> None:
    """Why would this prompt hit or miss?"""
    given = await service.parsed(exchange, lambda body: read_body(body, PromptBody))
    async with _prompt(service, exchange, given) as (engine, tokens, key):
        why: Explained = await engine.ask(Explain(tokens, key))
    if why.cause == "other_salt" and not exchange.key.admin:
        why = replace(why, cause="unseen")  # what others have asked is nobody's business
    await exchange.respond(msgspec.json.encode(_explanation(why, engine.model_text)))


async def pin(service: Service, exchange: Exchange) -> None:
    """Keep what is cached of a prompt."""
    given = await service.parsed(exchange, lambda body: read_body(body, PinBody))
    async with _prompt(service, exchange, given) as (engine, tokens, key):
        kept: Changed = await engine.ask(PinPrefix(tokens, key, Pin(0, len(tokens), given.rank, given.seconds)))
    await exchange.respond(msgspec.json.encode({"num_tokens": len(tokens), "num_pinned": kept.count}))


async def unpin(service: Service, exchange: Exchange) -> None:
    """Keep it no longer than other things."""
    given = await service.parsed(exchange, lambda body: read_body(body, PromptBody))
    async with _prompt(service, exchange, given) as (engine, tokens, key):
        lifted: Changed = await engine.ask(UnpinPrefix(tokens, key))
    await exchange.respond(msgspec.json.encode({"num_tokens": len(tokens), "num_unpinned_blocks": lifted.count}))


async def flush(service: Service, exchange: Exchange) -> None:
    """Forget everything."""
    only_admin(exchange)
    given = await service.parsed(exchange, lambda body: read_body(body or b"{}", FlushBody))
    async with service.models.using(given.model) as (_, engine):
        dropped: Changed = await engine.ask(Flush())
    await exchange.respond(msgspec.json.encode({"num_flushed_blocks": dropped.count}))


@asynccontextmanager
async def _prompt(
    service: Service, exchange: Exchange, given: PromptBody
) -> AsyncIterator[tuple[Engine, tuple[int, ...], CacheKey]]:
    """The engine, which stays meanwhile; the prompt, and whose it is."""
    limits = service.limits(exchange.key)
    ask = await service.beside(exchange, lambda: ask_of(given, service.dialects, limits))
    async with service.models.using(ask.model) as (_, engine):
        prompts = await service.prompts(exchange, ask, engine.model_text, engine.client.ready.max_context)
        if len(prompts) != 1 or not prompts[0].tokens:
            raise InvalidRequest("Give one prompt of at least one token.", field="prompt")
        engine.check_tokens(prompts[0].tokens, "prompt")
        yield engine, prompts[0].tokens, exchange.key.cache_key(ask.terms.salt)


def _explanation(why: Explained, model_text: ModelText) -> dict[str, Any]:
    spelled = {name: None if token is None else model_text.decode([token]) for name, token in _ends(why).items()}
    sentence = f"{why.num_hit} of {why.num_tokens} tokens are cached" + ENDINGS[why.cause].format(
        hit=why.num_hit, ago=why.evicted_ago or 0.0, **spelled
    )
    said = {"num_tokens": why.num_tokens, "num_hit": why.num_hit, "cause": why.cause, "explanation": sentence}
    said |= {f"{name}_token": token for name, token in _ends(why).items() if token is not None}
    return said | ({} if why.evicted_ago is None else {"evicted_seconds_ago": why.evicted_ago})


def _ends(why: Explained) -> dict[str, int | None]:
    return {"given": why.given, "cached": why.cached}
