"""One model of our engine and of peers on this CPU, with the same file on the same machine in the same run.

Every measurement of ours runs in a child process. For a single stream our engine and the peers alternate, so that a
change of the machine's speed affects all; the machine's peak rates are measured in between (single_stream.py). If a
peer cannot be installed, or fails, that is reported and our measurements continue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from quire.bench.engines.child_process import run_in_child
from quire.bench.engines.in_process import measure_stream_loads
from quire.bench.engines.llama_cpp import LlamaCppTools
from quire.bench.engines.llama_cpp_build import get_llama_cpp
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.openvino import PACKAGE as OPENVINO_PACKAGE
from quire.bench.engines.openvino import OpenVino
from quire.bench.engines.peer import (
    LLAMA_CPP,
    OPENVINO,
    Peer,
    PeerFailed,
    PeerRates,
    PeerUnavailable,
    Say,
    StreamsResult,
)
from quire.bench.engines.peer_environment import get_environment
from quire.bench.engines.single_stream import SingleStream, measure_peaks, measure_single_stream
from quire.bench.figures.cpu_results import FormatResult, StreamsComparison
from quire.bench.load.stream_loads import StreamResults, StreamSizes

PROBE_SECONDS = 0.01

Value = TypeVar("Value")


def find_peers(names: Sequence[str], home: Path, facts: ModelFacts, say: Say) -> tuple[Peer, ...]:
    """Return the peers that can be installed here and can read the model; report the others. `names`: in lower case."""
    return tuple(_find_peers(names, home, facts, say))


def _find_peers(names: Sequence[str], home: Path, facts: ModelFacts, say: Say) -> Iterator[Peer]:
    peaks = measure_peaks(PROBE_SECONDS)
    num_threads = peaks.num_threads if peaks is not None else os.cpu_count() or 1
    for name, find in FIND.items():
        if name.lower() in names:
            try:
                yield find(home, facts, num_threads, say)
            except (PeerUnavailable, PeerFailed) as error:
                say(f"{error} Continuing without {name}.")


def _find_llama_cpp(home: Path, facts: ModelFacts, num_threads: int, say: Say) -> Peer:
    _check_container(LLAMA_CPP, facts)
    return LlamaCppTools(get_llama_cpp(home, say), num_threads)


def _find_openvino(home: Path, facts: ModelFacts, num_threads: int, say: Say) -> Peer:
    _check_container(OPENVINO, facts)
    peer = OpenVino(get_environment(OPENVINO_PACKAGE, home, say), num_threads)
    peer.start_seconds(facts.path, 1)  # it reads GGUF files of few architectures and formats
    return peer


FIND: dict[str, Callable[[Path, ModelFacts, int, Say], Peer]] = {LLAMA_CPP: _find_llama_cpp, OPENVINO: _find_openvino}


def _check_container(name: str, facts: ModelFacts) -> None:
    if facts.container != "gguf":
        raise PeerUnavailable(f"{name} reads GGUF files here, and {facts.path.name} is none.")


@dataclass(frozen=True, slots=True)
class CpuBench:
    """Our engine and the peers."""

    peers: tuple[Peer, ...]
    say: Say
    num_repeats: int

    @property
    def llama_cpp(self) -> LlamaCppTools | None:
        """The peer that has tools besides its engine."""
        return next((peer for peer in self.peers if isinstance(peer, LlamaCppTools)), None)

    def measure_peers(self, measure: Callable[[Peer], Value]) -> dict[str, Value]:
        """Return a measurement of each peer by name, without those that failed."""
        found = {}
        for peer in self.peers:
            try:
                found[peer.name] = measure(peer)
            except PeerFailed as error:
                self.say(str(error))
        return found

    def measure_stream(self, facts: ModelFacts, num_turns: int = 1) -> FormatResult:
        """Measure one stream of our engine and of each peer in turn."""
        ours: list[SingleStream] = []
        others: list[dict[str, PeerRates]] = []
        for turn in range(num_turns):
            self.say(f"one stream, {facts.label}" + (f", turn {turn + 1} of {num_turns}" if num_turns > 1 else ""))
            arguments = (str(facts.path), facts.vocab_size, self.num_repeats)
            ours.append(run_in_child(measure_single_stream, SingleStream, *arguments)[0])
            others.append(self.measure_peers(lambda peer: peer.measure_single_stream(facts, self.num_repeats)))
        names = [peer.name for peer in self.peers if any(peer.name in turn for turn in others)]
        peers = {name: _join_rates([turn[name] for turn in others if name in turn]) for name in names}
        return FormatResult(facts, _join_turns(ours), peers)

    def measure_streams(self, facts: ModelFacts, sizes: StreamSizes) -> StreamsComparison:
        """Measure many streams of our engine, then of each peer."""
        model, words = facts.path, facts.words
        self.say(f"{sizes.num_streams} streams, {facts.label}")
        ours = StreamsResult(*run_in_child(measure_stream_loads, StreamResults, str(model), words, sizes))

        def measure(peer: Peer) -> StreamsResult:
            self.say(f"{sizes.num_streams} streams of {peer.name}, {facts.label}: minutes")
            return peer.measure_stream_loads(model, words, sizes)

        return StreamsComparison(sizes, ours, self.measure_peers(measure))


def _join_turns(turns: Sequence[SingleStream]) -> SingleStream:
    return SingleStream(
        prompt_rates=tuple(rate for turn in turns for rate in turn.prompt_rates),
        decode_rates=tuple(rate for turn in turns for rate in turn.decode_rates),
        overheads=tuple(share for turn in turns for share in turn.overheads),
        peaks=tuple(peaks for turn in turns for peaks in turn.peaks),
        kernels=turns[0].kernels,
    )


def _join_rates(turns: Sequence[PeerRates]) -> PeerRates:
    return PeerRates(
        tuple(rate for turn in turns for rate in turn.prompt), tuple(rate for turn in turns for rate in turn.decode)
    )
