"""`quire serve`: models over HTTP."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.cli.options import Given, argument, command, option
from quire.cli.progress import shown
from quire.engine.messages import Loading
from quire.observe.access import log_access
from quire.observe.log import adopt
from quire.observe.trace import traces_to
from quire.store.names import DEFAULT_TAG, MODEL_SUFFIXES, ModelName, parse_name
from quire.store.store import DEFAULT_MODEL, Store
from quire.types.errors import InvalidRequest

SECTIONS = ("serve", "cache", "scheduler", "grammar", "observe", "weights", "store")
SERVED_AS = re.compile(r"(?P<name>[\w.:-]+)=(?P<model>.+)")
LOCAL = ("127.", "localhost", "::1")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of its own; the server's and the engine's come from config.py."""

    models: tuple[str, ...] = argument(
        (), f"Names or paths, as quire run takes them; NAME=MODEL serves it as NAME. Default: {DEFAULT_MODEL}."
    )
    device: str = option("cpu", "Where to compute.")


@command(ServeOptions, *SECTIONS)
def serve(options: ServeOptions, given: Given) -> None:
    """Serve models over HTTP, in the dialects of OpenAI, Anthropic and Ollama."""
    config = given.config
    # By name, here: no other command waits for the packages of a server.
    keys, models = (import_module(f"quire.serve.{name}") for name in ("keys", "models"))
    adopt("uvicorn.error")
    adopt("opentelemetry")
    known = keys.read_keys(config.serve)
    if not known and not config.serve.host.startswith(LOCAL):
        logger.warning("anyone who reaches %s may use this server: set --api-keys or --api-key", config.serve.host)
    wanted, place = _wanted(options, given.store), models.Place(options.device)
    ready = partial(_print_ready, [model.name for model in wanted])
    if config.serve.fronts > 1:
        fronts = import_module("quire.serve.fronts")
        _run(fronts.Fronts(wanted, config, place, known, _print_loading, ready))
        return
    app, server, service = (import_module(f"quire.serve.{name}") for name in ("app", "server", "service"))
    library = import_module("quire.gateway.library").StoreLibrary(given.store)
    served = models.Models(wanted, config, place, _print_loading)
    with traces_to(config.serve.otlp_endpoint) as traces:
        observers = (partial(log_access, logging.getLogger("quire.access")), *traces)
        house = service.Service(config, served, app.all_dialects(), known, observers=observers, library=library)
        _run(server.Serving(house, ready))


def _run(serving: Any) -> None:
    print(f"Listening at {serving.url}", file=sys.stderr, flush=True)
    serving.run_until_signal()


def _wanted(options: ServeOptions, store: Store) -> list[Any]:
    models = import_module("quire.serve.models")
    wanted: dict[str, Any] = {}
    for text in options.models or (DEFAULT_MODEL,):
        named = SERVED_AS.fullmatch(text)
        given, rest = (named["name"], named["model"]) if named else ("", text)
        name = parse_name(rest)
        shown_as = given or _spelled(name)
        if shown_as in wanted:
            raise InvalidRequest(f"Two models would be served as {shown_as}: write NAME={rest}.", field="models")
        wanted[shown_as] = models.Wanted(shown_as, partial(_locate, store, str(name)), _aliases(name))
    return list(wanted.values())


def _spelled(name: ModelName) -> str:
    """What clients call it: a path without its folders and ending."""
    if name.kind == "path":
        return reduce(str.removesuffix, MODEL_SUFFIXES, name.path.name)
    return str(name).removesuffix(f":{DEFAULT_TAG}")


def _aliases(name: ModelName) -> tuple[str, ...]:
    """Other spellings of the same."""
    if name.kind == "path":
        return (name.name, name.path.name, _spelled(name))
    return (str(name), name.name)


def _locate(store: Store, name: str) -> Path:
    with shown() as progress:
        return store.resolve(name, progress)


def _print_loading(loading: Loading) -> None:
    print(f"{loading.stage} … ({loading.seconds:.1f} s)", file=sys.stderr, flush=True)


def _print_ready(names: Sequence[str], url: str) -> None:
    print(f"Serving {', '.join(names)} at {url}", file=sys.stderr, flush=True)
