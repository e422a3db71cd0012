"""`quire bench cpu-hybrid [NAME]`: random models with attention and states on this CPU, beside llama.cpp.

NAME is that of a file, such as lfm2.q8_0; without it, all are measured. Both engines have the same file in the same
run. `--only formats` is one stream and `--only streams` many; many streams are measured with the first format of each
model alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from quire.bench.cpu_bench import CpuBench, find_peers
from quire.bench.engines.hybrid_model import FORMATS, SHAPES, write_hybrid_model
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.engines.peer import LLAMA_CPP
from quire.bench.figures.cpu_goals import LARGE_DECODE, LARGE_PROMPT
from quire.bench.figures.cpu_results import QUICK, CpuBenchSizes
from quire.bench.figures.figure import Figure, at_least_times
from quire.bench.figures.many_streams import shared_figures, unique_figure
from quire.bench.figures.one_stream import decode_figure, prompt_figure
from quire.bench.figures.table import figure_table
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load

NUM_TURNS, QUICK_TURNS = 3, 1
FILES = tuple(f"{name}.{format}" for name in SHAPES for format in FORMATS)
WITH_STREAMS = tuple(f"{name}.{next(iter(FORMATS))}" for name in SHAPES)
SHARED_GOAL = at_least_times(6, LLAMA_CPP)


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table, and progress on standard error."""
    if options.model and options.model not in FILES:
        raise SystemExit(f"There is no model {options.model!r}. There are: {', '.join(FILES)}.")
    home, figures = home_folder(load()), list[Figure]()
    for file in (options.model,) if options.model else FILES:
        figures += _measure(file, home, options)
    print(describe_machine())
    print(figure_table(figures))


def _measure(file: str, home: Path, options: argparse.Namespace) -> Iterator[Figure]:
    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    sizes = QUICK if options.quick else CpuBenchSizes()
    name, _, format = file.partition(".")
    into = home / "bench" / f"{file}.gguf"
    facts = ModelFacts.of(write_hybrid_model(SHAPES[name](), format, model_path(""), into), name)
    bench = CpuBench(find_peers(options.peers, home, facts, say), say, sizes.num_repeats)
    if "formats" in (options.only or ("formats",)):
        result = bench.measure_stream(facts, QUICK_TURNS if options.quick else NUM_TURNS)
        yield prompt_figure(result, LARGE_PROMPT)
        yield decode_figure(result, LARGE_DECODE)
    if "streams" in (options.only or ("streams",)) and (options.model or file in WITH_STREAMS):
        streams = bench.measure_streams(facts, sizes.streams)
        yield unique_figure(streams, None, facts.label)
        yield from shared_figures(streams, SHARED_GOAL, facts.label)
