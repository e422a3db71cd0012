"""The table of our own endpoints, and the description of all there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from quire import __version__
from quire.serve.admin import cache as retention
from quire.serve.admin import native
from quire.serve.admin import request_log as requests
from quire.serve.admin.prompt_body import PromptBody
from quire.serve.admin.request_log import LINES
from quire.serve.dialects.body import schema_of
from quire.serve.dialects.contract import (
    BlobEndpoint,
    ChangeEndpoint,
    Dialect,
    Endpoint,
    GenerateEndpoint,
    ListEndpoint,
    PageEndpoint,
    ShowEndpoint,
    VersionEndpoint,
)
from quire.serve.http.exchange import JSON, Exchange
from quire.serve.service import Service

PLAIN = "text/plain"
ERROR = {"type": "object", "required": ["error"]}  # in every dialect; what else it has is each one's own


class OwnRoute(NamedTuple):
    """One of them. Its docstring says what it is for."""

    method: str
    path: str
    handle: Callable[[Service, Exchange], Awaitable[None]]
    shape: type[msgspec.Struct] | None = None  # of its body
    content_type: str = JSON  # of what it answers
    needs_body: bool = True  # where there is a shape
    needs_key: bool = True  # False: for probes, which have no key and may use any host name


async def openapi(service: Service, exchange: Exchange) -> None:
    """This description."""
    await exchange.respond(msgspec.json.encode(describe(service.dialects, bool(service.keys))))


OWN_ROUTES = (
    OwnRoute("GET", "/", native.root, content_type=PLAIN),
    OwnRoute("GET", "/health", native.health, needs_key=False),
    OwnRoute("GET", "/ready", native.ready, needs_key=False),
    OwnRoute("GET", "/version", native.version),
    OwnRoute("GET", "/props", native.props),
    OwnRoute("GET", "/metrics", native.metrics, content_type=PLAIN),
    OwnRoute("GET", "/openapi.json", openapi),
    OwnRoute("POST", "/tokenize", native.tokenize, native.TokenizeBody),
    OwnRoute("POST", "/detokenize", native.detokenize, native.DetokenizeBody),
    OwnRoute("GET", "/v1/requests", requests.past, content_type=LINES),
    OwnRoute("GET", "/v1/cache", retention.stats),
    OwnRoute("POST", "/v1/cache/explain", retention.explain, PromptBody),
    OwnRoute("POST", "/v1/cache/pin", retention.pin, retention.PinBody),
    OwnRoute("POST", "/v1/cache/unpin", retention.unpin, PromptBody),
    OwnRoute("POST", "/v1/cache/flush", retention.flush, retention.FlushBody, needs_body=False),
)


def method_of(endpoint: Endpoint) -> str:
    """The verb of a dialect's endpoint."""
    if isinstance(endpoint, ChangeEndpoint | BlobEndpoint):
        return endpoint.method
    is_read = isinstance(endpoint, ListEndpoint | PageEndpoint | VersionEndpoint) or (
        isinstance(endpoint, ShowEndpoint) and endpoint.name_of is None
    )
    return "GET" if is_read else "POST"


def header_of(endpoint: Endpoint) -> str:
    """The header that tells the requests of an endpoint from those of another with the same path."""
    return endpoint.header if isinstance(endpoint, PageEndpoint | ShowEndpoint) else ""


def describe(dialects: Sequence[Dialect], has_keys: bool) -> dict[str, Any]:
    """The whole server in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for dialect in dialects:
        for endpoint in dialect.endpoints:
            if header_of(endpoint):
                continue  # OpenAPI has one operation for a path
            method = method_of(endpoint)
            said = _operation(method, endpoint.path, (type(endpoint).__doc__ or "").split(". ")[0])
            types = (JSON, endpoint.streams) if isinstance(endpoint, GenerateEndpoint | ChangeEndpoint) else (JSON,)
            said |= _body(dialect.schemas.get(endpoint.path)) | _responses(types) | {"tags": [dialect.name]}
            paths.setdefault(endpoint.path, {})[method.lower()] = said
    for own in OWN_ROUTES:
        said = _operation(own.method, own.path, (own.handle.__doc__ or "").split("\n")[0])
        said |= _body(None if own.shape is None else schema_of(own.shape), own.needs_body)
        said |= _responses((own.content_type,)) | {"tags": ["quire"]}
        said |= {} if own.needs_key else {"security": []}
        paths.setdefault(own.path, {})[own.method.lower()] = said
    secured: dict[str, Any] = {
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
    }
    head = {"openapi": "3.1.0", "info": {"title": "Quire", "version": __version__}, "paths": paths}
    return head | (secured if has_keys else {})


def _operation(method: str, path: str, summary: str) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": f"{method.lower()}{path}".replace("/", "_").replace("{", "").replace("}", ""),
        "summary": summary,
    }
    if named := [name for name in ("name", "digest") if f"{{{name}}}" in path]:
        said["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named
        ]
    return said


def _body(schema: object | None, is_needed: bool = True) -> dict[str, Any]:
    return {} if schema is None else {"requestBody": {"required": is_needed, "content": {JSON: {"schema": schema}}}}


def _responses(types: Sequence[str]) -> dict[str, Any]:
    done = {"description": "As asked.", "content": {each: {} for each in types}}
    error = {"description": "An error, in the same dialect.", "content": {JSON: {"schema": ERROR}}}
    return {"responses": {"200": done, "default": error}}
