"""/v1/load and /v1/cache/events: what a gateway reads of each engine. Both need an admin key, and load no model."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from quire.engine.client import Client
from quire.engine.messages import CacheEvents, ReadEvents, ReadLoad
from quire.serve.admin.native import require_admin
from quire.serve.http.exchange import Exchange
from quire.serve.residency.engines import ask_engine
from quire.serve.service import Service
from quire.types.digests import little_endian
from quire.types.errors import InvalidRequest, QuireError
from quire.types.load import LoadReport

FAST_SECONDS = 0.01  # between two readings of an engine while events come
SLOW_SECONDS = 0.16  # while none come
ALIVE_SECONDS = 5.0  # an empty line at least so often
EVENT_QUERY = {"model", "epoch", "after", "follow"}
TRUTHS = {"true": True, "false": False}


async def show_load(service: Service, exchange: Exchange) -> None:
    """For each loaded model, queue, running requests and measured pace."""
    require_admin(exchange)
    loads: dict[str, LoadReport] = {}
    for model in list(service.models):
        if model.is_ready:
            try:
                _, client = await service.models.observe(model.name)
                loads[model.name] = await ask_engine(client, ReadLoad())
            except QuireError:
                continue  # unloaded or restarted meanwhile
    await exchange.respond(msgspec.json.encode({"models": loads}))


async def stream_events(service: Service, exchange: Exchange) -> None:
    """The events of a loaded model's cache, as lines of JSON: since a position, or after a snapshot."""
    require_admin(exchange)
    query = dict(parse_qsl(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True))
    if unknown := query.keys() - EVENT_QUERY:
        raise InvalidRequest(
            f"There is no parameter {min(unknown)!r}: use {', '.join(sorted(EVENT_QUERY))}.", min(unknown)
        )
    question, follow = ReadEvents(query.get("epoch", ""), _position(query)), _truth(query, "follow")
    _, client = await service.models.observe(query.get("model", ""))
    events: CacheEvents = await ask_engine(client, question)
    await exchange.begin(200, "application/x-ndjson", {"cache-control": "no-cache", "x-accel-buffering": "no"})
    await exchange.write(event_line(events, client.ready.block_tokens))
    gone = asyncio.ensure_future(exchange.gone())
    try:
        while not gone.done() and not service.is_draining:
            is_whole = events.part is None or events.part[0] == events.part[1]
            if is_whole and not follow and not events.events:
                break
            events = await _next_events(service, client, events, gone if follow else None)
            await exchange.write(event_line(events, client.ready.block_tokens))
    except QuireError as error:  # the engine has died or was unloaded: the reader connects again
        exchange.record.fail(error)
    finally:
        gone.cancel()
    await exchange.write(b"", more=False)


async def _next_events(
    service: Service, client: Client, last: CacheEvents, gone: asyncio.Future[None] | None
) -> CacheEvents:
    """Return the rest of a snapshot, or wait for new events; without any, return an empty batch after a while."""
    if last.part is not None and last.part[0] < last.part[1]:
        found: CacheEvents = await ask_engine(client, ReadEvents(last.epoch, last.last, last.part[0]))
        return found
    pause, waited = FAST_SECONDS, 0.0
    while True:
        found = await ask_engine(client, ReadEvents(last.epoch, last.last))
        if found.events or found.part is not None or found.last > last.last or gone is None:
            return found
        if waited >= ALIVE_SECONDS or service.is_draining or gone.done():
            return found
        await asyncio.wait({gone}, timeout=pause)
        waited, pause = waited + pause, min(2 * pause, SLOW_SECONDS)


def event_line(events: CacheEvents, block_tokens: int) -> bytes:
    """Return a batch of events as a line. `gateway/index/lines.py` decodes it."""
    line: dict[str, Any] = {
        "epoch": events.epoch,
        "after": events.after,
        "last": events.last,
        "block_tokens": block_tokens,
    }
    if events.part is not None:
        line["part"] = events.part
    line["events"] = [_plain_event(*event) for event in events.events]
    return msgspec.json.encode(line) + b"\n"


def _plain_event(kind: str, digest: bytes, parent: bytes, tokens: bytes) -> list[Any]:
    if kind == "stored":
        return [kind, digest.hex(), parent.hex(), array("I", little_endian(tokens)).tolist()]
    return [kind, digest.hex()] if kind == "removed" else [kind]


def _position(query: Mapping[str, str]) -> int:
    value = query.get("after", "0")
    if not (value.isascii() and value.isdecimal()) or len(value) > 18:
        raise InvalidRequest(f"after is {value!r}; it must be the number of an event.", field="after")
    return int(value)


def _truth(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in TRUTHS:
        raise InvalidRequest(f"{name} is {value!r}; it must be true or false.", field=name)
    return TRUTHS[value]
