"""`quire bench gateway-load`: real servers behind a gateway, by policy, beside one server with the summed cache.

Each workload is sent to: one server with all the cache; four servers with a quarter of it each, behind our gateway with
each balancer; and the same four behind another gateway, if `--smg` names its program. Caches are flushed before each
run, and every run gets the same requests. Hits and computed tokens are the engines' own counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from quire.bench.engines.http_client import HttpEngineClient, HttpTarget
from quire.bench.engines.model_path import model_path
from quire.bench.engines.quire_server import one_model_server
from quire.bench.engines.server_process import free_port, stop_process
from quire.bench.load.patterns import ClosedLoop, StopAfter
from quire.bench.load.request_result import RequestResult
from quire.bench.load.run_load import run_load
from quire.bench.load.workload_spec import parse_workload
from quire.bench.machine.description import describe_machine

WORKLOADS = {  # name -> spec; prefixes that fill about the summed cache
    "chat": "chat:system=200,output=16",
    "rag": "rag:documents=24,document=200-300,found=1,output=16",
    "agent": "agent:tools=8,tool=40,output=16",
    "shared": "shared:prefix=400,groups=24,output=16",
}
BALANCERS = ("cache", "least_time", "round_robin")
SETTINGS: dict[str, Any] = {"max_context": 2048, "max_rows": 16, "sampling_defaults": "none"}
SINGLE, SMG = "one server, summed cache", "SMG cache_aware"
READY_SECONDS = 60.0
SETTLE_SECONDS = 1.5  # after a flush: until the gateway has seen it
HEAD = ("gateway and policy", "hit rate", "of one server", "first token p50", "p99", "tokens computed", "seconds")


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One workload behind one policy."""

    policy: str
    hit_rate: float
    computed_tokens: int
    results: Sequence[RequestResult]
    seconds: float

    def first_token(self, quantile: float) -> float:
        """Seconds to the first token."""
        waits = sorted(each.first_token for each in self.results if each.is_success)
        return waits[min(int(quantile * len(waits)), len(waits) - 1)] if waits else float("nan")

    @property
    def num_failed(self) -> int:
        """Requests without an answer."""
        return sum(not each.is_success for each in self.results)


def main(options: argparse.Namespace) -> None:
    """Print a table for each workload."""
    parser = argparse.ArgumentParser(prog="quire bench gateway-load", description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), metavar="NAME,…", help="what to send")
    parser.add_argument("--balance", default=",".join(BALANCERS), metavar="NAME,…", help="balancers to compare")
    parser.add_argument("--smg", default="", metavar="PROGRAM", help="the other gateway, as installed")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=384, help="KV blocks of each replica")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=128, help="of each run")
    parsed = parser.parse_args(options.rest)
    if options.quick:
        parsed.requests, parsed.workloads = 16, "shared"
    print(describe_machine())
    measure = GatewayLoad(str(model_path(options.model)), parsed)
    for workload in parsed.workloads.split(","):
        print(f"\n{workload}: `{WORKLOADS[workload]}`, {parsed.clients} clients, {parsed.requests} requests\n")
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        single: PolicyRun | None = None
        for run in measure.runs(WORKLOADS[workload]):
            single = single or run
            print(f"| {' | '.join(run_row(run, single))} |", flush=True)


def run_row(run: PolicyRun, single: PolicyRun) -> list[str]:
    """Return a run as cells."""
    failed = f", {run.num_failed} failed" if run.num_failed else ""
    return [
        run.policy + failed,
        f"{run.hit_rate:.1%}",
        f"{run.hit_rate / single.hit_rate:.1%}" if single.hit_rate else "",
        f"{run.first_token(0.5) * 1e3:,.0f} ms",
        f"{run.first_token(0.99) * 1e3:,.0f} ms",
        f"{run.computed_tokens:,}",
        f"{run.seconds:.1f}",
    ]


