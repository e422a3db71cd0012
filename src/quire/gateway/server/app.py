"""The gateway as an ASGI application: own endpoints, lists of models, and everything else to an upstream."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.gateway.relay.errors import NotAtGateway
from quire.gateway.server.lists import list_fleet_models
from quire.gateway.server.own import GATEWAY_ROUTES
from quire.gateway.server.relaying import relay_request
from quire.gateway.server.service import GatewayService
from quire.serve.access.authorizer import Authorizer
from quire.serve.access.hosts import AllowedHosts
from quire.serve.admin.native import NATIVE
from quire.serve.dialects.contract import BlobEndpoint, ChangeEndpoint, Dialect, ListEndpoint, PageEndpoint
from quire.serve.errors import NoSuchPath, WrongMethod
from quire.serve.http.exchange import Exchange
from quire.serve.http.outer import allow_origins, answer

MODEL_PATH = "/v1/models/"
METHODS = ("GET", "POST", "DELETE")
RELAYED = ("/v1/", "/v2/", "/api/", "/tokenize", "/detokenize", "/rerank", "/embed", "/score", "/pooling", "/classify")
# About one server, or about files on its disk.
NOT_RELAYED = frozenset({"/v1/text", "/v1/load", "/v1/cache/events", "/v1/requests"})
PREFIXES = (("/api/", "ollama"), ("/v1/messages", "anthropic"), ("/v1/responses", "responses"), ("/v1/", "openai"))
ANTHROPIC = "anthropic"


def make_gateway_app(service: GatewayService) -> ASGIApp:
    """The gateway as an ASGI application."""
    return allow_origins(GatewayApp(service), service.origins)


class GatewayApp:
    """Authorizes a request and passes it to its handler."""

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
        await answer(self._service, exchange, self._handle(exchange))

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
