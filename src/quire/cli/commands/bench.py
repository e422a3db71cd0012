"""`quire bench`: measure any engine on your own traffic. Each part is imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from quire.cli.commands.bench_options import (
    BenchCompareOptions,
    BenchOfflineOptions,
    BenchServeOptions,
    KernelsOptions,
)
from quire.cli.options import CommandSettings, command

LIST_OPTIONS = ("--goodput", "--engine", "--workload")  # take all words up to the next option, as in argparse
RENAMED_OPTIONS = {  # options of other benchmarks, and what to use here
    "--dataset-name": "--workload (quire bench workloads lists them)",
    "--dataset-path": "--workload trace=FILE",
    "--backend": "--api chat or --api completions",
    "--endpoint": "--api chat or --api completions",
    "--base-url": "--url",
    "--host": "--url",
    "--port": "--url",
    "--save-result": "--out FOLDER",
    "--result-dir": "--out FOLDER",
    "--percentile-metrics": "nothing: all of them are reported",
    "--ramp-up-strategy": "--arrivals ramp:START with --request-rate END",
    "--random-prefix-len": "--workload shared:prefix=LENGTH",
    "--num-clients": "--concurrency",
}


class _LoadCommand(TyperCommand):
    """Parses `--goodput ttft:500 tpot:50`, and names the equivalent for options of other benchmarks."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        list_option = ""
        for word in args:
            name = word.partition("=")[0]
            if name in RENAMED_OPTIONS:
                raise typer.BadParameter(f"there is no {name} here. Use {RENAMED_OPTIONS[name]}.", ctx)
            if word.startswith("-"):
                list_option = word if word in LIST_OPTIONS else ""
                words += [] if list_option else [word]
            else:
                words += [list_option, word] if list_option else [word]
        return super().parse_args(ctx, words)


bench = typer.Typer(
    help="Measure any engine, on any workload.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A command without options."""


@command(BenchServeOptions, "observe")
def bench_serve(options: BenchServeOptions, settings: CommandSettings) -> None:
    """Measure a server with an OpenAI API: Quire, vLLM, SGLang, TensorRT-LLM, llama-server, Ollama, …"""
    import_module("quire.cli.commands.bench_run").measure_server(options)


@command(BenchCompareOptions, "observe")
def bench_compare(options: BenchCompareOptions, settings: CommandSettings) -> None:
    """Measure several engines, one after the other, with the same prompts, and write a report."""
    import_module("quire.cli.commands.bench_run").run_comparison(options)


@command(BenchOfflineOptions, "cache", "scheduler", "speculation", "weights", "device", "store", "observe")
def bench_offline(options: BenchOfflineOptions, settings: CommandSettings) -> None:
    """Measure the engine in this process, without HTTP."""
    import_module("quire.cli.commands.bench_run").measure_local_engine(options, settings.flags)


@command(KernelsOptions, "observe")
def bench_kernels(options: KernelsOptions, settings: CommandSettings) -> None:
    """Measure single ops against the machine's peak."""
    typer.echo(import_module("quire.bench.kernels").kernel_table(options.device, options.seconds))


@command(NoOptions)
def bench_workloads(options: NoOptions, settings: CommandSettings) -> None:
    """List the workloads with their options."""
    for name, about, choices in import_module("quire.bench.load.workload_spec").describe_workloads():
        typer.echo(f"{name}\n  {about}\n  {choices}")


def _add_part(name: str, about: str) -> None:
    """Add a part of `python -m quire.bench` as a subcommand."""

    @bench.command(name, help=about, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def run_part(context: typer.Context) -> None:
        import_module("quire.bench.__main__").main([name, *context.args])


bench.command("serve", cls=_LoadCommand)(bench_serve)
bench.command("compare", cls=_LoadCommand)(bench_compare)
bench.command("offline", cls=_LoadCommand)(bench_offline)
bench.command("kernels")(bench_kernels)
bench.command("workloads")(bench_workloads)
_add_part("core", "The scheduler and the cache alone, with their targets.")
_add_part("cpu", "A model on this CPU beside llama.cpp and OpenVINO: cpu [MODEL] [--peers NAME,…] [--only NAME,…].")
_add_part("front", "Tokens per second that one front process can stream: front [MODEL].")
_add_part("models", "Several models sharing one memory budget: models [MODEL].")
_add_part("gpu", "Random models on a GPU under fixed loads: gpu [--shape llama8b] [--fp8] [--scenarios c1,c10,…].")
_add_part("tune", "Find the fastest matrix kernels for a model on this GPU: tune [MODEL] [--shape llama8b] [--fp8].")
_add_part(
    "speculate", "With and without drafts in turn: speculate [MODEL] [--loads code,…] [--concurrency 1,4] [--pairs N]."
)
_add_part("generator", "Capacity and delay of this benchmark's own client.")
