"""`python -m quire.bench relay`: what a gateway costs, in processor time for a token and in time for a request.

Four processes: the clients here, the gateway, a server behind it, and the server's engine, which answers at once. The
engine paces its tokens, so that every token is its own event; the processor time of the gateway alone is measured. For
the time that the gateway adds, the same short requests go to the server and through the gateway, alternately.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from urllib.parse import urlsplit

from quire.bench.engines.model_path import model_path
from quire.bench.engines.quire_server import one_model_server
from quire.bench.engines.server_process import child_server
from quire.bench.figures.figure import Figure, at_most
from quire.bench.figures.table import figure_table
from quire.bench.front import run_clients
from quire.bench.machine.description import describe_machine
from quire.bench.machine.processes import processor_seconds
from quire.config import load
from quire.gateway.server.service import GatewayService
from quire.gateway.server.serving import GatewayServing
from quire.gateway.upstreams.declared import UpstreamSpec, spec_of_url
from quire.serve.access.keys import ApiKeys
from quire.serve.http.app import all_dialects
from quire.text.model_text import ModelText

PACE = 6_000.0  # tokens a second
NUM_STREAMS, NUM_TOKENS = 64, 256
NUM_REQUESTS = 300
READY_SECONDS = 60.0
MICROSECOND, MILLISECOND = 1e-6, 1e-3


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    print(describe_machine())
    quick = options.quick
    model = str(model_path(options.model))
    print(
        figure_table([token_cost(model, 16 if quick else NUM_TOKENS), added_time(model, 10 if quick else NUM_REQUESTS)])
    )


def token_cost(model: str, num_tokens: int) -> Figure:
    """Measure the gateway's processor time for a relayed token."""
    with one_model_server(model, str(PACE)) as (_, server), gateway_of(server) as (process, url):
        asyncio.run(run_clients(url, 8, 8))  # warm-up
        before = processor_seconds(process) or 0.0
        began, ended, num_events = asyncio.run(run_clients(url, NUM_STREAMS, num_tokens))
        used = (processor_seconds(process) or 0.0) - before
    total = NUM_STREAMS * num_tokens
    note = f"{NUM_STREAMS} streams, {total / (ended - began):,.0f} tok/s, {num_events / total:.2f} events a token"
    return Figure("processor time of the gateway for a token", used / total / MICROSECOND, "µs", at_most(65.0), note)


def added_time(model: str, num_requests: int) -> Figure:
    """Measure the time that the gateway adds to a request of one token, at the median."""
    with one_model_server(model, "inf") as (_, server), gateway_of(server) as (_, url):
        direct, relayed = _Caller(server), _Caller(url)
        for caller in (direct, relayed):
            for _ in range(5):
                caller.seconds()
        pairs = [(direct.seconds(), relayed.seconds()) for _ in range(num_requests)]
    added = median(through for _, through in pairs) - median(alone for alone, _ in pairs)
    note = f"direct {median(alone for alone, _ in pairs) / MILLISECOND:.2f} ms"
    return Figure("time that the gateway adds, median", added / MILLISECOND, "ms", at_most(1.0), note)


class _Caller:
    """Sends one short request after the other over one connection."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port)
        fields = {"model": "m", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1}
        self._body = json.dumps(fields).encode()

    def seconds(self) -> float:
        began = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", self._body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return time.perf_counter() - began


@contextmanager
def gateway_of(*urls: str) -> Iterator[tuple[int, str]]:
    """A gateway in a child process, once it can answer."""
    with _child(*urls) as (process, url):
        address, deadline = urlsplit(url), time.monotonic() + READY_SECONDS
        while True:
            connection = http.client.HTTPConnection(address.hostname or "", address.port)
            connection.request("GET", "/ready")
            status = connection.getresponse().status
            connection.close()
            if status == 200:
                break
            if time.monotonic() > deadline:
                raise TimeoutError("the gateway is not ready")
            time.sleep(0.1)
        time.sleep(1.0)  # it reads the tokenizer
        yield process, url


def _child(*urls: str) -> AbstractContextManager[tuple[int, str]]:
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import run_gateway; run_gateway({urls!r})"
    return child_server([sys.executable, "-c", code])


def run_gateway(urls: tuple[str, ...]) -> None:
    """Run in the child: a gateway until a signal."""
    config = load({"port": 0, "log_level": "warning", "drain_seconds": 1}, {})
    specs: list[UpstreamSpec] = [spec_of_url(url) for url in urls]
    serving = GatewayServing(GatewayService(config, all_dialects(), ApiKeys(()), specs, _no_text))
    print(serving.url, flush=True)
    serving.run_until_signal()


def _no_text(name: str) -> ModelText:
    raise OSError(f"{name} is not in a store")
