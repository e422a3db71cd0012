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
from quire.observe.access import log_access
from quire.observe.log import start_logging
from quire.observe.request_log import request_log_to
from quire.observe.trace import traces_to
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
    keys, engines, local, shelf = (
        import_module(f"quire.serve.{name}")
        for name in ("access.keys", "residency.engines", "residency.local", "residency.shelf")
    )
    start_logging(config.observe, is_whole_process=True)
    known = keys.read_keys(config.serve)
    if not known and not config.serve.host.startswith(LOCAL):
        logger.warning("anyone who reaches %s may use this server: set --api-keys or --api-key", config.serve.host)
    is_json = config.observe.log_format == "json"
    say: Say = logger.info if is_json else _print
    entries = _entries(options, given.store, say if is_json else None)
    num_stored = 0 if options.only else len(given.store.list())
    on_ready = partial(_tell_ready, say, [entry.name for entry in entries], num_stored)
    residency = local.LocalResidency(
        entries,
        config,
        engines.EngineLauncher(options.device),
        partial(_tell_loading, say),
        None if options.only else shelf.StoreShelf(given.store),
    )
    if config.serve.fronts > 1:
        hub = import_module("quire.serve.processes.hub")
        _run(hub.HubServer(residency, config, known, on_ready, has_library=not options.only), say)
        return
    app, models, server, service = (
        import_module(f"quire.serve.{name}") for name in ("http.app", "residency.models", "processes.server", "service")
    )
    library = None if options.only else _library(given.store)
    with traces_to(config.serve.otlp_endpoint) as traces, request_log_to(config.serve.request_log) as logs:
        observers = (partial(log_access, logging.getLogger("quire.access")), *traces, *logs)
        served = models.Models(residency, config)
        shared = service.Service(config, served, app.all_dialects(), known, observers=observers, library=library)
        _run(server.Serving(shared, on_ready), say)


def _library(store: Store) -> Any:
    check = import_module("quire.engine.supported").check_supported
    return import_module("quire.gateway.library").StoreLibrary(store, check)


def _run(serving: Any, say: Say) -> None:
    say(f"Listening at {serving.url}")
    serving.run_until_signal()


def _entries(options: ServeOptions, store: Store, say: Say | None) -> list[Any]:
    shelf = import_module("quire.serve.residency.shelf")
    entries: dict[str, Any] = {}
    texts = options.models or (() if store.list() else (DEFAULT_MODEL,))
    if options.only and not texts:
        raise InvalidRequest("--only needs models: quire serve MODEL --only.", field="models")
    for text in texts:
        named = SERVED_AS.fullmatch(text)
        given, rest = (named["name"], named["model"]) if named else ("", text)
        name = parse_name(rest)
        shown_as = given or (_file_name(name) if name.kind == "path" else shelf.display_name(name))
        if shown_as in entries:
            raise InvalidRequest(f"Two models would be served as {shown_as}: write NAME={rest}.", field="models")
        aliases = (name.name, name.path.name, _file_name(name)) if name.kind == "path" else shelf.aliases_of(name)
        entries[shown_as] = shelf.ModelEntry(shown_as, partial(_locate, store, say, str(name)), aliases)
    return list(entries.values())


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