class GatewayLoad:
    """The servers of a measurement, and its runs."""

    def __init__(self, model: str, options: argparse.Namespace) -> None:
        self._model = model
        self._options = options

    def runs(self, workload: str) -> Iterator[PolicyRun]:
        """Measure one workload with each policy, the single server first."""
        options = self._options
        with self._server(options.blocks * options.replicas) as url:
            yield self._run(SINGLE, workload, url, [url])
        with ExitStack() as stack:
            processors = sorted(os.sched_getaffinity(0))
            urls = [
                stack.enter_context(self._server(options.blocks, processors[number % len(processors)]))
                for number in range(options.replicas)
            ]
            for name in filter(None, options.balance.split(",")):
                with quire_gateway(urls, name) as gateway:
                    yield self._run(f"quire gateway, {name}", workload, gateway, urls)
            if options.smg:
                with other_gateway(options.smg, urls) as gateway:
                    yield self._run(SMG, workload, gateway, urls)

    @contextmanager
    def _server(self, num_blocks: int, processor: int | None = None) -> Iterator[str]:
        """Serve the model as "m", on one processor or on all."""
        before = os.sched_getaffinity(0)
        with ExitStack() as stack:
            if processor is not None:
                os.sched_setaffinity(0, {processor})  # the child inherits it
            try:
                _, url = stack.enter_context(one_model_server(self._model, None, num_blocks=num_blocks, **SETTINGS))
            finally:
                os.sched_setaffinity(0, before)
            _wait_until_ready(url, "/ready")
            yield url

    def _run(self, policy: str, workload: str, target: str, servers: Sequence[str]) -> PolicyRun:
        for url in servers:
            httpx.post(f"{url}/v1/cache/flush", trust_env=False).raise_for_status()
        time.sleep(SETTLE_SECONDS)
        before = [_load(url) for url in servers]
        began = time.monotonic()
        results = asyncio.run(self._send(workload, target))
        seconds = time.monotonic() - began
        after = [_load(url) for url in servers]

        def counted(name: str) -> int:
            return sum(new[name] - old[name] for new, old in zip(after, before, strict=True))

        hit_rate = counted("hit_tokens") / max(counted("queried_tokens"), 1)
        return PolicyRun(policy, hit_rate, counted("computed_tokens"), results, seconds)

    async def _send(self, workload: str, url: str) -> list[RequestResult]:
        client = HttpEngineClient(HttpTarget(url, "m", timeout=120.0))
        sessions = parse_workload(workload).sessions(random.Random("gateway-load"))
        try:
            stop = StopAfter(self._options.requests)
            return await run_load(client, sessions, ClosedLoop(self._options.clients), stop, lambda result: None)
        finally:
            client.close()


@contextmanager
def quire_gateway(urls: Sequence[str], balancer: str) -> Iterator[str]:
    """Run our gateway before these servers."""
    port = free_port()
    upstreams = [word for url in urls for word in ("--upstream", url)]
    command = [sys.executable, "-m", "quire", "gateway", *upstreams, "--port", str(port), "--balance", balancer]
    with _program([*command, "--log-level", "warning"], port) as url:
        _wait_until_ready(url, "/ready")
        yield url


@contextmanager
def other_gateway(program: str, urls: Sequence[str]) -> Iterator[str]:
    """Run SMG before these servers, with its cache-aware policy and its defaults."""
    port, metrics = free_port(), free_port()
    command = [program, "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
    command += ["--prometheus-port", str(metrics), "--worker-urls", *urls]
    with _program(command, port) as url:
        _wait_until_ready(url, "/health")
        yield url


@contextmanager
def _program(command: Sequence[str], port: int) -> Iterator[str]:
    log = Path(os.devnull)
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            stop_process(process)


def _wait_until_ready(url: str, path: str) -> None:
    """Wait until a server answers there, and answers a request."""
    deadline = time.monotonic() + READY_SECONDS
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url + path, trust_env=False).status_code == 200:
                reply = httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=30.0)
                if reply.status_code == 200:
                    return
        time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer within {READY_SECONDS:g} s.")


def _load(url: str) -> dict[str, int]:
    load: dict[str, int] = httpx.get(f"{url}/v1/load", trust_env=False).json()["models"]["m"]
    return load
