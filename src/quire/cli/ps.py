"""`quire ps`: the models that a server has in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from quire.cli.options import Given, command, option
from quire.cli.server import Server, url_of

COLUMNS = ("NAME", "USED", "ALLOWED", "WHERE", "CONTEXT", "UNTIL")
FOREVER_YEAR = 9000
UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


@dataclass(frozen=True, slots=True)
class PsOptions:
    """Of which server."""

    url: str = option("", "Where the server listens. Default: as set by host and port.")
    json: bool = option(False, "Print one JSON object.", "--json")


@command(PsOptions, names=("host", "port", "api_key"))
def ps(options: PsOptions, given: Given) -> None:
    """Show the models that the server has in memory."""
    serve = given.config.serve
    server = Server(options.url or url_of(serve), serve.api_key)
    try:
        answer = server.get("/api/ps")
    finally:
        server.close()
    if options.json:
        typer.echo(json.dumps(answer, indent=2))
        return
    rows = [COLUMNS, *(_row(each) for each in answer["models"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    size, on_device = model["size"], model["size_vram"]
    where = "cpu" if not on_device else "gpu" if on_device >= size else f"{100 * on_device // size} % gpu"
    used = f"with {model['shares_with']}" if model["shares_with"] else f"{model['size_used'] / 1e6:,.0f} MB"
    allowed = "" if model["shares_with"] else f"{size / 1e6:,.0f} MB"
    return model["name"], used, allowed, where, str(model["context_length"]), until(model["expires_at"])


def until(expires: str, now: datetime | None = None) -> str:
    """How long it is until then, for people."""
    then = datetime.fromisoformat(expires.replace("Z", "+00:00"))
    if then.year > FOREVER_YEAR:
        return "for ever"
    seconds = max(0.0, (then - (now or datetime.now(UTC))).total_seconds())
    name, size = next((unit for unit in UNITS if seconds >= 2 * unit[1]), UNITS[-1])
    count = round(seconds / size)
    return f"{count} {name}{'' if count == 1 else 's'} from now"
