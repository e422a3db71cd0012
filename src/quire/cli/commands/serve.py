"""`quire serve`: serve models over HTTP."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.cli.completion import stored_models
from quire.cli.options import DEVICE_HELP, DEVICES, CommandSettings, HelpPage, argument, command, one_of, option
from quire.cli.terminal.progress import WriteLine, print_to_stderr, show_progress
from quire.config import Config
from quire.engine.messages import Loading
from quire.observe.access_log import log_access
from quire.observe.log import start_logging
from quire.observe.request_log import open_request_log
from quire.observe.trace import open_traces
from quire.store.names import MODEL_SUFFIXES, ModelName, parse_name
from quire.store.store import DEFAULT_MODEL, Store
from quire.types.errors import InvalidRequest

SECTIONS = (
    *("serve", "cache", "scheduler", "sampling", "grammar", "speculation", "embedding"),
    *("observe", "weights", "device", "store", "join", "transfer"),
)
EXAMPLES = (
    "quire serve",
    f"quire serve {DEFAULT_MODEL} --max-context 4096 --port 8080",
    f"quire serve chat={DEFAULT_MODEL} --only --api-keys keys.toml",
    f"quire serve {DEFAULT_MODEL} --join http://gateway:9000",
    "QUIRE_PORT=8080 quire serve --host 0.0.0.0 --api-key secret",
)
SERVED_AS = re.compile(r"(?P<name>[\w.:-]+)=(?P<model>.+)")
LOCAL_HOSTS = ("127.", "localhost", "::1")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `quire serve` beside the settings of config.py."""

    models: tuple[str, ...] = argument(
        (),
        "Models to load at the start and keep loaded: names or paths, as for `quire run`; NAME=MODEL serves MODEL as "
        f"NAME. Default: none, or {DEFAULT_MODEL} if the store is empty.",
        autocompletion=stored_models,
    )
    only: bool = option(False, "Serve only these models, not every model of the store.", "--only")
    device: str = option("auto", DEVICE_HELP, autocompletion=one_of(*DEVICES))


@command(ServeOptions, *SECTIONS, help_page=HelpPage(EXAMPLES))
def serve(options: ServeOptions, settings: CommandSettings) -> None:
    """Serve models over HTTP with the APIs of OpenAI, Anthropic and Ollama."""
    config = settings.config
    # Imported here: no other command needs the packages of a server.
    keys, engines, local, shelf = (
        import_module(f"quire.serve.{name}")
        for name in ("access.keys", "residency.engines", "residency.local", "residency.shelf")
    )
    start_logging(config.observe, is_whole_process=True)
    api_keys = keys.read_keys(config.serve)
    if not api_keys and not config.serve.host.startswith(LOCAL_HOSTS):
        logger.warning("no API key is set: anyone who can connect to %s can use it. Set --api-keys", config.serve.host)
    is_json = config.observe.log_format == "json"
    write_line: WriteLine = logger.info if is_json else print_to_stderr
    models_to_load = _models_to_load(options, settings.store, write_line if is_json else None)
    config = _with_draft(config, settings.store, write_line if is_json else None)
    num_stored = 0 if options.only else len(settings.store.list())
    on_ready = partial(_report_ready, write_line, [model.name for model in models_to_load], num_stored)
    residency = local.LocalResidency(
        models_to_load,
        config,
        engines.EngineLauncher(options.device),
        partial(_report_loading, write_line),
        None if options.only else shelf.StoreShelf(settings.store),
    )
    if config.serve.fronts > 1:
        hub = import_module("quire.serve.processes.hub")
        _run(hub.HubServer(residency, config, api_keys, on_ready, has_library=not options.only), write_line)
        return
    app, models, server, service = (
        import_module(f"quire.serve.{name}") for name in ("http.app", "residency.models", "processes.server", "service")
    )
    library = None if options.only else _library(settings.store)
    with open_traces(config.serve.otlp_endpoint) as traces, open_request_log(config.serve.request_log) as logs:
        observers = (partial(log_access, logging.getLogger("quire.access")), *traces, *logs)
        served = models.Models(residency, config)
        state = service.Service(config, served, app.all_dialects(), api_keys, observers=observers, library=library)
        _run(server.Serving(state, on_ready), write_line)


def _library(store: Store) -> Any:
    check = import_module("quire.engine.supported").check_supported
    return import_module("quire.gateway.library").StoreLibrary(store, check)


def _run(serving: Any, write_line: WriteLine) -> None:
    write_line(f"Listening at {serving.url}")
    serving.run_until_signal()


def _models_to_load(options: ServeOptions, store: Store, write_line: WriteLine | None) -> list[Any]:
    """Return the models named on the command line, each under the name that clients use."""
    shelf = import_module("quire.serve.residency.shelf")
    models: dict[str, Any] = {}
    texts = options.models or (() if store.list() else (DEFAULT_MODEL,))
    if options.only and not texts:
        raise InvalidRequest("--only needs the models to serve: quire serve MODEL --only.", field="models")
    for text in texts:
        match = SERVED_AS.fullmatch(text)
        public_name, model = (match["name"], match["model"]) if match else ("", text)
        name = parse_name(model)
        public_name = public_name or (_file_name(name) if name.kind == "path" else shelf.display_name(name))
        if public_name in models:
            raise InvalidRequest(f"Two models have the name {public_name}. Use NAME={model} for one.", field="models")
        aliases = (name.name, name.path.name, _file_name(name)) if name.kind == "path" else shelf.aliases_of(name)
        models[public_name] = shelf.ModelEntry(public_name, partial(_fetch, store, write_line, str(name)), aliases)
    return list(models.values())


def _with_draft(config: Config, store: Store, write_line: WriteLine | None) -> Config:
    """Return the settings with the path of the draft model, which is pulled if it is not on this disk."""
    if config.speculation.draft is None:
        return config
    path = _fetch(store, write_line, str(parse_name(config.speculation.draft)))
    return replace(config, speculation=replace(config.speculation, draft=str(path)))


def _file_name(name: ModelName) -> str:
    """Return the name that clients use for a path: without folders and suffix."""
    return reduce(str.removesuffix, MODEL_SUFFIXES, name.path.name)


def _fetch(store: Store, write_line: WriteLine | None, name: str) -> Path:
    with show_progress(write_line) as progress:
        return store.resolve(name, progress)


def _report_loading(write_line: WriteLine, loading: Loading) -> None:
    write_line(f"{loading.stage} … ({loading.seconds:.1f} s)")


def _report_ready(write_line: WriteLine, names: Sequence[str], num_stored: int, url: str) -> None:
    stored = [f"{num_stored} stored model{'' if num_stored == 1 else 's'} on request"] if num_stored else []
    write_line(f"Serving {' and '.join([', '.join(names)] * bool(names) + stored)} at {url}")
