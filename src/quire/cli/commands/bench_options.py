"""Options of `quire bench`: the workload, the load, the report and the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.cli.options import argument, option
from quire.store.store import DEFAULT_MODEL

WORKLOAD, LOAD, REPORT, SERVER = "Workload", "Load", "Report", "Server"
DEFAULT_CLIENTS, DEFAULT_REQUESTS = "8", 64


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of every benchmark that runs a workload."""

    workload: tuple[str, ...] = option(
        (),
        "NAME or NAME:option=value,…; can be repeated. `quire bench workloads` lists them. Default: unique.",
        panel=WORKLOAD,
    )
    input_len: str = option(
        "",
        "Words per prompt, about as many tokens: 256, 100-300, lognormal:256:0.8, empirical:10/20/500, @FILE.",
        *("--input-len", "--random-input-len"),
        panel=WORKLOAD,
    )
    output_len: str = option(
        "", "Tokens per answer, in the same notation.", "--output-len", "--random-output-len", panel=WORKLOAD
    )
    seed: int = option(0, "Random seed: the same seed gives the same prompts.", panel=WORKLOAD)
    concurrency: str = option(
        "",
        f"Closed loop: number of concurrent clients; several loads as 1,8,32. Default: {DEFAULT_CLIENTS}.",
        *("--concurrency", "--max-concurrency"),
        panel=LOAD,
    )
    request_rate: str = option(
        "", "Open loop: requests per second; several loads as 1,2,4.", "--request-rate", "--rate", panel=LOAD
    )
    arrivals: str = option(
        "poisson", "Arrivals of --request-rate: poisson, constant, gamma:SHAPE, bursts:SIZE, ramp:START.", panel=LOAD
    )
    burstiness: float = option(0.0, "Same as --arrivals gamma:SHAPE.", panel=LOAD, show_default=False)
    requests: int = option(
        0,
        f"Requests per load. Default: {DEFAULT_REQUESTS}.",
        *("--requests", "--num-prompts"),
        panel=LOAD,
        show_default=False,
    )
    duration: float = option(0.0, "Seconds per load, instead of a number of requests.", panel=LOAD, show_default=False)
    warmup: int = option(
        -1,
        "Warm-up requests before each load, not counted. Default: one per client, at most 16.",
        *("--warmup", "--num-warmups"),
        panel=LOAD,
        show_default=False,
    )
    goodput: tuple[str, ...] = option(
        (), "Limits of a good request, in milliseconds: ttft:500 tpot:50 e2el:3000.", panel=REPORT
    )
    price_per_hour: float = option(
        0.0,
        "Price of the machine per hour, in any currency, to report the cost of a million tokens.",
        panel=REPORT,
        show_default=False,
    )
    out: str = option("", "Write report.html, results.json, .csv, .md and requests.csv to this folder.", panel=REPORT)

    def folder(self) -> Path | None:
        """Folder of --out. None: no files are written."""
        return Path(self.out).expanduser() if self.out else None


@dataclass(frozen=True, slots=True)
class HttpLoadOptions(LoadOptions):
    """Options of the benchmarks over HTTP."""

    model: str = option("", "Model name. Default: the first that the server lists.", panel=SERVER)
    api: str = option("chat", "API to use: chat or completions.", panel=SERVER)
    key: str = option("", "API key, sent as a bearer token.", "--api-key", panel=SERVER)
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.", panel=SERVER)
    ignore_eos: bool = option(
        True,
        "Request answers of exactly --output-len tokens, or let the model stop.",
        "--ignore-eos/--no-ignore-eos",
        panel=SERVER,
    )
    extra_body: str = option("", "JSON object with more fields for every request.", panel=SERVER)
    timeout: float = option(600.0, "Timeout of one request, in seconds.", panel=SERVER)


@dataclass(frozen=True, slots=True)
class BenchServeOptions(HttpLoadOptions):
    """Options of `quire bench serve`."""

    url: str = option("", "URL of the server. Default: http://127.0.0.1:8000.", panel=SERVER)
    start: str = option(
        "", "Start the server with this command and measure its start-up; {port} becomes a free port.", panel=SERVER
    )
    name: str = option("server", "Name of the server in reports.", panel=SERVER)
    json: bool = option(False, "Print one JSON object.", "--json", panel=REPORT)


@dataclass(frozen=True, slots=True)
class BenchCompareOptions(HttpLoadOptions):
    """Options of `quire bench compare`."""

    engine: tuple[str, ...] = option(
        (), "NAME=URL, NAME=URL#MODEL, or NAME='COMMAND' to start it; {port} becomes a free port.", panel=SERVER
    )
    json: bool = option(False, "Print one JSON object.", "--json", panel=REPORT)


@dataclass(frozen=True, slots=True)
class BenchOfflineOptions(LoadOptions):
    """Options of `quire bench offline`."""

    model: str = argument(DEFAULT_MODEL, "A name or path, as for `quire run`.")
    device: str = option("cpu", "Device: cpu or cuda.")
    json: bool = option(False, "Print one JSON object.", "--json", panel=REPORT)


@dataclass(frozen=True, slots=True)
class KernelsOptions:
    """Options of `quire bench kernels`."""

    device: str = option("cpu", "Device: cpu or cuda.")
    seconds: float = option(0.2, "Seconds per op and size.")
