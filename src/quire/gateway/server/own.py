"""The gateway's own endpoints: its health, its upstreams, what keys spend, and where a prompt would go."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from quire import __version__
from quire.gateway.balancers.contract import BalancerChoice
from quire.gateway.http.errors import UpstreamFailed
from quire.gateway.relay.errors import NoUpstream
from quire.gateway.relay.request import RelayedRequest
from quire.gateway.server.service import GatewayService
from quire.gateway.upstreams.joined import Registration
from quire.observe.exposition import expose
from quire.serve.admin.native import require_admin
from quire.serve.admin.prompt_body import PromptBody, ask_of
from quire.serve.dialects.body import read_body
from quire.serve.errors import Forbidden, ShuttingDown
from quire.serve.http.exchange import Exchange
from quire.types.errors import InvalidRequest
from quire.types.transfer import Role

MAX_BODY = 1 << 20
TEXT_SECONDS = 30.0


class JoinBody(msgspec.Struct, forbid_unknown_fields=True):
    """A server that registers itself, or leaves."""

    url: str
    name: str = ""
    kind: str = "auto"
    key: str = ""
    role: str = Role.BOTH


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """An upstream to drain, or to use again."""

    name: str
    drain: bool = True


class GatewayRoute(NamedTuple):
    """One of the gateway's own endpoints."""

    method: str
    path: str
    handle: Callable[[GatewayService, Exchange], Awaitable[None]]
    needs_key: bool = True


async def gateway_root(service: GatewayService, exchange: Exchange) -> None:
    """The gateway is running."""
    await exchange.respond(b"Quire is running", "text/plain")


async def gateway_health(service: GatewayService, exchange: Exchange) -> None:
    """The process is alive."""
    await exchange.respond(b'{"status":"ok"}')


async def gateway_ready(service: GatewayService, exchange: Exchange) -> None:
    """An upstream can answer."""
    if service.is_draining:
        raise ShuttingDown
    now = time.monotonic()
    if not any(each.may_serve(now) for each in service.upstreams):
        raise NoUpstream("", len(service.upstreams), "")
    await exchange.respond(b'{"status":"ready"}')


async def gateway_version(service: GatewayService, exchange: Exchange) -> None:
    """The version of Quire."""
    await exchange.respond(msgspec.json.encode({"version": __version__}))


async def gateway_metrics(service: GatewayService, exchange: Exchange) -> None:
    """Metrics of the gateway; engines have their own."""
    if service.config.serve.metrics_for == "admins":
        require_admin(exchange)
    samples = [*service.meters.samples(), *service.gateway_meters.samples(service.upstreams, time.monotonic())]
    body, content_type = await asyncio.to_thread(expose, samples, exchange.header("accept") or "")
    await exchange.respond(body, content_type)


async def show_upstreams(service: GatewayService, exchange: Exchange) -> None:
    """Every upstream with its state, models, load and cached blocks."""
    require_admin(exchange)
    now = time.monotonic()
    ejected = service.outliers.ejected(now)
    shown = []
    for each in service.upstreams:
        loads = {model: load for model in each.models if (load := service.balance.loads(model).get(each.name))}
        more = {"seconds_ejected": round(ejected.get(each.name, 0.0), 3), "loads": loads}
        shown.append(each.describe(now) | more | {"cached_blocks": service.caches.num_blocks(each.name)})
    waiting = service.upstreams.waiting.describe(now)
    facts = {"balance": service.config.gateway.balance, "problem": service.problem}
    reply = facts | {"upstreams": shown, "waiting": waiting}
    await exchange.respond(msgspec.json.encode(reply))


async def join_fleet(service: GatewayService, exchange: Exchange) -> None:
    """Register a server, or renew its registration."""
    registration = await _registration(service, exchange)
    name = service.joined.join(registration, time.monotonic())
    await exchange.respond(msgspec.json.encode({"name": name, "seconds": service.config.gateway.join_seconds}))


async def leave_fleet(service: GatewayService, exchange: Exchange) -> None:
    """A registered server is about to end: send it no more requests."""
    is_known = service.joined.leave(await _registration(service, exchange))
    await exchange.respond(msgspec.json.encode({"known": is_known}))


async def drain_upstream(service: GatewayService, exchange: Exchange) -> None:
    """Send no more requests to an upstream, or send them again."""
    require_admin(exchange)
    body = read_body(await exchange.body(MAX_BODY, service.config.serve.body_seconds), DrainBody)
    upstream = service.upstreams.get(body.name)
    if upstream is None:
        names = ", ".join(each.name for each in service.upstreams) or "none"
        raise InvalidRequest(f"There is no upstream {body.name!r}: there are {names}.", field="name")
    upstream.is_draining = body.drain
    await exchange.respond(msgspec.json.encode({"name": body.name, "num_open": upstream.pool.num_busy}))


async def show_spend(service: GatewayService, exchange: Exchange) -> None:
    """What API keys have spent: an admin sees all keys, others their own."""
    own = exchange.key
    keys = {key.name: key for key in service.keys} if own.admin and service.keys else {own.name: own}
    await exchange.respond(msgspec.json.encode({"keys": service.ledger.report(keys, time.time())}))


