"""The contract of a peer: another engine that is measured beside ours, with the same file on the same machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quire.bench.engines.model_facts import ModelFacts
from quire.bench.load.session import TokenIds
from quire.bench.load.stream_loads import StreamResults, StreamSizes
from quire.types.errors import QuireError

LLAMA_CPP, OPENVINO = "llama.cpp", "OpenVINO"  # names in tables

Say = Callable[[str], None]  # shows progress


class PeerUnavailable(QuireError):
    """The peer cannot be used here. The message says what is missing; our own figures do not need it."""

    code = "peer_unavailable"


class PeerFailed(QuireError):
    """The peer failed or did not answer."""

    code = "peer_failed"


@dataclass(frozen=True, slots=True)
class PeerRates:
    """A peer's single stream, in tokens a second."""

    prompt: tuple[float, ...]
    decode: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StreamsResult:
    """Many streams of one engine: their figures, and the engine's peak memory. None: unknown."""

    loads: StreamResults
    peak_bytes: int | None


class Peer(Protocol):
    """An engine that is installed and can read the model. Measurements raise PeerFailed."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    @property
    def version(self) -> str:
        """The release that is measured."""
        ...

    def measure_single_stream(self, facts: ModelFacts, num_repeats: int) -> PeerRates:
        """Measure a prompt of 512 tokens, and decoding of 128 tokens after a short one."""
        ...

    def measure_stream_loads(self, model: Path, words: TokenIds, sizes: StreamSizes) -> StreamsResult:
        """Run the fixed loads of many streams."""
        ...

    def start_seconds(self, model: Path, num_streams: int) -> float:
        """Return the seconds from the start of its process to the first token of an answer."""
        ...
