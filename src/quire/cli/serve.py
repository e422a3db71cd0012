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

from quire.cli.completion import stored_models
from quire.cli.options import DEVICE_HELP, DEVICES, Given, Shown, argument, command, one_of, option
from quire.cli.progress import Say, shown
from quire.engine.messages import Loading
from quire.observe.access_log import log_access
from quire.observe.log import start_logging
from quire.observe.request_log import open_request_log
from quire.observe.trace import open_traces
from quire.store.names import MODEL_SUFFIXES, ModelName, parse_name
from quire.store.store import DEFAULT_MODEL, Store
from quire.types.errors import InvalidRequest

SECTIONS = ("serve", "cache", "scheduler", "sampling", "grammar", "observe", "weights", "device", "store")
EXAMPLES = (
    "quire serve",
    f"quire serve {DEFAULT_MODEL} --max-context 4096 --port 8080",
    f"quire serve chat={DEFAULT_MODEL} --only --api-keys keys.toml",
    "QUIRE_PORT=8080 quire serve --host 0.0.0.0 --api-key secret",
)
SERVED_AS = re.compile(r"(?P<name>[\w.:-]+)=(?P<model>.+)")
LOCAL = ("127.", "localhost", "::1")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of its own; the server's and the engine's come from config.py."""

    models: tuple[str, ...] = argument(
        (),
        "Names or paths, as quire run takes them, to be loaded at once and kept; NAME=MODEL serves it as NAME. "
        f"Default: none, or {DEFAULT_MODEL} if the store is empty.",
        autocompletion=stored_models,
    )
    only: bool = option(False, "Serve these alone, and not every model of the store.", "--only")
    device: str = option("auto", DEVICE_HELP, autocompletion=one_of(*DEVICES))


@command(ServeOptions, *SECTIONS, shown=Shown(EXAMPLES))
def serve(options: ServeOptions, given: Given) -> None:
    """Serve models over HTTP, in the dialects of OpenAI, Anthropic and Ollama."""
    config = given.config
    # By name, here: no other command waits for the packages of a server.
    keys, engines, shelf = (
        import_module(f"quire.serve.{name}") for name in ("access.keys", "residency.engines", "residency.shelf")
    )
    start_logging(config.observe, is_whole_process=True)
    known = keys.read_keys(config.serve)
    if not known and not config.serve.host.startswith(LOCAL):
        logger.warning("anyone who reaches %s may use this server: set --api-keys or --api-key", config.serve.host)
    is_json = config.observe.log_format == "json"
    say: Say = logger.info if is_json else _print
    wanted, place = _wanted(options, given.store, say if is_json else None), engines.Place(options.device)
    num_stored = 0 if options.only or config.serve.fronts > 1 else len(given.store.list())
    ready = partial(_tell_ready, say, [model.name for model in wanted], num_stored)
    loading = partial(_tell_loading, say)
    if config.serve.fronts > 1:
        if not options.models:
            raise InvalidRequest("Several fronts need to be told which models to serve: quire serve MODEL --fronts 2.")
        fronts = import_module("quire.serve.processes.hub")
        _run(fronts.Fronts(wanted, config, place, known, loading, ready), say)
        return
    app, models, server, service = (
        import_module(f"quire.serve.{name}") for name in ("http.app", "residency.models", "processes.server", "service")
    )
    offers = None if options.only else shelf.Shelf(given.store)
    served = models.Models(wanted, config, place, loading, offers)
    library = None if options.only else _library(given.store)
    with open_traces(config.serve.otlp_endpoint) as traces, open_request_log(config.serve.request_log) as logs:
        observers = (partial(log_access, logging.getLogger("quire.access")), *traces, *logs)
        house = service.Service(config, served, app.all_dialects(), known, observers=observers, library=library)
        _run(server.Serving(house, ready), say)


def _library(store: Store) -> Any:
    check = import_module("quire.engine.supported").check_supported
    return import_module("quire.gateway.library").StoreLibrary(store, check)


def _run(serving: Any, say: Say) -> None:
    say(f"Listening at {serving.url}")
    serving.run_until_signal()


def _wanted(options: ServeOptions, store: Store, say: Say | None) -> list[Any]:
    shelf = import_module("quire.serve.residency.shelf")
    wanted: dict[str, Any] = {}
    texts = options.models or (() if store.list() else (DEFAULT_MODEL,))
    if options.only and not texts:
        raise InvalidRequest("--only needs models: quire serve MODEL --only.", field="models")
    for text in texts:
        named = SERVED_AS.fullmatch(text)
        given, rest = (named["name"], named["model"]) if named else ("", text)
        name = parse_name(rest)
        shown_as = given or (_file_name(name) if name.kind == "path" else shelf.spelled(name))
        if shown_as in wanted:
            raise InvalidRequest(f"Two models would be served as {shown_as}: write NAME={rest}.", field="models")
        aliases = (name.name, name.path.name, _file_name(name)) if name.kind == "path" else shelf.aliases(name)
        wanted[shown_as] = shelf.Wanted(shown_as, partial(_locate, store, say, str(name)), aliases)
    return list(wanted.values())


def _file_name(name: ModelName) -> str:
    """What clients call a path: without its folders and ending."""
    return reduce(str.removesuffix, MODEL_SUFFIXES, name.path.name)


def _locate(store: Store, say: Say | None, name: str) -> Path:
    with shown(say) as progress:
        return store.resolve(name, progress)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell_loading(say: Say, loading: Loading) -> None:
    say(f"{loading.stage} … ({loading.seconds:.1f} s)")


def _tell_ready(say: Say, names: Sequence[str], num_stored: int, url: str) -> None:
    stored = [f"the store's {num_stored} models when they are asked for"] if num_stored else []
    say(f"Serving {' and '.join([', '.join(names)] * bool(names) + stored)} at {url}")
