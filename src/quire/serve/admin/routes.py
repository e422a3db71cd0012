"""The table of our own endpoints, and the OpenAPI description of all endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from quire import __version__
from quire.serve.admin import cache, fleet, native
from quire.serve.admin.prompt_body import PromptBody
from quire.serve.admin.request_log import LINES, show_request_log
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
    SpeechEndpoint,
    VersionEndpoint,
)
from quire.serve.http.exchange import JSON, Exchange
from quire.serve.service import Service

PLAIN, FORM = "text/plain", "multipart/form-data"
ERROR = {"type": "object", "required": ["error"]}  # in every dialect, with further fields of its own


class OwnRoute(NamedTuple):
    """One of our own endpoints. The handler's docstring is its summary."""

    method: str
    path: str
    handle: Callable[[Service, Exchange], Awaitable[None]]
    shape: type[msgspec.Struct] | None = None  # of its body
    content_type: str = JSON  # of the response
    needs_body: bool = True  # if it has a shape
    needs_key: bool = True  # False: for health probes, which have no key and may use any host name


async def openapi(service: Service, exchange: Exchange) -> None:
    """This OpenAPI description."""
    await exchange.respond(msgspec.json.encode(describe_api(service.dialects, bool(service.keys))))


OWN_ROUTES = (
    OwnRoute("GET", "/", native.root, content_type=PLAIN),
    OwnRoute("GET", "/health", native.health, needs_key=False),
    OwnRoute("GET", "/ready", native.ready, needs_key=False),
    OwnRoute("GET", "/version", native.show_version),
    OwnRoute("GET", "/props", native.props),
    OwnRoute("GET", "/metrics", native.metrics, content_type=PLAIN),
    OwnRoute("GET", "/openapi.json", openapi),
    OwnRoute("POST", "/tokenize", native.tokenize, native.TokenizeBody),
    OwnRoute("POST", "/detokenize", native.detokenize, native.DetokenizeBody),
    OwnRoute("GET", "/v1/text", native.show_text, content_type=native.BUNDLE),
    OwnRoute("GET", "/v1/requests", show_request_log, content_type=LINES),
    OwnRoute("GET", "/v1/load", fleet.show_load),
    OwnRoute("GET", "/v1/cache", cache.cache_stats),
    OwnRoute("GET", "/v1/cache/events", fleet.stream_events, content_type=LINES),
    OwnRoute("POST", "/v1/cache/explain", cache.explain_prompt, PromptBody),
    OwnRoute("POST", "/v1/cache/pin", cache.pin_prompt, cache.PinBody),
    OwnRoute("POST", "/v1/cache/unpin", cache.unpin_prompt, PromptBody),
    OwnRoute("POST", "/v1/cache/flush", cache.flush_cache, cache.FlushBody, needs_body=False),
)


def method_of(endpoint: Endpoint) -> str:
    """The HTTP method of a dialect's endpoint."""
    if isinstance(endpoint, ChangeEndpoint | BlobEndpoint):
        return endpoint.method
    is_read = isinstance(endpoint, ListEndpoint | PageEndpoint | VersionEndpoint) or (
        isinstance(endpoint, ShowEndpoint) and endpoint.name_of is None
    )
    return "GET" if is_read else "POST"


def header_of(endpoint: Endpoint) -> str:
    """The header that distinguishes an endpoint from another one with the same path."""
    return endpoint.header if isinstance(endpoint, PageEndpoint | ShowEndpoint) else ""


def describe_api(dialects: Sequence[Dialect], has_keys: bool) -> dict[str, Any]:
    """The whole server in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for dialect in dialects:
        for endpoint in dialect.endpoints:
            if header_of(endpoint):
                continue  # OpenAPI has one operation for a path
            method = method_of(endpoint)
            operation = _operation(method, endpoint.path, (type(endpoint).__doc__ or "").split(". ")[0])
            types = (JSON, endpoint.streams) if isinstance(endpoint, GenerateEndpoint | ChangeEndpoint) else (JSON,)
            kind = FORM if isinstance(endpoint, SpeechEndpoint) else JSON
            body = _body(dialect.schemas.get(endpoint.path), kind=kind)
            operation |= body | _responses(types) | {"tags": [dialect.name]}
            paths.setdefault(endpoint.path, {})[method.lower()] = operation
    for own in OWN_ROUTES:
        operation = _operation(own.method, own.path, (own.handle.__doc__ or "").split("\n")[0])
        operation |= _body(None if own.shape is None else schema_of(own.shape), own.needs_body)
        operation |= _responses((own.content_type,)) | {"tags": ["quire"]}
        operation |= {} if own.needs_key else {"security": []}
        paths.setdefault(own.path, {})[own.method.lower()] = operation
    secured: dict[str, Any] = {
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
    }
    head = {"openapi": "3.1.0", "info": {"title": "Quire", "version": __version__}, "paths": paths}
    return head | (secured if has_keys else {})


def _operation(method: str, path: str, summary: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{path}".replace("/", "_").replace("{", "").replace("}", ""),
        "summary": summary,
    }
    if named := [name for name in ("name", "digest") if f"{{{name}}}" in path]:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named
        ]
    return operation


def _body(schema: object | None, is_needed: bool = True, kind: str = JSON) -> dict[str, Any]:
    return {} if schema is None else {"requestBody": {"required": is_needed, "content": {kind: {"schema": schema}}}}


def _responses(types: Sequence[str]) -> dict[str, Any]:
    done = {"description": "The result.", "content": {each: {} for each in types}}
    error = {"description": "An error, in the same dialect.", "content": {JSON: {"schema": ERROR}}}
    return {"responses": {"200": done, "default": error}}
