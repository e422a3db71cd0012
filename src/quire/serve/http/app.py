"""The route table: the endpoints that each dialect declares, and our own. Errors are encoded in the path's dialect.

Every path needs an API key except /health and /ready, and /metrics if metrics_for is "all".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from itertools import takewhile
from pkgutil import iter_modules

from starlette.exceptions import HTTPException
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

import quire.serve.dialects
from quire.serve.access.authorizer import Authorizer
from quire.serve.access.hosts import AllowedHosts
from quire.serve.admin.catalogue import show_all, show_one, show_page, tell_version
from quire.serve.admin.library import change_models, receive_blob
from quire.serve.admin.native import NATIVE
from quire.serve.admin.routes import OWN_ROUTES, header_of, method_of
from quire.serve.dialects.contract import (
    BlobEndpoint,
    ChangeEndpoint,
    CountEndpoint,
    Dialect,
    Endpoint,
    GenerateEndpoint,
    ListEndpoint,
    PageEndpoint,
    ShowEndpoint,
    SpeechEndpoint,
    VectorEndpoint,
    VersionEndpoint,
)
from quire.serve.errors import Forbidden, NoSuchPath, ShuttingDown, WrongMethod
from quire.serve.generation.handler import count, generate
from quire.serve.generation.transcription import answer_speech
from quire.serve.generation.vectors import make_vectors
from quire.serve.http.exchange import Exchange
from quire.serve.http.outer import allow_origins, answer
from quire.serve.relayed.note import CLIENT, NOTE, read_client
from quire.serve.service import Service
from quire.types.errors import QuireError

Handle = Callable[[Exchange], Awaitable[None]]
HANDLERS: dict[type[Endpoint], Callable[..., Awaitable[None]]] = {
    GenerateEndpoint: generate,
    SpeechEndpoint: answer_speech,
    VectorEndpoint: make_vectors,
    CountEndpoint: count,
    ListEndpoint: show_all,
    PageEndpoint: show_page,
    ShowEndpoint: show_one,
    VersionEndpoint: tell_version,
    ChangeEndpoint: change_models,
    BlobEndpoint: receive_blob,
}
KEYLESS = frozenset(route.path for route in OWN_ROUTES if not route.needs_key)
EXCHANGE = "quire.exchange"  # key in a scope


def all_dialects() -> tuple[Dialect, ...]:
    """Return the `DIALECT` of `dialect.py` in every folder of `serve/dialects`."""
    package = quire.serve.dialects
    folders = [each.name for each in iter_modules(package.__path__) if each.ispkg]
    return tuple(import_module(f"{package.__name__}.{name}.dialect").DIALECT for name in folders)


def make_asgi_app(service: Service) -> ASGIApp:
    """The server as an ASGI application."""
    return allow_origins(App(service), service.origins)


class App:
    """Authorizes a request and passes it to its handler."""

    def __init__(self, service: Service) -> None:
        self._service = service
        serve, keys = service.config.serve, service.keys
        self._authorizer = Authorizer(serve, keys, AllowedHosts(serve, bool(keys)), service.origins, KEYLESS)
        endpoints = [(each, dialect) for dialect in service.dialects for each in dialect.endpoints]
        own = [Route(each.path, _Handler(partial(each.handle, service)), methods=[each.method]) for each in OWN_ROUTES]
        by_header = [(_route(service, each), dialect) for each, dialect in endpoints if header_of(each)]
        self._by_header = by_header  # requests without the header belong to another dialect with the same path
        others = (_route(service, each) for each, _ in endpoints if not header_of(each))
        self._routes = [*(route for route, _ in by_header), *others, *own]
        self._router = Router(self._routes, redirect_slashes=False)
        self._dialects = {endpoint.path: dialect for endpoint, dialect in endpoints if not header_of(endpoint)}
        self._dialects |= {each.path: NATIVE for each in OWN_ROUTES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._dialect_of(scope))
        scope[EXCHANGE], scope["app"] = exchange, self
        await answer(self._service, exchange, self._handle(exchange, scope, receive, send))
        if exchange.record.error == ShuttingDown.code and exchange.record.path not in KEYLESS:
            self._service.num_cut += 1

    async def _handle(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        self._authorize(exchange)
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            raise self._routing_error(error, scope, exchange) from None

    def _authorize(self, exchange: Exchange) -> None:
        key = self._authorizer.key_of(exchange.record.path, exchange)
        if key is None:
            return
        exchange.key = key
        client = exchange.header(CLIENT)
        if (client or exchange.header(NOTE)) and not key.admin:
            raise Forbidden(f"The key {key.name} may not relay requests: use a key with admin = true.")
        exchange.takes_note = True
        if client:
            exchange.key = read_client(client)
        exchange.record.key = exchange.key.name

    def _routing_error(self, error: HTTPException, scope: Scope, exchange: Exchange) -> QuireError:
        if error.status_code != 405:
            return NoSuchPath(exchange.record.path)
        here = [route for route in self._routes if route.matches(scope)[0] is not Match.NONE]
        allowed = dict.fromkeys(method for route in here for method in sorted(route.methods or ()))
        return WrongMethod(exchange.record.method, ", ".join(allowed))

    def _dialect_of(self, scope: Scope) -> Dialect:
        """The dialect of a path; of an unknown path, the one with the most paths that share its longest prefix."""
        for route, dialect in self._by_header:
            if route.matches(scope)[0] is not Match.NONE:
                return dialect
        path: str = scope["path"]
        if path in self._dialects:
            return self._dialects[path]
        shared = {known: _num_shared(path, known) for known in self._dialects}
        near = Counter(
            self._dialects[known].name for known, count in shared.items() if 1 < count == max(shared.values())
        )
        name = max(near, key=near.__getitem__, default=NATIVE.name)
        return next(dialect for dialect in self._dialects.values() if dialect.name == name)


class _Handler:
    """An ASGI application for one handler. The scope has its exchange."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope[EXCHANGE])


class _HeaderRoute(Route):
    """A route for requests with a certain header."""

    def __init__(self, header: str, path: str, handler: _Handler, method: str) -> None:
        super().__init__(path, handler, methods=[method])
        self._header = header.encode()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as a route does, if the header is there."""
        if any(name == self._header for name, _ in scope["headers"]):
            return super().matches(scope)
        return Match.NONE, {}


def _route(service: Service, endpoint: Endpoint) -> Route:
    path = endpoint.path.replace("{name}", "{name:path}")  # model names may contain slashes
    handle = partial(HANDLERS[type(endpoint)], service, endpoint=endpoint)
    if header := header_of(endpoint):
        return _HeaderRoute(header, path, _Handler(handle), method_of(endpoint))
    return Route(path, _Handler(handle), methods=[method_of(endpoint)])


def _num_shared(path: str, known: str) -> int:
    """The number of leading parts that two paths share; the first part is always empty."""
    pairs = zip(path.split("/"), known.split("/"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
