"""The parts of Quire that cost time to import, opened by name at the moment when a command needs them."""

from __future__ import annotations

import gc
import importlib
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quire.cli.form import Form
from quire.config import ServeConfig
from quire.types.answer import Usage
from quire.types.request import SamplingParams

LOCALHOST, LOOK_SECONDS = "127.0.0.1", 0.5

Messages = list[dict[str, str]]


class Piece(NamedTuple):
    """The next part of an answer: of its text, or of the thought before it. The last one says what it took."""

    text: str
    thought: str = ""
    usage: Usage | None = None


class Template(Protocol):
    """How a conversation becomes text. `is_default`: the model came without one of its own."""

    is_default: bool
    sources: dict[str, str]


class Engine(Protocol):
    """A model that answers: in this process (`LocalModel`) or in a server (`ServedModel`)."""

    @property
    def template(self) -> Template:
        """The model's chat template."""

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The parameters that hold where the user gives none."""

    def stream(self, prompt: str | Messages, sampling: SamplingParams, form: Form) -> Generator[Piece, None, None]:
        """The answer, piece by piece. Closing it cancels the request."""

    def close(self) -> None:
        """Give back the memory."""


def open_engine(path: Path, device: str, settings: Mapping[str, str]) -> Engine:
    """Load a model."""
    with _nothing_collected():
        llm = importlib.import_module("quire.engine.llm").LLM(path, device=device, **settings)
    engine: Engine = importlib.import_module("quire.cli.local").LocalModel(llm)
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


def served_model(name: str, serve: ServeConfig, keep_alive: float | None = None) -> Engine | None:
    """The model in a server that runs on this machine already. None: there is no such server.

    `keep_alive` says how many seconds the server keeps it in memory after its last answer. None: as the server is set.
    """
    try:
        socket.create_connection((serve.host or LOCALHOST, serve.port), LOOK_SECONDS).close()
    except OSError:
        return None  # nobody listens: what speaks HTTP need not be imported
    module = importlib.import_module("quire.cli.server")
    server = module.find_server(serve, name)
    model: Engine | None = None if server is None else module.ServedModel(server, name, keep_alive)
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
    template = importlib.import_module("quire.engine.model_files").read_model_text(checkpoint).template
    return "" if template.is_default else str(template.sources.get("default", ""))
