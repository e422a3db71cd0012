"""The measurements of `quire bench cpu`, from which its figures are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.bench.accuracy.divergence import NUM_WINDOWS
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.peer import PeerRates, StreamsResult
from quire.bench.engines.single_stream import SingleStream
from quire.bench.load.stream_loads import StreamSizes


@dataclass(frozen=True, slots=True)
class CpuBenchSizes:
    """How much is measured. The defaults take about twelve minutes on two cores, nine of them for the peers."""

    num_turns: int = 2  # of a single stream; our engine and the peers alternate
    num_repeats: int = 3  # in a turn
    streams: StreamSizes = field(default_factory=StreamSizes)
    num_starts: int = 5
    num_windows: int = NUM_WINDOWS
    formats: tuple[str, ...] = ("q4_0", "q4_1", "q8_0", "bf16")  # of the same model
    k_formats: tuple[str, ...] = ("q4_k", "q6_k")  # of a random model


QUICK = CpuBenchSizes(1, 1, StreamSizes(num_streams=8, num_requests=8, num_cold=1), 1, 2, ("q4_0",), ("q4_k",))


@dataclass(frozen=True, slots=True)
class FormatResult:
    """A single stream of one file, all turns together."""

    facts: ModelFacts
    ours: SingleStream
    peers: Mapping[str, PeerRates] = field(default_factory=dict)  # by name


@dataclass(frozen=True, slots=True)
class StreamsComparison:
    """Many streams of our engine, and of peers by name."""

    sizes: StreamSizes
    ours: StreamsResult
    peers: Mapping[str, StreamsResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartResult:
    """Seconds to the first token of each start, and of reading the file."""

    ours: tuple[float, ...]
    peers: Mapping[str, tuple[float, ...]]
    open_file: float
    make_tokenizer: float
