"""`quire bench cpu`: a model on this CPU beside llama.cpp, with the same file on the same machine in the same run.

Every measurement of ours runs in a child process. For a single stream our engine and the peer alternate, so that a
change of the machine's speed affects both; the machine's peak rates are measured in between (single_stream.py). If the
peer cannot be built, or one of its tools fails, that is reported and our measurements continue.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from quire.bench.accuracy.cpu_accuracy import Accuracy, compare_accuracy
from quire.bench.engines.child_process import run_in_child
from quire.bench.engines.in_process import measure_stream_loads
from quire.bench.engines.large_model import large_models
from quire.bench.engines.llama_cpp import LlamaCppTools, PeerFailed
from quire.bench.engines.llama_cpp_build import BUILD, PeerUnavailable, Say, get_peer
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.engines.single_stream import SingleStream, measure_peaks, measure_single_stream
from quire.bench.engines.start_time import compile_modules, start_seconds
from quire.bench.figures.cpu_figures import cpu_figures
from quire.bench.figures.cpu_results import (
    QUICK,
    CpuBenchSizes,
    CpuResults,
    FormatResult,
    PeerRates,
    StreamsResult,
)
from quire.bench.figures.table import figure_table
from quire.bench.load.sample_text import sample_text
from quire.bench.load.stream_loads import StreamResults, StreamSizes
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load
from quire.engine.model_files import read_model_text
from quire.store.sources.package_index import SMOLLM2_135M
from quire.store.store import DEFAULT_MODEL
from quire.weights.checkpoint import open_checkpoint

Value = TypeVar("Value")


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table, and progress on standard error."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    sizes = replace(QUICK if options.quick else CpuBenchSizes(), with_large=options.large)
    home, path = home_folder(load()), model_path(options.model)
    facts = ModelFacts.of(path)
    tools = None if options.no_peer else find_tools(home, facts, say)
    load_before = os.getloadavg()[0]
    results = measure_cpu(facts, sizes, tools, say)
    say("done")
    is_default = path.stat().st_size == SMOLLM2_135M.size
    peer = f"peer: llama.cpp {BUILD}" if tools is not None else "no peer"
    model = options.model or DEFAULT_MODEL
    print(f"{describe_machine()}; {model}; {peer}; load of the machine before: {load_before:.2f}\n")
    print(figure_table(cpu_figures(results, is_default)))


def find_tools(home: Path, facts: ModelFacts, say: Say) -> LlamaCppTools | None:
    """Return the peer's tools. None: it cannot be built here, or cannot read the model."""
    if facts.container != "gguf":
        say("llama.cpp reads only GGUF files: continuing without it")
        return None
    try:
        peaks = measure_peaks(0.01)
        return LlamaCppTools(get_peer(home, say), peaks.num_threads if peaks is not None else os.cpu_count() or 1)
    except PeerUnavailable as error:
        say(f"{error} Continuing without it.")
        return None


def measure_cpu(facts: ModelFacts, sizes: CpuBenchSizes, tools: LlamaCppTools | None, say: Say) -> CpuResults:
    """Make all measurements, one after the other."""
    bench = _AllMeasurements(CpuBench(tools, say, sizes.num_repeats), facts, sizes)
    open_seconds, tokenizer_seconds = _open_seconds(facts.path)
    formats = bench.measure_formats()
    streams, peer_streams = bench.bench.measure_streams(facts, sizes.streams)
    starts, peer_starts = bench.measure_starts()
    accuracy = bench.measure_accuracy()
    return CpuResults(
        sizes=sizes,
        formats=formats,
        open_seconds=open_seconds,
        tokenizer_seconds=tokenizer_seconds,
        streams=streams,
        peer_streams=peer_streams,
        start_seconds=starts,
        peer_start_seconds=peer_starts,
        accuracy=accuracy,
    )


