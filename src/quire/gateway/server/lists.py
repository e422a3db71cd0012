"""Lists of models: the answers of all upstreams, joined."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from quire.gateway.http.errors import UpstreamFailed
from quire.gateway.relay.errors import NoUpstream
from quire.gateway.server.service import GatewayService
from quire.gateway.upstreams.upstream import Upstream
from quire.serve.http.exchange import Exchange

PASSED = ("anthropic-version", "accept")
LISTS, NAMES = ("data", "models"), ("id", "name", "model")


async def list_fleet_models(service: GatewayService, exchange: Exchange) -> None:
    """The models of all upstreams, and the aliases."""
    asked = [each for each in service.upstreams if each.is_ready and each.speaks(exchange.dialect.name)]
    answers = await asyncio.gather(*(_ask(upstream, exchange) for upstream in asked))
    found = [answer for answer in answers if answer is not None]
    absent = _absent(service, exchange)
    if absent and not found:
        found = [{"object": "list", LISTS[0]: []}]
    if not found:
        raise NoUpstream("", len(service.upstreams), "")
    joined = found[0]
    key = next((name for name in LISTS if isinstance(joined.get(name), list)), LISTS[0])
    entries: dict[str, Any] = {}
    for answer in found:
        for entry in answer.get(key) or ():
            entries.setdefault(_name(entry), entry)
    for entry in absent:
        entries.setdefault(entry["id"], entry)
    if exchange.record.path != "/api/ps":
        for alias, model in service.router.aliases().items():
            like: dict[str, Any] = entries.get(model) or next(iter(entries.values()), {})
            entries.setdefault(alias, {**like, **{name: alias for name in NAMES if name in like}})
    joined[key] = list(entries.values())
    if "last_id" in joined and entries:
        joined |= {"first_id": next(iter(entries)), "last_id": next(reversed(entries))}
    await exchange.respond(msgspec.json.encode(joined))


def _absent(service: GatewayService, exchange: Exchange) -> list[dict[str, Any]]:
    """Return the expected models as entries of OpenAI's list. They may have no upstream now."""
    if exchange.record.path != "/v1/models" or exchange.dialect.name != "openai":
        return []
    facts = {"object": "model", "created": 0, "owned_by": "quire", "loaded": False}
    return [{"id": model, **facts} for model in service.upstreams.waiting.expected]


async def _ask(upstream: Upstream, exchange: Exchange) -> dict[str, Any] | None:
    headers = {name: value for name in PASSED if (value := exchange.header(name)) is not None}
    query = exchange.scope["query_string"].decode("latin-1")
    target = exchange.record.path + (f"?{query}" if query else "")
    try:
        status, body, _ = await upstream.pool.fetch("GET", target, headers | upstream.headers())
        answer = msgspec.json.decode(body) if status == 200 else None
    except (UpstreamFailed, msgspec.MsgspecError):
        return None
    return answer if isinstance(answer, dict) else None


def _name(entry: Any) -> str:
    return next((str(entry[name]) for name in NAMES if name in entry), "") if isinstance(entry, dict) else str(entry)
