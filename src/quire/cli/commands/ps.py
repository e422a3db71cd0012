"""`quire ps`: list the models that a server has in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from quire.cli.model.server_client import ServerClient, configured_url
from quire.cli.options import CommandSettings, command, option
from quire.cli.terminal.table import print_table

COLUMNS = ("NAME", "USED", "LIMIT", "DEVICE", "CONTEXT", "UNTIL")
FOREVER_YEAR = 9000
UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


@dataclass(frozen=True, slots=True)
class PsOptions:
    """Options of `quire ps`."""

    url: str = option("", "URL of the server. Default: from --host and --port.")
    json: bool = option(False, "Print one JSON object.", "--json")


@command(PsOptions, names=("host", "port", "api_key"))
def ps(options: PsOptions, settings: CommandSettings) -> None:
    """List the models that the server has in memory."""
    serve = settings.config.serve
    server = ServerClient(options.url or configured_url(serve), serve.api_key)
    try:
        answer = server.get("/api/ps")
    finally:
        server.close()
    if options.json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        print_table([COLUMNS, *(_row(each) for each in answer["models"])])


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    size, on_gpu = model["size"], model["size_vram"]
    device = "cpu" if not on_gpu else "gpu" if on_gpu >= size else f"{100 * on_gpu // size} % gpu"
    used = f"with {model['shares_with']}" if model["shares_with"] else f"{model['size_used'] / 1e6:,.0f} MB"
    limit = "" if model["shares_with"] else f"{size / 1e6:,.0f} MB"
    return model["name"], used, limit, device, str(model["context_length"]), time_until(model["expires_at"])


def time_until(expires: str, now: datetime | None = None) -> str:
    """Return the time until an ISO timestamp, such as "5 minutes from now"."""
    then = datetime.fromisoformat(expires.replace("Z", "+00:00"))
    if then.year > FOREVER_YEAR:
        return "forever"
    seconds = max(0.0, (then - (now or datetime.now(UTC))).total_seconds())
    name, size = next((unit for unit in UNITS if seconds >= 2 * unit[1]), UNITS[-1])
    count = round(seconds / size)
    return f"{count} {name}{'' if count == 1 else 's'} from now"
