"""`quire bench cpu-hybrid [NAME]`: random models with attention and states on this CPU, beside llama.cpp.

NAME is that of a file, such as lfm2.q8_0; without it, all are measured. Both engines have the same file in the same
run. Many streams are measured with the first format of each model alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from quire.bench.cpu import CpuBench, find_tools
from quire.bench.engines.hybrid_model import FORMATS, SHAPES, write_hybrid_model
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.figures.cpu_results import QUICK, CpuBenchSizes, StreamsResult
from quire.bench.figures.figure import Figure, at_least_times
from quire.bench.figures.stream_figures import one_stream_figures
from quire.bench.figures.table import figure_table
from quire.bench.load.stream_loads import OUTPUT_TOKENS, OWN_TOKENS, SHARED_TOKENS, UNIQUE_TOKENS
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load

NUM_TURNS, QUICK_TURNS = 3, 1
FILES = tuple(f"{name}.{format}" for name in SHAPES for format in FORMATS)
WITH_STREAMS = tuple(f"{name}.{next(iter(FORMATS))}" for name in SHAPES)
SHARED_GOAL = at_least_times(6)


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table, and progress on standard error."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if options.model and options.model not in FILES:
        raise SystemExit(f"There is no model {options.model!r}. There are: {', '.join(FILES)}.")
    home, sizes = home_folder(load()), QUICK if options.quick else CpuBenchSizes()
    figures: list[Figure] = []
    for file in (options.model,) if options.model else FILES:
        name, _, format = file.partition(".")
        into = home / "bench" / f"{file}.gguf"
        facts = ModelFacts.of(write_hybrid_model(SHAPES[name](), format, model_path(""), into), name)
        tools = None if options.no_peer else find_tools(home, facts, say)
        bench = CpuBench(tools, say, sizes.num_repeats)
        turns = [bench.measure_stream(facts) for _ in range(QUICK_TURNS if options.quick else NUM_TURNS)]
        figures += one_stream_figures(turns)
        if options.model or file in WITH_STREAMS:
            streams = bench.measure_streams(facts, sizes.streams)
            figures += many_streams_figures(facts.label, *streams, sizes.streams.num_streams)
    print(describe_machine())
    print(figure_table(figures))


def many_streams_figures(
    label: str, own: StreamsResult, other: StreamsResult | None, num_streams: int
) -> Iterator[Figure]:
    """Yield streams that share nothing, then streams that share most of their prompts."""
    peer = None if other is None else other.loads.unique.output_per_second
    name, note = (
        f"unique, {num_streams} streams, output, {label}",
        f"{UNIQUE_TOKENS} tokens in, {OUTPUT_TOKENS} out; llama-server",
    )
    yield Figure(name, own.loads.unique.output_per_second, "tok/s", None, note, peer=peer)
    peer = None if other is None else other.loads.shared.output_per_second
    name = f"shared prefix, {num_streams} streams, output, {label}"
    note = f"{SHARED_TOKENS} shared tokens and {OWN_TOKENS} more in, {OUTPUT_TOKENS} out; llama-server"
    yield Figure(name, own.loads.shared.output_per_second, "tok/s", SHARED_GOAL, note, peer=peer)
