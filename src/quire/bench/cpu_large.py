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

from quire.bench.cpu_bench import CpuBench, find_peers
from quire.bench.engines.large_model import FORMATS, SHAPES, delete_large_models, large_models
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.figures.cpu_goals import BANDWIDTH_SHARE, LARGE_DECODE, LARGE_PROMPT, LARGE_UNIQUE
from quire.bench.figures.figure import Figure
from quire.bench.figures.many_streams import unique_figure
from quire.bench.figures.one_stream import bandwidth_figures, decode_figure, prompt_figure
from quire.bench.figures.table import figure_table
from quire.bench.load.stream_loads import StreamSizes
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load

STREAMS = StreamSizes(num_streams=8, num_requests=16, only_unique=True)
NUM_REPEATS = 2


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

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    bench = CpuBench(find_peers(arguments.peers, home, ModelFacts.of(model_path("")), say), say, NUM_REPEATS)
    figures: list[Figure] = []
    for label, _ in large_models():
        size, format = label.split()
        if arguments.model in ("", size) and options.format in (None, format):
            figures += large_figures(label, bench, home, has_streams=not options.one_stream)
    print(describe_machine())
    print(figure_table(figures))


def large_figures(label: str, bench: CpuBench, home: Path, has_streams: bool) -> Iterator[Figure]:
    """Measure the model with this label (see large_models): one stream, and streams that share nothing."""
    bench.say(f"writing {label}")
    facts = replace(ModelFacts.of(dict(large_models())[label](model_path(""), home / "bench")), label=label)
    bench = replace(bench, num_repeats=NUM_REPEATS)
    result = bench.measure_stream(facts)
    yield prompt_figure(result, LARGE_PROMPT)
    yield decode_figure(result, LARGE_DECODE)
    yield from bandwidth_figures(result, BANDWIDTH_SHARE)
    if has_streams:
        yield unique_figure(bench.measure_streams(facts, STREAMS), LARGE_UNIQUE, label)
