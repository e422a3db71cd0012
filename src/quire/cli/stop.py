"""`quire stop`: a server lets models go."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.options import Given, argument, command, option
from quire.cli.server import Server, url_of


@dataclass(frozen=True, slots=True)
class StopOptions:
    """Which models, of which server."""

    models: tuple[str, ...] = argument(
        ..., "Names of models, as quire ps shows them.", metavar="MODEL...", autocompletion=stored_models
    )
    url: str = option("", "Where the server listens. Default: as set by host and port.")


@command(StopOptions, names=("home", "host", "port", "api_key"))
def stop(options: StopOptions, given: Given) -> None:
    """Have the server unload models: now, or when their last request has ended."""
    serve = given.config.serve
    server = Server(options.url or url_of(serve), serve.api_key)
    try:
        for model in options.models:
            server.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
            typer.echo(f"stopped {model}")
    finally:
        server.close()
