"""A server that runs on this machine, as the command line asks it. Imported only where one may be there."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx

from quire.cli.engine import Messages, Piece
from quire.cli.form import Form
from quire.config import ServeConfig
from quire.types.answer import Usage
from quire.types.errors import QuireError
from quire.types.request import ConstraintKind, SamplingParams
from quire.types.sampling_values import MAX_INT

CONNECT_SECONDS = 2.0
HERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # how one reaches who listens everywhere
SENT = ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "max_tokens", "min_tokens", "ignore_eos")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SAID = "Quire is running"


class NoServer(QuireError):
    """Nobody answers."""

    code = "no_server"
    status = 503


class Refused(QuireError):
    """The server says why not."""

    code = "refused"


def url_of(serve: ServeConfig) -> str:
    """Where a server with these settings listens."""
    host = HERE.get(serve.host, serve.host)
    scheme = "http" if serve.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{serve.port}"


class Server:
    """One server. Its own errors become ours."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url
        key = (api_key or "").split(",")[0].strip()
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)

    def get(self, path: str) -> Any:
        """What it says there."""
        with self._asked("GET", path) as response:
            response.read()
            return response.json() if path != "/" else response.text

    def text(self, path: str) -> str:
        """What it says there, if that is not one JSON value."""
        with self._asked("GET", path) as response:
            return response.read().decode()

    def post(self, path: str, body: Any) -> Any:
        """What it answers."""
        with self._asked("POST", path, body) as response:
            response.read()
            return response.json()

    def events(self, path: str, body: Any) -> Iterator[Any]:
        """A stream of it. Closing the iterator closes the connection, and the server ends what it does for us."""
        with self._asked("POST", path, body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise Refused(_message(event))
                    yield event

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    @contextmanager
    def _asked(self, method: str, path: str, body: Any = None) -> Iterator[httpx.Response]:
        try:
            with self._http.stream(method, path, json=body) as response:
                if response.status_code >= 400:
                    response.read()
                    raise Refused(_message(response.json()))
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise NoServer(f"No server runs at {self.url}: start one with `quire serve`.") from None
        except (httpx.HTTPError, ValueError) as error:
            raise Refused(f"The server at {self.url} does not answer as one should: {error}.") from error


def find_server(serve: ServeConfig, model: str) -> Server | None:
    """The server on this machine, if there is one that has the model and lets us in."""
    server = Server(url_of(serve), serve.api_key)
    try:
        if server.get("/") == SAID and model in {each["id"] for each in server.get("/v1/models")["data"]}:
            return server
    except QuireError:
        pass
    server.close()
    return None


@dataclass(slots=True)
class ServedModel:
    """A model of a server, with the face of an engine of our own."""

    server: Server
    name: str
    keep_alive: float | None = None  # seconds; negative: for ever
    template: Any = None
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # This loads it. The server remembers how long to keep it, for the answers that follow too.
        keep = {"keep_alive": self.keep_alive} if self.keep_alive else {}
        self.server.post("/api/generate", {"model": self.name, "stream": False, **keep})
        shown = self.server.post("/api/show", {"model": self.name})
        self.sampling_defaults = shown.get("sampling_defaults", {})
        self.template = SimpleNamespace(is_default=not shown["template"], sources={"default": shown["template"]})

    def stream(self, prompt: str | Messages, sampling: SamplingParams, form: Form) -> Generator[Piece, None, None]:
        """The answer, piece by piece. Closing it cancels the request."""
        asked = {name: getattr(sampling, name) for name in (*SENT, *PENALTIES, "stop") if name in sampling.given}
        asked = {name: value for name, value in asked.items() if value is not None}
        path, what = ("/v1/completions", "prompt") if isinstance(prompt, str) else ("/v1/chat/completions", "messages")
        more = {"model": self.name, "stream": True, "stream_options": {"include_usage": True}, **_form_fields(form)}
        if isinstance(prompt, str) and sampling.max_tokens is None:
            asked["max_tokens"] = MAX_INT  # without one, completions end after 16 tokens
        began, first = time.monotonic(), None
        for event in self.server.events(path, {**asked, **more, what: prompt}):
            for choice in event["choices"]:
                first = first or time.monotonic()
                yield _piece(choice)
            if event.get("usage"):
                yield Piece("", "", _usage(event["usage"], began, first))

    def close(self) -> None:
        """Leave the model to others, or have it unloaded if it is not to be kept."""
        try:
            if self.keep_alive == 0:
                self.server.post("/api/generate", {"model": self.name, "keep_alive": 0, "stream": False})
        finally:
            self.server.close()


def _form_fields(form: Form) -> dict[str, Any]:
    """The fields of a request that ask for a format, and for thinking."""
    fields: dict[str, Any] = {}
    if form.constraint is not None and form.constraint.kind is ConstraintKind.JSON:
        fields["response_format"] = {"type": "json_object"}
    elif form.constraint is not None:
        schema = {"name": "answer", "schema": json.loads(form.constraint.text)}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if form.template_variables:
        fields["chat_template_kwargs"] = form.template_variables
    return fields


def _piece(choice: Any) -> Piece:
    said = choice.get("delta")
    if said is None:
        return Piece(choice["text"] or "")
    return Piece(said.get("content") or "", said.get("reasoning_content") or "")


def _usage(told: Any, began: float, first: float | None) -> Usage:
    now = time.monotonic()
    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(told["prompt_tokens"], cached, told["completion_tokens"], (first or now) - began, now - began)


def _message(said: Any) -> str:
    error = said.get("error", said) if isinstance(said, dict) else said
    return str(error.get("message", error) if isinstance(error, dict) else error)
