"""The gateway as an ASGI application: own endpoints, lists of models, and everything else to an upstream."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.gateway.relay.errors import NotAtGateway
from quire.gateway.server.lists import list_fleet_models
from quire.gateway.server.own import GATEWAY_ROUTES
from quire.gateway.server.relaying import relay_request
from quire.gateway.server.service import GatewayService
from quire.observe.log import error_origin
from quire.serve.access.authorizer import Authorizer
from quire.serve.access.hosts import AllowedHosts
from quire.serve.admin.native import NATIVE
from quire.serve.dialects.contract import BlobEndpoint, ChangeEndpoint, Dialect, ListEndpoint, PageEndpoint
from quire.serve.errors import InternalError, NoSuchPath, ShuttingDown, WrongMethod
from quire.serve.http.app import EXPOSED
from quire.serve.http.exchange import ClientGone, Exchange
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

MODEL_PATH = "/v1/models/"
METHODS = ("GET", "POST", "DELETE")
RELAYED = ("/v1/", "/api/", "/tokenize", "/detokenize", "/rerank", "/embed", "/score", "/pooling", "/classify")
# About one server, or about files on its disk.
NOT_RELAYED = frozenset({"/v1/text", "/v1/load", "/v1/cache/events", "/v1/requests"})
PREFIXES = (("/api/", "ollama"), ("/v1/messages", "anthropic"), ("/v1/responses", "responses"), ("/v1/", "openai"))
ANTHROPIC = "anthropic"


def make_gateway_app(service: GatewayService) -> ASGIApp:
    """The gateway as an ASGI application."""
    app = GatewayApp(service)
    if not service.origins:
        return app
    return CORSMiddleware(
        app, allow_origins=service.origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED
    )


class GatewayApp:
    """Authorizes a request, passes it to its handler, and makes sure that it is answered and recorded."""

    def __init__(self, service: GatewayService) -> None:
        self._service = service
        serve, keys = service.config.serve, service.keys
        keyless = frozenset(route.path for route in GATEWAY_ROUTES if not route.needs_key)
        self._authorizer = Authorizer(serve, keys, AllowedHosts(serve, bool(keys)), service.origins, keyless)
        self._own = {(route.method, route.path): route.handle for route in GATEWAY_ROUTES}
        self._methods: dict[str, list[str]] = {}
        for method, path in self._own:
            self._methods.setdefault(path, []).append(method)
        self._dialects = {dialect.name: dialect for dialect in service.dialects}
        endpoints = [(each, dialect) for dialect in service.dialects for each in dialect.endpoints]
        self._by_path = {each.path: dialect for each, dialect in endpoints if not getattr(each, "header", "")}
        self._lists = {each.path for each, _ in endpoints if isinstance(each, ListEndpoint | PageEndpoint)}
        changes = [each for each, _ in endpoints if isinstance(each, ChangeEndpoint | BlobEndpoint)]
        self._changes = tuple(each.path.partition("{")[0] for each in changes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._dialect_of(scope))
        self._service.num_running += 1
        try:
            await self._handle(exchange)
        except ClientGone:
            pass
        except QuireError as error:
            await self._refuse(exchange, error)
        except asyncio.CancelledError:  # the gateway ends
            await self._refuse(exchange, ShuttingDown())
        except Exception as error:
            logger.error("a request failed: %s", error_origin(error), extra={"request_id": exchange.id})
            await self._refuse(exchange, InternalError(exchange.id))
        finally:
            exchange.record.ended = time.monotonic()
            self._service.num_running -= 1
            self._service.report(exchange.record)

    async def _handle(self, exchange: Exchange) -> None:
        method, path = exchange.record.method, exchange.record.path
        key = self._authorizer.key_of(path, exchange)
        if key is not None:
            exchange.key, exchange.record.key = key, key.name
        handle = self._own.get((method, path))
        if handle is not None:
            await handle(self._service, exchange)
        elif path in self._methods:
            raise WrongMethod(method, ", ".join(self._methods[path]))
        elif method == "GET" and path in self._lists:
            await list_fleet_models(self._service, exchange)
        elif path.startswith(self._changes) or path in NOT_RELAYED:
            raise NotAtGateway(path)
        elif path.startswith(RELAYED):
            if method not in METHODS:
                raise WrongMethod(method, ", ".join(METHODS))
            named = path.removeprefix(MODEL_PATH) if path.startswith(MODEL_PATH) else None
            await relay_request(self._service, exchange, named)
        else:
            raise NoSuchPath(path)

    async def _refuse(self, exchange: Exchange, error: QuireError) -> None:
        """Answer with the error. After the status was sent, the connection closes in the middle of the body instead."""
        if not exchange.has_begun:
            await exchange.refuse(error)
        elif exchange.record.error is None:
            exchange.record.fail(error)

    def _dialect_of(self, scope: Scope) -> Dialect:
        path: str = scope["path"]
        is_anthropic = any(name == b"anthropic-version" for name, _ in scope["headers"])
        if is_anthropic and path.startswith("/v1/models"):
            return self._dialects.get(ANTHROPIC, NATIVE)
        if path in self._methods:
            return NATIVE
        known = self._by_path.get(path)
        if known is not None:
            return known
        name = next((dialect for prefix, dialect in PREFIXES if path.startswith(prefix)), "")
        return self._dialects.get(name, NATIVE)
