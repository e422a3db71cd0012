"""`python -m quire.bench split`: compares two servers that do both with a prefill server and a decode server.

Both pairs are behind a gateway and get the same requests: long prompts with short answers, then short prompts with long
answers. A few clients each send one request after the other. The gateway's metrics have its estimated and the measured
times to first tokens. Each server has half of the processors.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from urllib.parse import urlsplit

from quire.bench.engines.model_path import model_path
from quire.bench.engines.quire_server import one_model_server
from quire.bench.machine.description import describe_machine
from quire.bench.relay import gateway_of

SECRET = "a secret for this benchmark only"
PAIRS = {"both + both": ("both", "both"), "prefill + decode": ("prefill", "decode")}
WORDS = (
    "river",
    "stone",
    "light",
    "paper",
    "green",
    "winter",
    "music",
    "seven",
    "bridge",
    "garden",
    "letter",
    "window",
)
NUM_CLIENTS = 4
HEAD = (
    *("load", "servers", "output tok/s", "first token p50", "p95", "between tokens p50", "p95"),
    *("source of the prompt", "first token estimated", "measured"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a benchmark run."""

    name: str
    num_words: int
    num_output: int
    num_requests: int  # of all clients


@dataclass(slots=True)
class LoadTimes:
    """The clients' measurements."""

    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0


def main(options: argparse.Namespace) -> None:
    """Print a table of all loads and pairs."""
    print(describe_machine())
    model = str(model_path(options.model))
    few = 2 if options.quick else 1
    loads = (Load("prompt-heavy", 600 // few, 16, 24 // few**3), Load("decode-heavy", 60, 96 // few, 24 // few**3))
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for load in loads:
        for pair, roles in PAIRS.items():
            with fleet(model, roles) as url:
                send_load(url, Load("warm-up", 40, 8, 8), seed="warm-up")
                before = first_token_counts(url)
                times = send_load(url, load, seed=load.name)
                after = first_token_counts(url)
            for row in table_rows(load, pair, times, before, after):
                print("| " + " | ".join(row) + " |", flush=True)


@contextmanager
def fleet(model: str, roles: tuple[str, ...]) -> Iterator[str]:
    """Start servers with these roles and a gateway; yield its URL once it reports the roles."""
    settings = {"max_context": 2048, "max_rows": 16, "transfer_secret": SECRET}
    with ExitStack() as stack:
        servers = []
        for number, role in enumerate(roles):
            with processors(number, len(roles)):
                servers.append(stack.enter_context(one_model_server(model, None, role=role, **settings)))
        _, url = stack.enter_context(gateway_of(*(server for _, server in servers)))
        deadline = time.monotonic() + 30.0
        while sorted(each["role"] for each in upstreams(url)) != sorted(roles):
            if time.monotonic() > deadline:
                raise TimeoutError("the gateway did not report the roles within 30 s")
            time.sleep(0.1)
        yield url


@contextmanager
def processors(number: int, count: int) -> Iterator[None]:
    """Bind processes that are started here to one of `count` equal shares of the processors."""
    allowed = sorted(os.sched_getaffinity(0))
    share = max(1, len(allowed) // count)
    os.sched_setaffinity(0, allowed[number * share % len(allowed) :][:share])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def upstreams(url: str) -> list[dict[str, str]]:
    """Return the gateway's upstreams."""
    found: list[dict[str, str]] = json.loads(_get(url, "/v1/upstreams"))["upstreams"]
    return found


def send_load(url: str, load: Load, seed: str) -> LoadTimes:
    """Send all requests of a load."""
    times, numbers, lock = LoadTimes(), iter(range(load.num_requests)), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            _stream(url, load, f"{seed} {number}", times, lock)

    began = time.perf_counter()
    clients = [threading.Thread(target=work) for _ in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    times.seconds = time.perf_counter() - began
    return times


def _stream(url: str, load: Load, seed: str, times: LoadTimes, lock: threading.Lock) -> None:
    words = random.Random(seed)
    text = " ".join(words.choice(WORDS) for _ in range(load.num_words))
    fields = {"model": "m", "prompt": text, "max_tokens": load.num_output, "temperature": 0, "stream": True}
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=300)
    began = time.perf_counter()
    body = json.dumps(fields | {"ignore_eos": True}).encode()
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    arrivals = []
    for line in response:
        if line.startswith(b"data: {"):
            arrivals.append(time.perf_counter())
    connection.close()
    assert response.status == 200 and arrivals, response.status
    with lock:
        times.first_tokens.append(arrivals[0] - began)
        times.num_tokens += load.num_output
        times.gaps += [later - earlier for earlier, later in pairwise(arrivals)]


def first_token_counts(url: str) -> dict[str, tuple[float, float, float]]:
    """Return streams, estimated and measured seconds to the first token, by source."""
    found: dict[str, dict[str, float]] = {}
    for line in _get(url, "/metrics").decode().splitlines():
        for name in ("streams", "estimated_first_token_seconds", "measured_first_token_seconds"):
            if line.startswith((f"quire_gateway_{name}{{", f"quire_gateway_{name}_total{{")):
                source = line.partition('source="')[2].partition('"')[0]
                found.setdefault(source, {})[name] = float(line.rpartition(" ")[2])
    return {source: tuple(values.values()) for source, values in found.items()}  # type: ignore[misc]


def table_rows(
    load: Load,
    pair: str,
    times: LoadTimes,
    before: Mapping[str, tuple[float, float, float]],
    after: Mapping[str, tuple[float, float, float]],
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each source of prompts."""
    first, gaps = _p50_p95(times.first_tokens), _p50_p95(times.gaps)
    head: tuple[str, ...] = (load.name, pair, f"{times.num_tokens / times.seconds:.1f}", *first, *gaps)
    for source, values in sorted(after.items()):
        num, estimated, measured = (now - then for now, then in zip(values, before.get(source, (0, 0, 0)), strict=True))
        if num:
            yield *head, f"{source} × {num:.0f}", f"{estimated / num:.2f} s", f"{measured / num:.2f} s"
            head = ("",) * len(head)


def _p50_p95(values: list[float]) -> tuple[str, str]:
    cuts = quantiles(values, n=20) if len(values) > 1 else [0.0] * 19
    return f"{cuts[9]:.3f} s", f"{cuts[18]:.3f} s"


def _get(url: str, path: str) -> bytes:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body
