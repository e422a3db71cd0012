"""`quire bench cpu-experts`: a random model with experts on this CPU, beside llama.cpp with the same file and run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from quire.bench.cpu_bench import CpuBench, find_peers
from quire.bench.engines.expert_model import write_expert_model
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.figures.cpu_goals import LARGE_DECODE, LARGE_PROMPT, LARGE_UNIQUE
from quire.bench.figures.cpu_results import QUICK, CpuBenchSizes, FormatResult, StreamsComparison
from quire.bench.figures.figure import Figure
from quire.bench.figures.many_streams import unique_figure
from quire.bench.figures.one_stream import decode_figure, prompt_figure
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
    bench = CpuBench(find_peers(options.peers, home, facts, say), say, sizes.num_repeats)
    result = bench.measure_stream(facts, QUICK_TURNS if options.quick else NUM_TURNS)
    streams = bench.measure_streams(facts, sizes.streams)
    print(describe_machine())
    print(figure_table(list(expert_figures(result, streams))))


def expert_figures(result: FormatResult, streams: StreamsComparison) -> Iterator[Figure]:
    """Yield prompts, one stream, and many."""
    yield prompt_figure(result, LARGE_PROMPT)
    yield decode_figure(result, LARGE_DECODE)
    yield unique_figure(streams, LARGE_UNIQUE, result.facts.label)
