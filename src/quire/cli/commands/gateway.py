"""`quire gateway`: one endpoint for many servers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from quire.cli.options import CommandSettings, HelpPage, command, option
from quire.cli.terminal.progress import WriteLine, print_to_stderr
from quire.config import BadSetting, Config
from quire.observe.access_log import log_access
from quire.observe.log import start_logging
from quire.observe.trace import open_traces
from quire.store.store import Store
from quire.types.errors import InvalidRequest

# Of the settings of a server, those that a gateway has too.
OF_SERVER = (
    *("host", "port", "api_keys", "api_key", "routes", "tls_cert", "tls_key", "cors_origins", "allowed_hosts"),
    *("max_body_mb", "body_seconds", "header_seconds", "stall_seconds", "drain_seconds", "metrics_for"),
    "otlp_endpoint",
)
EXAMPLES = (
    "quire gateway --upstream http://10.0.0.1:8000 --upstream http://10.0.0.2:8000 --port 9000",
    "quire gateway --fleet fleet.yaml --api-keys keys.toml --spend-file spend.db",
    "quire gateway --port 9000 --balance least_time",
)
LOCAL_HOSTS = ("127.", "localhost", "::1")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Options of `quire gateway` beside the settings of config.py."""

    upstream: tuple[str, ...] = option(
        (), "URL of a server to send requests to; may be given several times. Or use --fleet, or let servers join."
    )


@command(GatewayOptions, "gateway", "observe", "store", names=OF_SERVER, help_page=HelpPage(EXAMPLES))
def gateway(options: GatewayOptions, settings: CommandSettings) -> None:
    """Serve many servers as one: cache-aware routing, failover in the middle of streams, keys and budgets."""
    config = settings.config
    # Imported here: no other command needs the packages of a gateway.
    keys, app, declared, service, serving = (
        import_module(f"quire.{name}")
        for name in (
            *("serve.access.keys", "serve.http.app", "gateway.upstreams.declared"),
            *("gateway.server.service", "gateway.server.serving"),
        )
    )
    start_logging(config.observe, is_whole_process=True)
    api_keys = keys.read_keys(config.serve, keeps_budgets=True)
    if not api_keys and not config.serve.host.startswith(LOCAL_HOSTS):
        logger.warning("no API key is set: anyone who can connect to %s can use it. Set --api-keys", config.serve.host)
    write_line: WriteLine = logger.info if config.observe.log_format == "json" else print_to_stderr
    try:
        specs = [declared.spec_of_url(url, key=config.gateway.upstream_key or "") for url in options.upstream]
    except InvalidRequest as error:
        raise BadSetting(error.public, field="upstream") from None
    if len({spec.name for spec in specs}) < len(specs):
        raise BadSetting("Two upstreams have the same URL.", field="upstream")
    read_text = partial(_read_text, settings.store, config)
    state = service.GatewayService(config, app.all_dialects(), api_keys, specs, read_text)
    with open_traces(config.serve.otlp_endpoint) as traces:
        state.observers = (partial(log_access, logging.getLogger("quire.access")), *traces)
        running = serving.GatewayServing(state)
        write_line(f"Listening at {running.url}")
        running.run_until_signal()


def _read_text(store: Store, config: Config, name: str) -> Any:
    """Read the tokenizer and template of a model of the store, or of a path."""
    checkpoint = import_module("quire.weights.checkpoint").open_checkpoint(store.resolve(name))
    return import_module("quire.engine.model_files").read_model_text(checkpoint, config.sampling.sampling_defaults)
