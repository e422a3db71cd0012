"""`quire bench cpu-large [SIZE] [FORMAT]`: random models larger than the caches on this CPU, beside llama.cpp.

Without arguments all are measured: 22 GB on disk, half an hour. Both engines have the same file in the same run. Files
are kept for the next run until `--delete`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from quire.bench.cpu import CpuBench, find_tools
from quire.bench.engines.large_model import FORMATS, SHAPES, WriteModel, delete_large_models, large_models
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.figures.cpu_results import FormatResult, StreamsResult
from quire.bench.figures.figure import Figure, at_least, at_least_times
from quire.bench.figures.stream_figures import bandwidth_figure, one_stream_figures
from quire.bench.figures.table import figure_table
from quire.bench.load.stream_loads import OUTPUT_TOKENS, UNIQUE_TOKENS, StreamSizes
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load

STREAMS = StreamSizes(num_streams=8, num_requests=16, num_cold=1)
NUM_REPEATS = 2
BANDWIDTH_GOAL, UNIQUE_GOAL = at_least(75), at_least_times(3)


def main(arguments: argparse.Namespace) -> None:
    """Parse the rest of the command line, measure, and print a table."""
    parser = argparse.ArgumentParser(prog="quire bench cpu-large", description=__doc__)
    parser.add_argument("format", nargs="?", choices=tuple(FORMATS), help="one format; without it, all")
    parser.add_argument("--one-stream", action="store_true", help="do not measure 8 streams")
    parser.add_argument("--delete", action="store_true", help="delete the files, and measure nothing")
    options = parser.parse_args(arguments.rest)
    if arguments.model and arguments.model not in SHAPES:
        parser.error(f"there is no size {arguments.model!r}: {', '.join(SHAPES)}")
    home = home_folder(load())
    if options.delete:
        print(f"{delete_large_models(home / 'bench') / 1e9:.1f} GB deleted")
        return
    figures: list[Figure] = []
    for label, write in large_models():
        size, format = label.split()
        if arguments.model in ("", size) and options.format in (None, format):
            sizes = None if options.one_stream else STREAMS
            figures += _measure(label, write, home, sizes, with_peer=not arguments.no_peer)
    print(describe_machine())
    print(figure_table(figures))


def _measure(label: str, write: WriteModel, home: Path, sizes: StreamSizes | None, with_peer: bool) -> Iterator[Figure]:
    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    say(f"writing {label}")
    facts = replace(ModelFacts.of(write(model_path(""), home / "bench")), label=label)
    bench = CpuBench(find_tools(home, facts, say) if with_peer else None, say, NUM_REPEATS)
    turn = bench.measure_stream(facts)
    yield from one_stream_figures([turn])
    yield from bandwidth_figures(turn)
    if sizes is not None:
        yield unique_figure(label, *bench.measure_streams(facts, sizes), sizes.num_streams)


def bandwidth_figures(turn: FormatResult) -> Iterator[Figure]:
    """Yield the share of the machine's bandwidth, if that could be measured."""
    if turn.ours.peaks:
        yield bandwidth_figure(turn, BANDWIDTH_GOAL)


def unique_figure(label: str, own: StreamsResult, other: StreamsResult | None, num_streams: int) -> Figure:
    """Return the output rate of streams that share nothing."""
    peer = None if other is None else other.loads.unique.output_per_second
    name, note = f"unique, {num_streams} streams, output, {label}", f"{UNIQUE_TOKENS} tokens in, {OUTPUT_TOKENS} out"
    return Figure(name, own.loads.unique.output_per_second, "tok/s", UNIQUE_GOAL, f"{note}; llama-server", peer=peer)
