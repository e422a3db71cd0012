"""The options that say what a benchmark asks, and how hard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.cli.options import argument, option
from quire.store.store import DEFAULT_MODEL

WORKLOAD, LOAD, FIGURES, SERVER = "What is asked", "How hard", "Figures", "The server"
DEFAULT_CLIENTS, DEFAULT_REQUESTS = "8", 64


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Of every benchmark that runs a workload."""

    workload: tuple[str, ...] = option(
        (),
        "NAME or NAME:option=value,…; may be given again. `quire bench workloads` lists them. Default unique.",
        panel=WORKLOAD,
    )
    input_len: str = option(
        "",
        "Words of a prompt, about as many tokens: 256, 100-300, lognormal:256:0.8, empirical:10/20/500, @FILE.",
        *("--input-len", "--random-input-len"),
        panel=WORKLOAD,
    )
    output_len: str = option(
        "", "Tokens of an answer, written alike.", "--output-len", "--random-output-len", panel=WORKLOAD
    )
    seed: int = option(0, "The same seed, the same prompts.", panel=WORKLOAD)
    concurrency: str = option(
        "",
        f"Clients that each ask again when they are answered; several loads as 1,8,32. Default {DEFAULT_CLIENTS}.",
        *("--concurrency", "--max-concurrency"),
        panel=LOAD,
    )
    request_rate: str = option(
        "", "Requests a second, whoever waits; several as 1,2,4.", "--request-rate", "--rate", panel=LOAD
    )
    arrivals: str = option(
        "poisson", "How they come: poisson, constant, gamma:SHAPE, bursts:SIZE, ramp:START.", panel=LOAD
    )
    burstiness: float = option(0.0, "The same as --arrivals gamma:SHAPE.", panel=LOAD, show_default=False)
    requests: int = option(
        0,
        f"Requests of each load. Default {DEFAULT_REQUESTS}.",
        *("--requests", "--num-prompts"),
        panel=LOAD,
        show_default=False,
    )
    duration: float = option(
        0.0, "Seconds of each load, instead of a number of requests.", panel=LOAD, show_default=False
    )
    warmup: int = option(
        -1,
        "Requests before each load that do not count. Default: one a client, 16 at most.",
        *("--warmup", "--num-warmups"),
        panel=LOAD,
        show_default=False,
    )
    goodput: tuple[str, ...] = option(
        (), "What is still good, in milliseconds: ttft:500 tpot:50 e2el:3000.", panel=FIGURES
    )
    price_per_hour: float = option(
        0.0, "Of the machine, in any currency: what a million tokens cost.", panel=FIGURES, show_default=False
    )
    out: str = option("", "Folder for report.html, results.json, .csv, .md and requests.csv.", panel=FIGURES)

    def folder(self) -> Path | None:
        """Where files go. None: nowhere."""
        return Path(self.out).expanduser() if self.out else None


@dataclass(frozen=True, slots=True)
class ServerOptions(LoadOptions):
    """Of those that ask over HTTP."""

    model: str = option("", "Its name. Default: the first that the server lists.", panel=SERVER)
    api: str = option("chat", "chat or completions.", panel=SERVER)
    key: str = option("", "Sent as a bearer token.", "--api-key", panel=SERVER)
    temperature: float = option(0.0, "Of sampling; 0 is greedy.", panel=SERVER)
    ignore_eos: bool = option(
        True,
        "Ask for answers of exactly the length, or let the model end them.",
        "--ignore-eos/--no-ignore-eos",
        panel=SERVER,
    )
    extra_body: str = option("", "JSON with more fields for every request.", panel=SERVER)
    timeout: float = option(600.0, "Seconds for one answer.", panel=SERVER)


@dataclass(frozen=True, slots=True)
class ServeOptions(ServerOptions):
    """One server."""

    url: str = option("", "Where it listens. Default: http://127.0.0.1:8000.", panel=SERVER)
    start: str = option("", "Start it with this command, and measure that too; {port} is a free one.", panel=SERVER)
    name: str = option("server", "What it is called in reports.", panel=SERVER)
    json: bool = option(False, "Print one JSON object.", "--json", panel=FIGURES)


@dataclass(frozen=True, slots=True)
class CompareOptions(ServerOptions):
    """Several servers."""

    engine: tuple[str, ...] = option(
        (), "NAME=URL, NAME=URL#MODEL, or NAME='COMMAND' to start it; {port} in it is a free one.", panel=SERVER
    )
    json: bool = option(False, "Print one JSON object.", "--json", panel=FIGURES)


@dataclass(frozen=True, slots=True)
class OfflineOptions(LoadOptions):
    """Our engine alone."""

    model: str = argument(DEFAULT_MODEL, "A name or a path, as quire run takes it.")
    device: str = option("cpu", "Where to compute.")
    json: bool = option(False, "Print one JSON object.", "--json", panel=FIGURES)


@dataclass(frozen=True, slots=True)
class KernelsOptions:
    """Which, and for how long."""

    device: str = option("cpu", "Whose.")
    seconds: float = option(0.2, "For each op and size.")
