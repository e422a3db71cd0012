"""HTTP client for a Quire server. Imported only by commands that contact one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from quire.config import ServeConfig
from quire.types.errors import QuireError

CONNECT_SECONDS = 2.0
ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # a wildcard address: connect to loopback
ROOT_TEXT = "Quire is running"  # the answer to GET /


class NoServer(QuireError):
    """Nothing listens at the server's address."""

    code = "no_server"
    status = 503


class ServerRefused(QuireError):
    """The server answered with an error, or with something that is not Quire's API."""

    code = "refused"


def configured_url(serve: ServeConfig) -> str:
    """Return the URL of a server with these settings."""
    host = ANY_ADDRESS.get(serve.host, serve.host)
    scheme = "http" if serve.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{serve.port}"


def auth_headers(api_key: str | None) -> dict[str, str]:
    """Return the headers for the first of these comma-separated keys."""
    key = (api_key or "").split(",")[0].strip()
    return {"authorization": f"Bearer {key}"} if key else {}


class ServerClient:
    """A connection to one server. Failures are raised as `NoServer` or `ServerRefused`."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        self._http = httpx.Client(base_url=url, headers=auth_headers(api_key), timeout=timeout, trust_env=False)

    def get(self, path: str) -> Any:
        """Return the JSON body of a GET; for `/` the text."""
        with self._response("GET", path) as response:
            response.read()
            return response.json() if path != "/" else response.text

    def get_text(self, path: str) -> str:
        """Return the body of a GET as text."""
        with self._response("GET", path) as response:
            return response.read().decode()

    def post(self, path: str, body: Any) -> Any:
        """Return the JSON body of a POST."""
        with self._response("POST", path, body) as response:
            response.read()
            return response.json()

    def events(self, path: str, body: Any) -> Iterator[Any]:
        """Yield the server-sent events of a POST. Closing the iterator cancels the request."""
        with self._response("POST", path, body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise ServerRefused(_error_message(event))
                    yield event

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    @contextmanager
    def _response(self, method: str, path: str, body: Any = None) -> Iterator[httpx.Response]:
        try:
            with self._http.stream(method, path, json=body) as response:
                if response.status_code >= 400:
                    response.read()
                    raise ServerRefused(_error_message(response.json()))
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise NoServer(f"No server is running at {self.url}. Start one with `quire serve`.") from None
        except (httpx.HTTPError, ValueError) as error:
            raise ServerRefused(f"Unexpected answer from {self.url}: {error}. Is it a Quire server?") from error


def find_server(serve: ServeConfig, model: str) -> ServerClient | None:
    """Return a client of the server at the configured address, if it has the model and accepts our key."""
    server = ServerClient(configured_url(serve), serve.api_key)
    try:
        if server.get("/") == ROOT_TEXT and model in {each["id"] for each in server.get("/v1/models")["data"]}:
            return server
    except QuireError:
        pass
    server.close()
    return None


def _error_message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
