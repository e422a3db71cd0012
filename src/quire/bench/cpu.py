"""Measures a model on this CPU: ours beside llama.cpp on the same file, on the same machine, in the same run.

Every part of ours runs in a process of its own. Where one stream is measured both sides take turns, so that a change of
the machine's mood meets both; so do the machine's limits and what is held against them (one_stream.py). If the peer
cannot be had, or one of its tools fails, that is said and ours goes on.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from quire.bench.accuracy import Accuracy, compare
from quire.bench.child import run_part
from quire.bench.divergence import NUM_WINDOWS
from quire.bench.facts import ModelFacts
from quire.bench.large import write_large
from quire.bench.llama_cpp import PeerFailed, Tools
from quire.bench.one_stream import OneStream, measured_peaks, our_stream
from quire.bench.peer import NoPeer, Say, get_peer
from quire.bench.start import as_installed, our_start
from quire.bench.streams import Scale, Seen, our_streams
from quire.bench.text import plain_text
from quire.engine.model_files import read_model_text
from quire.weights.checkpoint import open_checkpoint

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. These take some ten minutes on two cores, of which the peer takes eight."""

    num_turns: int = 2  # of one stream
    num_times: int = 3  # in a turn
    scale: Scale = field(default_factory=Scale)
    num_starts: int = 5
    num_windows: int = NUM_WINDOWS
    formats: tuple[str, ...] = ("q4_0", "q8_0")  # made from the file, besides its own
    with_large: bool = False  # a model of a billion parameters too, one turn


QUICK = Sizes(1, 1, Scale(num_streams=8, num_requests=8, num_cold=1), 1, 2, ("q4_0",))


@dataclass(frozen=True, slots=True)
class Rates:
    """The peer's one stream, in tokens a second."""

    prompt: tuple[float, ...]
    decode: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OneFormat:
    """One stream over one file. Of our turns, all together."""

    facts: ModelFacts
    ours: OneStream
    peer: Rates | None


@dataclass(frozen=True, slots=True)
class Many:
    """Many streams: what clients saw, and what they cost."""

    seen: Seen
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured. What is the peer's is None where it was not measured."""

    sizes: Sizes
    formats: tuple[OneFormat, ...]  # the file's own is the first
    open_seconds: float
    tokenizer_seconds: float
    many: Many
    peer_many: Many | None
    start_seconds: tuple[float, ...]
    peer_start_seconds: tuple[float, ...] | None
    accuracy: Accuracy


def find_tools(home: Path, facts: ModelFacts, say: Say) -> Tools | None:
    """The peer, if it can be had and can read the model."""
    if facts.container != "gguf":
        say("llama.cpp reads GGUF files alone: going on without it")
        return None
    try:
        peaks = measured_peaks(0.01)
        return Tools(get_peer(home, say), peaks.num_threads if peaks is not None else os.cpu_count() or 1)
    except NoPeer as missing:
        say(f"{missing} Going on without it.")
        return None


