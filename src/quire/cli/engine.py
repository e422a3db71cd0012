"""The parts of Quire that cost time to import, opened by name at the moment when a command needs them."""

from __future__ import annotations

import gc
import importlib
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from quire.config import ServeConfig

LOCALHOST, LOOK_SECONDS = "127.0.0.1", 0.5

Messages = list[dict[str, str]]


class Usage(Protocol):
    """What an answer took."""

    prompt: int
    cached: int
    output: int
    first_token_seconds: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """After the first token; 0 if there was no second one."""


class Delta(Protocol):
    """The next piece of an answer; the last one says why it ended and what it took."""

    text: str
    finish: Any
    usage: Usage | None


class Template(Protocol):
    """How a conversation becomes text. `is_default`: the model came without one of its own."""

    is_default: bool


class Engine(Protocol):
    """As much of `quire.engine.llm.LLM` as the command line uses."""

    @property
    def template(self) -> Template:
        """The model's chat template."""

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The parameters that hold where the user gives none."""

    def stream(self, prompt: str | Messages, sampling: Any = None) -> Generator[Delta, None, None]:
        """The answer, piece by piece. Closing it cancels the request."""

    def close(self) -> None:
        """Give back the memory."""


def open_engine(path: Path, device: str, settings: Mapping[str, str]) -> Engine:
    """Load a model."""
    with _nothing_collected():
        engine: Engine = importlib.import_module("quire.engine.llm").LLM(path, device=device, **settings)
    return engine


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """What is made within stays for the life of the process: looking for garbage in it is time lost, then and later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def served_model(name: str, serve: ServeConfig) -> Engine | None:
    """The model in a server that runs on this machine already. None: there is no such server."""
    try:
        socket.create_connection((serve.host or LOCALHOST, serve.port), LOOK_SECONDS).close()
    except OSError:
        return None  # nobody listens: what speaks HTTP need not be imported
    module = importlib.import_module("quire.cli.server")
    server = module.find_server(serve, name)
    model: Engine | None = None if server is None else module.ServedModel(server, name)
    return model


def describe(path: Path) -> dict[str, str]:
    """What the files of a model say about it; an error says what is wrong with them."""
    checkpoint = importlib.import_module("quire.weights.checkpoint").open_checkpoint(path)
    metadata = checkpoint.metadata
    if checkpoint.container == "gguf":
        architecture = str(metadata.get("general.architecture", ""))
        context = metadata.get(f"{architecture}.context_length", "")
    else:
        named = metadata.get("architectures") or metadata.get("model_type") or ""
        architecture = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
        context = metadata.get("max_position_embeddings", "")
    folder = path if path.is_dir() else path.parent
    preset = importlib.import_module("quire.text.preset").read_preset(folder)
    defaults = importlib.import_module("quire.text.sampling_defaults")
    return {
        "container": checkpoint.container,
        "architecture": architecture,
        "context": str(context),
        "tensors": str(len(checkpoint.tensors)),
        "sampling defaults": defaults.read_sampling_defaults(folder, metadata, preset).describe(),
    }


def template_of(path: Path) -> str:
    """The chat template of a model; empty if it came without one."""
    checkpoint = importlib.import_module("quire.weights.checkpoint").open_checkpoint(path)
    template = importlib.import_module("quire.engine.text_side").TextSide.of(checkpoint).template
    return "" if template.is_default else str(template.sources.get("default", ""))