async def explain_fleet(service: GatewayService, exchange: Exchange) -> None:
    """Where a prompt would go and why, with an estimate for every upstream."""
    serve = service.config.serve
    data = await exchange.body(int(serve.max_body_mb * 1e6), serve.body_seconds)
    body = read_body(data, PromptBody)
    ask = ask_of(body, service.dialects, service.reader.limits)
    request = RelayedRequest(exchange, exchange.record.path, data, "native", service.upstreams.resolve(ask.model))
    request.ask, request.session = ask, ask.terms.session or ask.terms.user
    request.expected_output = min(ask.sampling.max_tokens or 0, 1024)
    request.cache_key, request.num_tokens = exchange.key.cache_key(ask.terms.salt), len(data) // 4
    async with asyncio.timeout(TEXT_SECONDS):
        await service.texts.wait(request.model)
    await service.reader.encode(request)
    now = time.monotonic()
    chosen = service.balance.choose(request, now)
    estimates = service.balance.estimates(request, now)
    reply = {
        "model": request.model,
        "num_tokens": request.num_tokens,
        "is_encoded": bool(request.prompts),
        "balance": service.config.gateway.balance,
        "chosen": None if chosen is None else chosen.upstream.name,
        "reason": "no upstream is available." if chosen is None else chosen.choice.reason,
        "prefix_source": None if chosen is None or chosen.source is None else msgspec.to_builtins(chosen.source),
        "upstreams": [_estimate(service, name, estimate, now) for name, estimate in estimates.items()],
    }
    await exchange.respond(msgspec.json.encode(reply))


def _estimate(service: GatewayService, name: str, estimate: BalancerChoice | None, now: float) -> dict[str, Any]:
    upstream = service.upstreams.get(name)
    if estimate is None:
        why = "is gone" if upstream is None else upstream.problem or f"is {upstream.describe(now)['state']}"
        return {"name": name, "available": False, "reason": why}
    return {
        "name": name,
        "available": True,
        "num_cached": estimate.num_cached,
        "first_token_seconds": round(estimate.first_token_seconds, 6),
        "end_seconds": round(estimate.end_seconds, 6),
        "reason": estimate.reason,
    }


async def fleet_cache_stats(service: GatewayService, exchange: Exchange) -> None:
    """The cache of every Quire upstream."""
    require_admin(exchange)
    asked = [each for each in service.upstreams if each.is_quire and each.is_ready]
    found = await asyncio.gather(*(_fetch(service, each.name, "GET", "/v1/cache") for each in asked))
    shown = {each.name: answer for each, answer in zip(asked, found, strict=True)}
    await exchange.respond(msgspec.json.encode({"upstreams": shown}))


async def flush_fleet(service: GatewayService, exchange: Exchange) -> None:
    """Flush the cache of every Quire upstream."""
    require_admin(exchange)
    body = await exchange.body(MAX_BODY, service.config.serve.body_seconds)
    asked = [each for each in service.upstreams if each.is_quire and each.is_ready]
    found = await asyncio.gather(*(_fetch(service, each.name, "POST", "/v1/cache/flush", body) for each in asked))
    shown = {each.name: answer for each, answer in zip(asked, found, strict=True)}
    await exchange.respond(msgspec.json.encode({"upstreams": shown}))


async def _fetch(service: GatewayService, name: str, method: str, target: str, body: bytes = b"") -> Any:
    upstream = service.upstreams.get(name)
    if upstream is None:
        return None
    headers = upstream.headers() | ({"content-type": "application/json"} if body else {})
    try:
        _, answer, _ = await upstream.pool.fetch(method, target, headers, body)
        return msgspec.json.decode(answer)
    except (UpstreamFailed, msgspec.MsgspecError) as error:
        return {"error": str(error)}


async def _registration(service: GatewayService, exchange: Exchange) -> Registration:
    """The body of a server that joins or leaves. Without keys, only a server on this machine may."""
    require_admin(exchange)
    client = exchange.scope.get("client") or ("",)
    if not service.keys and not _is_loopback(client[0]):
        raise Forbidden("A server on another machine can join only with an API key: start the gateway with --api-key.")
    body = read_body(await exchange.body(MAX_BODY, service.config.serve.body_seconds), JoinBody)
    if body.role not in tuple(Role):
        raise InvalidRequest(f"role is {body.role!r}; choose from {', '.join(Role)}.", field="role")
    return Registration(body.url, body.name, body.kind, body.key, body.role)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


GATEWAY_ROUTES = (
    GatewayRoute("GET", "/", gateway_root),
    GatewayRoute("GET", "/health", gateway_health, needs_key=False),
    GatewayRoute("GET", "/ready", gateway_ready, needs_key=False),
    GatewayRoute("GET", "/version", gateway_version),
    GatewayRoute("GET", "/metrics", gateway_metrics),
    GatewayRoute("GET", "/v1/upstreams", show_upstreams),
    GatewayRoute("POST", "/v1/upstreams/join", join_fleet),
    GatewayRoute("POST", "/v1/upstreams/leave", leave_fleet),
    GatewayRoute("POST", "/v1/upstreams/drain", drain_upstream),
    GatewayRoute("GET", "/v1/spend", show_spend),
    GatewayRoute("POST", "/v1/cache/explain", explain_fleet),
    GatewayRoute("GET", "/v1/cache", fleet_cache_stats),
    GatewayRoute("POST", "/v1/cache/flush", flush_fleet),
)
