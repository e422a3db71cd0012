"""`quire stop`: unload models of a server."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.model.server_client import ServerClient, configured_url
from quire.cli.options import CommandSettings, argument, command, option


@dataclass(frozen=True, slots=True)
class StopOptions:
    """Options of `quire stop`."""

    models: tuple[str, ...] = argument(
        ..., "Model names, as `quire ps` lists them.", metavar="MODEL...", autocompletion=stored_models
    )
    url: str = option("", "URL of the server. Default: from --host and --port.")


@command(StopOptions, names=("home", "host", "port", "api_key"))
def stop(options: StopOptions, settings: CommandSettings) -> None:
    """Unload models of the server, each when its running requests have finished."""
    serve = settings.config.serve
    server = ServerClient(options.url or configured_url(serve), serve.api_key)
    try:
        for model in options.models:
            server.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
            typer.echo(f"stopped {model}")
    finally:
        server.close()
