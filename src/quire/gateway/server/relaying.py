"""The handler of requests that go to an upstream: accounts before and after, aliases, and the trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from quire.gateway.accounts.audit import AuditEntry
from quire.gateway.accounts.ledger import Spend
from quire.gateway.relay.ids import new_id
from quire.gateway.relay.relay import RelayOutcome
from quire.gateway.relay.request import RelayedRequest
from quire.gateway.server.service import GatewayService
from quire.gateway.upstreams.declared import ModelPrice
from quire.observe.record import Record
from quire.serve.generation.routing import MODEL, ROUTE, may_fall_back
from quire.serve.http.exchange import Exchange
from quire.types.chat import ChatRequest
from quire.types.errors import QuireError

NO_PRICE = ModelPrice()
WITHOUT_BODY = ("GET", "HEAD", "DELETE")


async def relay_request(service: GatewayService, exchange: Exchange, model: str | None = None) -> None:
    """Send a request to an upstream and answer with what it says. `model`: named by the path."""
    serve, record = service.config.serve, exchange.record
    body = b""
    if record.method not in WITHOUT_BODY:
        body = await exchange.body(int(serve.max_body_mb * 1e6), serve.body_seconds)
    service.ledger.check(exchange.key, time.time())
    request = await service.reader.read(exchange, body)
    if model is not None:
        request.model = request.named = model
    if request.ask is not None:
        record.operation = "chat" if isinstance(request.ask, ChatRequest) else "text_completion"
        record.sampling, record.client_id = request.ask.sampling, request.ask.terms.id
    record.streams = request.streams
    outcome = RelayOutcome()
    with service.quotas.running(exchange.key, time.monotonic()), _disconnection(exchange) as disconnected:
        try:
            await _answer(service, request, outcome, disconnected)
        finally:
            _account(service, request, outcome)


async def _answer(
    service: GatewayService, request: RelayedRequest, outcome: RelayOutcome, disconnected: asyncio.Future[None]
) -> None:
    """Answer with the model that is named, or with the first model of its route that can."""
    exchange = request.exchange
    models, label = _route(service, request)
    if label:
        exchange.headers[ROUTE] = label
    request.traceparent = start_span(exchange.record)
    first: QuireError | None = None
    for place, model in enumerate(models):
        request.model = service.upstreams.resolve(model)
        exchange.record.model = request.model or None
        if label:
            exchange.headers[MODEL] = request.model
        await service.reader.encode(request)
        exchange.record.submitted = time.monotonic()
        try:
            await service.relay.run(request, disconnected, outcome, is_last=place == len(models) - 1)
            return
        except QuireError as error:
            if exchange.has_begun or not may_fall_back(error):
                raise
            first = first or error
    assert first is not None
    raise first


def _route(service: GatewayService, request: RelayedRequest) -> tuple[tuple[str, ...], str]:
    """The models to try, and the rule that chose them; empty if the request names a model."""
    if request.ask is not None:
        choose = service.router.chooser(request.ask, request.exchange.key.name)
        choice = None if choose is None else choose()
        if choice is not None:
            return choice.models, choice.label
    alias = service.router.aliases().get(request.model)  # of a body that is not decoded here, the default model
    return ((alias,), f"{request.model}/default") if alias else ((request.model,), "")


def _account(service: GatewayService, request: RelayedRequest, outcome: RelayOutcome) -> None:
    """Record what the request has used, whatever became of it."""
    exchange, record, usage = request.exchange, request.exchange.record, outcome.usage
    record.first_token = outcome.first_byte
    money = 0.0
    if usage is not None:
        record.prompt_tokens, record.cached_tokens, record.output_tokens = usage
        price = service.fleet_file.prices.get(request.model, NO_PRICE)
        money = price.cost(*usage)
        service.quotas.charge(exchange.key, usage.prompt + usage.output)
        spend = Spend(1, usage.prompt, usage.cached, usage.output, money)
        service.ledger.add(exchange.key.name, request.model, spend, time.time())
    if not service.audit.is_open:
        return
    service.audit.write(
        AuditEntry(
            round(record.at, 3),
            exchange.id,
            exchange.key.name,
            record.method,
            record.path,
            request.model,
            exchange.headers.get(ROUTE, ""),
            outcome.upstreams,
            record.status,
            record.error or "",
            round(time.monotonic() - record.arrived, 4),
            record.prompt_tokens,
            record.cached_tokens,
            record.output_tokens,
            round(money, 8),
            outcome.num_resumed,
        )
    )


def start_span(record: Record) -> str:
    """The trace context for upstreams: the caller's trace, with the gateway's own span as the parent."""
    version, _, rest = record.traceparent.partition("-")
    parts = rest.split("-")
    is_valid = version == "00" and len(parts) == 3 and len(parts[0]) == 32 and len(parts[1]) == 16
    trace, flags = (parts[0], parts[2]) if is_valid else (new_id(16), "01")
    record.span = (trace, new_id(8))
    return f"00-{trace}-{record.span[1]}-{flags}"


@contextmanager
def _disconnection(exchange: Exchange) -> Iterator[asyncio.Future[None]]:
    """A future that is done when the client disconnects."""
    disconnected = asyncio.ensure_future(exchange.gone())
    try:
        yield disconnected
    finally:
        disconnected.cancel()
