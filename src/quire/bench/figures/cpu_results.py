"""The measurements of `quire bench cpu`, from which its figures are computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.bench.accuracy.cpu_accuracy import Accuracy
from quire.bench.accuracy.divergence import NUM_WINDOWS
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.single_stream import SingleStream
from quire.bench.load.stream_loads import StreamResults, StreamSizes


@dataclass(frozen=True, slots=True)
class CpuBenchSizes:
    """How much is measured. The defaults take about ten minutes on two cores, eight of them for the peer."""

    num_turns: int = 2  # of a single stream; our engine and the peer alternate
    num_repeats: int = 3  # in a turn
    streams: StreamSizes = field(default_factory=StreamSizes)
    num_starts: int = 5
    num_windows: int = NUM_WINDOWS
    formats: tuple[str, ...] = ("q4_0", "q8_0")  # converted from the file, besides its own
    with_large: bool = False  # one turn of a model of a billion parameters too


QUICK = CpuBenchSizes(1, 1, StreamSizes(num_streams=8, num_requests=8, num_cold=1), 1, 2, ("q4_0",))


@dataclass(frozen=True, slots=True)
class PeerRates:
    """The peer's single stream, in tokens a second."""

    prompt: tuple[float, ...]
    decode: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FormatResult:
    """A single stream of one file, all turns together."""

    facts: ModelFacts
    ours: SingleStream
    peer: PeerRates | None


@dataclass(frozen=True, slots=True)
class StreamsResult:
    """Many streams: their figures, and the engine's peak memory."""

    loads: StreamResults
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class CpuResults:
    """All measurements. The peer's are None where they were not made."""

    sizes: CpuBenchSizes
    formats: tuple[FormatResult, ...]  # the file's own format first
    open_seconds: float
    tokenizer_seconds: float
    streams: StreamsResult
    peer_streams: StreamsResult | None
    start_seconds: tuple[float, ...]
    peer_start_seconds: tuple[float, ...] | None
    accuracy: Accuracy