@dataclass(frozen=True, slots=True)
class CpuBench:
    """One stream of our engine and of the peer, if there is one."""

    tools: LlamaCppTools | None
    say: Say
    num_repeats: int

    def with_peer(self, measure: Callable[[LlamaCppTools], Value]) -> Value | None:
        """Return a measurement of the peer. None: there is no peer, or it failed."""
        if self.tools is None:
            return None
        try:
            return measure(self.tools)
        except PeerFailed as error:
            self.say(str(error))
            return None

    def measure_stream(self, facts: ModelFacts) -> FormatResult:
        """Measure our engine, then the peer."""
        self.say(f"one stream, {facts.label}")
        path, num_repeats = facts.path, self.num_repeats
        ours, _ = run_in_child(measure_single_stream, SingleStream, str(path), facts.vocab_size, num_repeats)
        peer = self.with_peer(lambda tools: PeerRates(*map(tuple, tools.measure_single_stream(path, num_repeats))))
        return FormatResult(facts, ours, peer)

    def measure_streams(self, facts: ModelFacts, sizes: StreamSizes) -> tuple[StreamsResult, StreamsResult | None]:
        """Measure many streams of our engine, then of the peer."""
        model, words = facts.path, facts.words
        self.say(f"{sizes.num_streams} streams")
        ours = StreamsResult(*run_in_child(measure_stream_loads, StreamResults, str(model), words, sizes))
        if self.tools is not None:
            self.say(f"{sizes.num_streams} streams of llama-server: minutes")
        return ours, self.with_peer(lambda tools: StreamsResult(*tools.measure_stream_loads(model, words, sizes)))


@dataclass(frozen=True, slots=True)
class _AllMeasurements:
    """All measurements of one model, of our engine and the peer."""

    bench: CpuBench
    facts: ModelFacts
    sizes: CpuBenchSizes

    def measure_formats(self) -> tuple[FormatResult, ...]:
        names = [name for name in self.sizes.formats if name != self.facts.format]
        converted = [path for name in names if (path := self.convert(name)) is not None]
        models = (self.facts, *map(ModelFacts.of, converted))
        results = [self.measure_format(facts, self.sizes.num_turns) for facts in models]
        if self.sizes.with_large and self.bench.tools is not None:
            self.bench.say("models of one and three billion parameters: 22 GB on disk, minutes")
            for label, write in large_models():
                large = write(self.facts.path, self.bench.tools.peer.formats)
                results.append(self.measure_format(replace(ModelFacts.of(large), label=label), 1))
        return tuple(results)

    def convert(self, format: str) -> Path | None:
        return self.bench.with_peer(lambda tools: tools.convert(self.facts.path, format))

    def measure_format(self, facts: ModelFacts, num_turns: int) -> FormatResult:
        turns = [self.bench.measure_stream(facts) for _ in range(num_turns)]
        ours, peer = [turn.ours for turn in turns], [turn.peer for turn in turns if turn.peer is not None]
        all_turns = SingleStream(
            prompt_rates=tuple(rate for turn in ours for rate in turn.prompt_rates),
            decode_rates=tuple(rate for turn in ours for rate in turn.decode_rates),
            overheads=tuple(share for turn in ours for share in turn.overheads),
            peaks=tuple(peaks for turn in ours for peaks in turn.peaks),
            kernels=ours[0].kernels,
        )
        all_peer_turns = PeerRates(
            tuple(rate for turn in peer for rate in turn.prompt), tuple(rate for turn in peer for rate in turn.decode)
        )
        return FormatResult(facts, all_turns, all_peer_turns if peer else None)

    def measure_starts(self) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        self.bench.say("starts")
        compile_modules()
        start_seconds(self.facts.path)  # not counted: it writes the lowered weights that later starts reuse
        repeats = range(self.sizes.num_starts)
        ours = tuple(start_seconds(self.facts.path) for _ in repeats)
        path, num_streams = self.facts.path, self.sizes.streams.num_streams
        return ours, self.bench.with_peer(lambda tools: tuple(tools.start_seconds(path, num_streams) for _ in repeats))

    def measure_accuracy(self) -> Accuracy:
        self.bench.say("accuracy")
        model, num_windows = self.facts.path, self.sizes.num_windows
        with tempfile.TemporaryDirectory() as folder:
            into = Path(folder) / "distributions"
            saved = self.bench.with_peer(
                lambda tools: tools.save_distributions(model, sample_text(), into, num_windows)
            )
            peer_file = str(saved) if saved is not None else None
            return run_in_child(compare_accuracy, Accuracy, str(model), num_windows, peer_file)[0]


def _open_seconds(path: Path) -> tuple[float, float]:
    """Return the seconds to open the checkpoint and to make its tokenizer: the best of five, as the first imports."""
    open_times, tokenizer_times = [], []
    for _ in range(5):
        began = time.perf_counter()
        checkpoint = open_checkpoint(path)
        open_times.append(time.perf_counter() - began)
        read_model_text(checkpoint)
        tokenizer_times.append(time.perf_counter() - began - open_times[-1])
    return min(open_times), min(tokenizer_times)
