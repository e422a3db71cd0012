"""`quire bench cpu [MODEL]`: a model on this CPU beside llama.cpp and OpenVINO, with the goals of this processor.

formats    one stream: prompts and decoding of the model in several formats, and of a random one in K formats
streams    many streams at once
start      seconds to the first token
accuracy   divergence from float32
large      a random model of a billion parameters in Q4_K_M: --large, or --only large
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire.bench.accuracy.cpu_accuracy import Accuracy, compare_accuracy
from quire.bench.cpu_bench import CpuBench, find_peers
from quire.bench.cpu_large import large_figures
from quire.bench.engines.child_process import ChildFailed, run_in_child
from quire.bench.engines.k_format_model import write_k_model
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.engines.peer import LLAMA_CPP, PeerFailed
from quire.bench.engines.requantized_model import write_requantized
from quire.bench.engines.start_time import compile_modules, start_seconds
from quire.bench.figures.cpu_figures import accuracy_figures, format_figures, kernel_lines, start_figures
from quire.bench.figures.cpu_goals import CpuGoals, goals_for
from quire.bench.figures.cpu_results import QUICK, CpuBenchSizes, StartResult
from quire.bench.figures.figure import Figure
from quire.bench.figures.many_streams import many_streams_figures
from quire.bench.figures.table import figure_table
from quire.bench.load.sample_text import sample_text
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load
from quire.devices import base
from quire.engine.model_files import read_model_text
from quire.store.store import DEFAULT_MODEL
from quire.weights.checkpoint import open_checkpoint

SECTIONS = ("formats", "streams", "start", "accuracy")  # without --only
LARGE, LARGE_MODEL = "large", "1B Q4_K_M"


def main(options: argparse.Namespace) -> None:
    """Print the machine, the figures as a table and the kernels that ran, and progress on standard error."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    sizes = QUICK if options.quick else CpuBenchSizes()
    home, facts = home_folder(load()), ModelFacts.of(model_path(options.model))
    load_before = os.getloadavg()[0]
    report = base.open("cpu").describe()
    bench = CpuBench(find_peers(options.peers, home, facts, say), say, sizes.num_repeats)
    measurements = CpuMeasurements(bench, facts, sizes, home, goals_for(report.features))
    sections = {*(options.only or SECTIONS), *([LARGE] if options.large else [])}
    figures = list(measurements.measure(sections))
    say("done")
    peers = ", ".join(f"{peer.name} {peer.version}" for peer in bench.peers) or "none"
    print(f"{describe_machine()}; {options.model or DEFAULT_MODEL}; peers: {peers}")
    print(f"kernels: {report.kernels or 'references'}; features: {' '.join(report.features)}")
    print(f"load of the machine before: {load_before:.2f}\n")
    print(figure_table(figures))
    for line in measurements.kernels:
        print(f"products of {line}")


@dataclass(frozen=True, slots=True)
class CpuMeasurements:
    """All measurements of one model, by section."""

    bench: CpuBench
    facts: ModelFacts
    sizes: CpuBenchSizes
    home: Path
    goals: CpuGoals
    kernels: list[str] = field(default_factory=list)  # lines on the kernels that ran

    def measure(self, sections: Collection[str]) -> Iterator[Figure]:
        """Yield the figures of some sections, in their order in the table. A section that fails is reported."""
        all_sections = {
            "formats": self.formats,
            "streams": self.streams,
            LARGE: self.large,
            "start": self.start,
            "accuracy": self.accuracy,
        }
        for name, figures in all_sections.items():
            if name in sections:
                try:
                    yield from figures()
                except ChildFailed as error:
                    self.bench.say(f"{error} Continuing without the section {name}.")

    def formats(self) -> Iterator[Figure]:
        """Measure one stream of each format. OpenVINO is measured with the model's own file alone."""
        num_turns, folder = self.sizes.num_turns, self.home / "bench"
        results = [self.bench.measure_stream(self.facts, num_turns)]
        others = replace(self.bench, peers=tuple(peer for peer in self.bench.peers if peer.name == LLAMA_CPP))
        files = [
            ModelFacts.of(write_requantized(self.facts, name, folder))
            for name in self.sizes.formats
            if name != self.facts.format and self.facts.container == "gguf"
        ]
        tokenizer_model = model_path("")
        files += [ModelFacts.of(write_k_model(name, tokenizer_model, folder), "138M") for name in self.sizes.k_formats]
        results += [others.measure_stream(facts, num_turns) for facts in files]
        self.kernels.extend(kernel_lines(results))
        yield from format_figures(results, self.goals)

    def streams(self) -> Iterator[Figure]:
        """Measure many streams of the model's own file."""
        yield from many_streams_figures(self.bench.measure_streams(self.facts, self.sizes.streams), self.goals)

    def large(self) -> Iterator[Figure]:
        """Measure a random model of a billion parameters."""
        yield from large_figures(LARGE_MODEL, self.bench, self.home, has_streams=True)

    def start(self) -> Iterator[Figure]:
        """Measure starts."""
        self.bench.say("starts")
        compile_modules()
        start_seconds(self.facts.path)  # not counted: it writes the lowered weights that later starts reuse
        repeats = range(self.sizes.num_starts)
        ours = tuple(start_seconds(self.facts.path) for _ in repeats)
        path, num_streams = self.facts.path, self.sizes.streams.num_streams
        peers = self.bench.measure_peers(lambda peer: tuple(peer.start_seconds(path, num_streams) for _ in repeats))
        yield from start_figures(StartResult(ours, peers, *_open_seconds(path)))

    def accuracy(self) -> Iterator[Figure]:
        """Measure the divergence from float32, of llama.cpp too."""
        self.bench.say("accuracy")
        model, num_windows = self.facts.path, self.sizes.num_windows
        with tempfile.TemporaryDirectory() as folder:
            peer_file = self._save_distributions(Path(folder) / "distributions")
            arguments = (str(model), num_windows, str(peer_file) if peer_file is not None else None)
            accuracy, _ = run_in_child(compare_accuracy, Accuracy, *arguments)
        yield from accuracy_figures(accuracy)

    def _save_distributions(self, into: Path) -> Path | None:
        if self.bench.llama_cpp is None:
            return None
        try:
            num_windows = self.sizes.num_windows
            return self.bench.llama_cpp.save_distributions(self.facts.path, sample_text(), into, num_windows)
        except PeerFailed as error:
            self.bench.say(str(error))
            return None


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