def measure(facts: ModelFacts, sizes: Sizes, tools: Tools | None, say: Say) -> Results:
    """Everything, one after the other."""
    bench = _Bench(facts, sizes, tools, say)
    open_seconds, tokenizer_seconds = _open(facts.path)
    formats = bench.all_formats()
    many, peer_many = bench.many_streams()
    start_seconds, peer_start_seconds = bench.starts()
    accuracy = bench.accuracy()
    return Results(
        sizes=sizes,
        formats=formats,
        open_seconds=open_seconds,
        tokenizer_seconds=tokenizer_seconds,
        many=many,
        peer_many=peer_many,
        start_seconds=start_seconds,
        peer_start_seconds=peer_start_seconds,
        accuracy=accuracy,
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """What the parts below have in common."""

    facts: ModelFacts
    sizes: Sizes
    tools: Tools | None
    say: Say

    def of_peer(self, part: Callable[[Tools], Value]) -> Value | None:
        """What the peer does, if there is one and it can."""
        if self.tools is None:
            return None
        try:
            return part(self.tools)
        except PeerFailed as failed:
            self.say(str(failed))
            return None

    def all_formats(self) -> tuple[OneFormat, ...]:
        names = [name for name in self.sizes.formats if name != self.facts.format]
        made = [path for name in names if (path := self.made(name)) is not None]
        measured = [self.one_format(facts, self.sizes.num_turns) for facts in (self.facts, *map(ModelFacts.of, made))]
        if self.sizes.with_large and self.tools is not None:
            self.say("a model of a billion parameters: 1.7 GB on disk, minutes")
            large = write_large(self.facts.path, self.tools.peer.formats / "large.q4_k.gguf")
            measured.append(self.one_format(ModelFacts.of(large, "1B"), 1))
        return tuple(measured)

    def made(self, format: str) -> Path | None:
        return self.of_peer(lambda tools: tools.reformat(self.facts.path, format))

    def one_format(self, facts: ModelFacts, num_turns: int) -> OneFormat:
        ours: list[OneStream] = []
        peer: list[Rates] = []
        for turn in range(num_turns):
            self.say(f"one stream, {facts.label}: turn {turn + 1} of {num_turns}")
            ours.append(run_part(our_stream, OneStream, str(facts.path), facts.vocab_size, self.sizes.num_times)[0])
            rates = self.of_peer(lambda tools: Rates(*map(tuple, tools.measure(facts.path, self.sizes.num_times))))
            peer += [rates] if rates is not None else []
        together = OneStream(
            prompt_rates=tuple(rate for turn in ours for rate in turn.prompt_rates),
            decode_rates=tuple(rate for turn in ours for rate in turn.decode_rates),
            overheads=tuple(share for turn in ours for share in turn.overheads),
            peaks=tuple(peaks for turn in ours for peaks in turn.peaks),
            kernels=ours[0].kernels,
        )
        all_rates = Rates(
            tuple(rate for turn in peer for rate in turn.prompt), tuple(rate for turn in peer for rate in turn.decode)
        )
        return OneFormat(facts, together, all_rates if peer else None)

    def many_streams(self) -> tuple[Many, Many | None]:
        model, words, scale = self.facts.path, self.facts.words, self.sizes.scale
        self.say(f"{scale.num_streams} streams")
        ours = Many(*run_part(our_streams, Seen, str(model), words, scale))
        if self.tools is not None:
            self.say(f"{scale.num_streams} streams of llama-server: minutes")
        return ours, self.of_peer(lambda tools: Many(*tools.streams(model, words, scale)))

    def starts(self) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        self.say("starts")
        as_installed()
        our_start(self.facts.path)  # the first one leaves the lowered weights for those that count
        times = range(self.sizes.num_starts)
        ours = tuple(our_start(self.facts.path) for _ in times)
        num_streams = self.sizes.scale.num_streams
        return ours, self.of_peer(lambda tools: tuple(tools.start(self.facts.path, num_streams) for _ in times))

    def accuracy(self) -> Accuracy:
        self.say("accuracy")
        model, num_windows = self.facts.path, self.sizes.num_windows
        with tempfile.TemporaryDirectory() as folder:
            into = Path(folder) / "distributions"
            saved = self.of_peer(lambda tools: tools.save_distributions(model, plain_text(), into, num_windows))
            return run_part(compare, Accuracy, str(model), num_windows, str(saved) if saved is not None else None)[0]


def _open(path: Path) -> tuple[float, float]:
    """Seconds to open the checkpoint, and to make its tokenizer: the best of five, the first of which imports."""
    opened, tokenized = [], []
    for _ in range(5):
        began = time.perf_counter()
        checkpoint = open_checkpoint(path)
        opened.append(time.perf_counter() - began)
        read_model_text(checkpoint)
        tokenized.append(time.perf_counter() - began - opened[-1])
    return min(opened), min(tokenized)
