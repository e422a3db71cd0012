"""/v1/cache: what is in the KV cache, why a prompt hits or misses it, and pins.

A key sees and pins only what is cached under its own salt. Statistics and flushing need an admin key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from quire.engine.messages import Changed, Explain, Explained, Flush, PinPrefix, UnpinPrefix
from quire.serve.admin.native import require_admin
from quire.serve.admin.prompt_body import PromptBody, ask_of
from quire.serve.dialects.body import read_body
from quire.serve.http.exchange import Exchange
from quire.serve.residency.models import ModelEngine
from quire.serve.service import Service
from quire.text.model_text import ModelText
from quire.types.errors import InvalidRequest
from quire.types.request import CacheKey, Pin

SHOWN = (
    "num_blocks",
    "num_free_blocks",
    "num_held_blocks",
    "num_cached_blocks",
    "num_window_blocks",
    "num_held_window_blocks",
    "num_cached_window_blocks",
    "num_states",
    "num_held_states",
    "num_checkpoints",
    "num_sessions",
    "queried_tokens",
    "hit_tokens",
)
ENDINGS = {  # why a hit ends where it ends
    "whole": ".",
    "diverged": "; at position {hit} the prompt continues with {given!r}, the cached text with {cached!r}.",
    "evicted": "; the rest was cached and was evicted {ago:.1f} s ago.",
    "other_salt": "; the rest is cached for another key, salt or model.",
    "unseen": "; the rest was never computed, or was evicted long ago.",
    "no_checkpoint": "; {more} more are in the prefix tree, but {kept}.",
    "window_evicted": "; {more} more are in the prefix tree, but blocks of a window before them were evicted.",
}


class PinBody(PromptBody, kw_only=True):
    """A prompt to pin, and for how long."""

    seconds: float | None = None  # None: until it is unpinned
    rank: int = 50


class FlushBody(msgspec.Struct, forbid_unknown_fields=True):
    """The model whose cache to flush."""

    model: str = ""


async def cache_stats(service: Service, exchange: Exchange) -> None:
    """For each model, KV blocks by state and how many prompt tokens were found."""
    require_admin(exchange)
    found = await service.models.counters_by_model()
    shown = {model: {name: getattr(counters, name) for name in SHOWN} for model, counters in found.items()}
    await exchange.respond(msgspec.json.encode({"models": shown}))


async def explain_prompt(service: Service, exchange: Exchange) -> None:
    """How much of a prompt is cached, and why not more."""
    body = await service.parse_body(exchange, lambda data: read_body(data, PromptBody))
    async with _prompt(service, exchange, body) as (engine, tokens, key):
        why: Explained = await engine.ask(Explain(tokens, key))
    if why.cause == "other_salt" and not exchange.key.admin:
        why = replace(why, cause="unseen")  # keys must not learn about each other's prompts
    await exchange.respond(msgspec.json.encode(explanation(why, engine.model_text)))


async def pin_prompt(service: Service, exchange: Exchange) -> None:
    """Pin what is cached of a prompt."""
    body = await service.parse_body(exchange, lambda data: read_body(data, PinBody))
    async with _prompt(service, exchange, body) as (engine, tokens, key):
        kept: Changed = await engine.ask(PinPrefix(tokens, key, Pin(0, len(tokens), body.rank, body.seconds)))
    await exchange.respond(msgspec.json.encode({"num_tokens": len(tokens), "num_pinned": kept.count}))


async def unpin_prompt(service: Service, exchange: Exchange) -> None:
    """Remove the pins from what is cached of a prompt."""
    body = await service.parse_body(exchange, lambda data: read_body(data, PromptBody))
    async with _prompt(service, exchange, body) as (engine, tokens, key):
        lifted: Changed = await engine.ask(UnpinPrefix(tokens, key))
    await exchange.respond(msgspec.json.encode({"num_tokens": len(tokens), "num_unpinned_blocks": lifted.count}))


async def flush_cache(service: Service, exchange: Exchange) -> None:
    """Drop everything that is cached."""
    require_admin(exchange)
    body = await service.parse_body(exchange, lambda data: read_body(data or b"{}", FlushBody))
    async with service.models.using(body.model) as (_, engine):
        dropped: Changed = await engine.ask(Flush())
    await exchange.respond(msgspec.json.encode({"num_flushed_blocks": dropped.count}))


@asynccontextmanager
async def _prompt(
    service: Service, exchange: Exchange, body: PromptBody
) -> AsyncIterator[tuple[ModelEngine, tuple[int, ...], CacheKey]]:
    """The engine, which stays loaded meanwhile; the prompt's tokens, and its cache key."""
    limits = service.limits(exchange.key)
    ask = await service.run_sized(exchange, lambda: ask_of(body, service.dialects, limits))
    async with service.models.using(ask.model) as (_, engine):
        prompts = await service.prompts(exchange, ask, engine.model_text, engine.client.ready.max_context)
        if len(prompts) != 1 or not prompts[0].tokens:
            raise InvalidRequest("Give one prompt of at least one token.", field="prompt")
        engine.check_tokens(prompts[0].tokens, "prompt")
        yield engine, prompts[0].tokens, exchange.key.cache_key(ask.terms.salt)


def explanation(why: Explained, model_text: ModelText) -> dict[str, Any]:
    """Return an explanation as the endpoint's reply, with a sentence."""
    texts = {name: None if token is None else model_text.decode([token]) for name, token in _ends(why).items()}
    sentence = f"{why.num_hit} of {why.num_tokens} tokens are cached" + ENDINGS[why.cause].format(
        hit=why.num_hit,
        ago=why.evicted_ago or 0.0,
        more=why.num_in_tree - why.num_hit,
        kept=f"the last state that was kept is at position {why.num_hit}" if why.num_hit else "no state was kept there",
        **texts,
    )
    reply: dict[str, Any] = {"num_tokens": why.num_tokens, "num_hit": why.num_hit, "num_in_tree": why.num_in_tree}
    reply |= {"cause": why.cause, "explanation": sentence}
    reply |= {f"{name}_token": token for name, token in _ends(why).items() if token is not None}
    return reply | ({} if why.evicted_ago is None else {"evicted_seconds_ago": why.evicted_ago})


def _ends(why: Explained) -> dict[str, int | None]:
    return {"given": why.given, "cached": why.cached}
