"""`quire bench cpu-experts`: a random model with experts on this CPU, beside llama.cpp with the same file and run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from quire.bench.cpu import CpuBench, find_tools
from quire.bench.engines.expert_model import write_expert_model
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.figures.cpu_results import QUICK, CpuBenchSizes, FormatResult, StreamsResult
from quire.bench.figures.figure import Figure, at_least_times
from quire.bench.figures.stream_figures import one_stream_figures
from quire.bench.figures.table import figure_table
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load

NUM_TURNS, QUICK_TURNS = 3, 1


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table, and progress on standard error."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    home, sizes = home_folder(load()), QUICK if options.quick else CpuBenchSizes()
    facts = ModelFacts.of(write_expert_model(model_path(""), home / "bench" / "experts.q4_0.gguf"), "experts")
    tools = None if options.no_peer else find_tools(home, facts, say)
    bench = CpuBench(tools, say, sizes.num_repeats)
    turns = [bench.measure_stream(facts) for _ in range(QUICK_TURNS if options.quick else NUM_TURNS)]
    streams = bench.measure_streams(facts, sizes.streams)
    print(describe_machine())
    print(figure_table(list(expert_figures(turns, streams, sizes.streams.num_streams))))


def expert_figures(
    turns: Sequence[FormatResult], streams: tuple[StreamsResult, StreamsResult | None], num_streams: int
) -> Iterator[Figure]:
    """Yield prompts, one stream, and many."""
    yield from one_stream_figures(turns)
    label = turns[0].facts.label
    own, other = streams
    ours = own.loads.unique.output_per_second
    peer = None if other is None else other.loads.unique.output_per_second
    name, note = f"unique, {num_streams} streams, output, {label}", "256 tokens in, 64 out; llama-server"
    yield Figure(name, ours, "tok/s", at_least_times(3), note, peer=peer)
