"""The contract of a model that answers, and how one is loaded. What is slow to import is imported on use."""

from __future__ import annotations

import gc
import importlib
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quire.cli.model.answer_options import AnswerOptions
from quire.config import ServeConfig
from quire.types.answer import Usage
from quire.types.request import SamplingParams

LOCALHOST, CONNECT_SECONDS = "127.0.0.1", 0.5

Messages = list[dict[str, str]]


class AnswerPart(NamedTuple):
    """The next part of a streamed answer: text, or reasoning before it. The last part has the usage."""

    text: str
    reasoning: str = ""
    usage: Usage | None = None


class TemplateInfo(Protocol):
    """The model's chat template. `is_default`: the model's files have none."""

    is_default: bool
    sources: dict[str, str]


class ChatModel(Protocol):
    """A model that answers prompts: in this process (`LocalModel`) or in a server (`ServedModel`)."""

    @property
    def template(self) -> TemplateInfo:
        """The model's chat template."""

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The model's own defaults for sampling parameters."""

    def stream(
        self, prompt: str | Messages, sampling: SamplingParams, options: AnswerOptions
    ) -> Generator[AnswerPart, None, None]:
        """Yield the answer in parts. Closing the generator cancels the request."""

    def close(self) -> None:
        """Release the model."""


def load_local_model(path: Path, device: str, settings: Mapping[str, str]) -> ChatModel:
    """Load a model into this process."""
    with _garbage_collection_paused():
        llm = importlib.import_module("quire.engine.llm").LLM(path, device=device, **settings)
    model: ChatModel = importlib.import_module("quire.cli.model.local_model").LocalModel(llm)
    return model


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Objects created inside live as long as the process, so the collector never needs to scan them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def find_served_model(name: str, serve: ServeConfig, keep_alive: float | None = None) -> ChatModel | None:
    """Return the model in a server that runs at the configured address. None: no server there has it.

    `keep_alive`: seconds that the server keeps the model in memory after its last answer. None: the server's setting.
    """
    try:
        socket.create_connection((serve.host or LOCALHOST, serve.port), CONNECT_SECONDS).close()
    except OSError:
        return None  # nothing listens, so the HTTP client need not be imported
    server = importlib.import_module("quire.cli.model.server_client").find_server(serve, name)
    if server is None:
        return None
    model: ChatModel = importlib.import_module("quire.cli.model.served_model").ServedModel(server, name, keep_alive)
    return model
