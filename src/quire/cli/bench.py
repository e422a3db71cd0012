"""`quire bench`: measure any engine on your own traffic. Each part is imported when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from quire.cli.bench_options import CompareOptions, KernelsOptions, OfflineOptions, ServeOptions
from quire.cli.options import Given, command

LISTS = ("--goodput", "--engine", "--workload")  # take all words up to the next option, as argparse's do
ELSEWHERE = {  # options of other benchmarks, and what they are here
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


class _Asks(TyperCommand):
    """Takes `--goodput ttft:500 tpot:50`, and knows the options of other benchmarks."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        taken: list[str] = []
        holder = ""
        for word in args:
            name = word.partition("=")[0]
            if name in ELSEWHERE:
                raise typer.BadParameter(f"there is no {name} here. Use {ELSEWHERE[name]}.", ctx)
            if word.startswith("-"):
                holder = word if word in LISTS else ""
                taken += [] if holder else [word]
            else:
                taken += [holder, word] if holder else [word]
        return super().parse_args(ctx, taken)


bench = typer.Typer(
    help="Measure any engine, on any workload.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Nothing to choose."""


@command(ServeOptions, "observe")
def serve(options: ServeOptions, given: Given) -> None:
    """Measure a server that speaks OpenAI's API: Quire, vLLM, SGLang, TensorRT-LLM, llama-server, Ollama, …"""
    import_module("quire.cli.bench_run").serve(options)


@command(CompareOptions, "observe")
def compare(options: CompareOptions, given: Given) -> None:
    """Measure engines one after the other with the same prompts, and write a report."""
    import_module("quire.cli.bench_run").compare_engines(options)


@command(OfflineOptions, "cache", "scheduler", "weights", "device", "store", "observe")
def offline(options: OfflineOptions, given: Given) -> None:
    """Measure the engine in this process, without HTTP."""
    import_module("quire.cli.bench_run").offline(options, given.of_engine)


@command(KernelsOptions, "observe")
def kernels(options: KernelsOptions, given: Given) -> None:
    """Measure single ops against what the machine could do at most."""
    typer.echo(import_module("quire.bench.kernels").kernel_table(options.device, options.seconds))


@command(NoOptions)
def workloads(options: NoOptions, given: Given) -> None:
    """List the workloads with their options."""
    for name, about, choices in import_module("quire.bench.load.workload_spec").describe_workloads():
        typer.echo(f"{name}\n  {about}\n  {choices}")


def _part(name: str, about: str) -> None:
    """A part of `python -m quire.bench`, under its name."""

    @bench.command(name, help=about, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def run_part(context: typer.Context) -> None:
        import_module("quire.bench.__main__").main([name, *context.args])


bench.command("serve", cls=_Asks)(serve)
bench.command("compare", cls=_Asks)(compare)
bench.command("offline", cls=_Asks)(offline)
bench.command("kernels")(kernels)
bench.command("workloads")(workloads)
_part("core", "The scheduler and the cache alone, with their goals.")
_part("cpu", "A model on this CPU beside llama.cpp: cpu [MODEL] [--no-peer] [--large] [--quick].")
_part("front", "How many tokens one front process streams: front [MODEL].")
_part("models", "Many models in one memory: models [MODEL].")
_part("gpu", "Random models on a GPU under fixed loads: gpu [--shape llama8b] [--fp8] [--scenarios c1,c10,…].")
_part(
    "tune", "Find the fastest way to multiply a model's matrices on this GPU: tune [MODEL] [--shape llama8b] [--fp8]."
)
_part("generator", "How many tokens this benchmark's own client takes, and how late it is.")
