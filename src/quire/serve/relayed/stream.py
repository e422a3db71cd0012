"""How the pieces of a stream are sent: as they are to a client, in frames to a gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.serve.generation.routing import may_fall_back
from quire.serve.relayed.frames import (
    CONTENT_TYPE,
    DATA,
    END,
    FAILED,
    STREAM_TYPE,
    RelayedUsage,
    StreamFailure,
    encode_failure,
    encode_frame,
    encode_usage,
)
from quire.serve.relayed.journal import Journal
from quire.types.answer import Usage
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens

Outputs = Sequence[Tokens | Finished]


class StreamForm(Protocol):
    """The form of one stream."""

    @property
    def content_type(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    def piece(self, data: bytes, outputs: Outputs) -> bytes:
        """What is sent for this piece, which these outputs of the engine became. May be empty."""

    def last(self, data: bytes, usage: Usage) -> bytes:
        """What is sent for the last piece."""

    def failure(self, data: bytes, error: QuireError) -> bytes:
        """What is sent for the last piece of a stream that failed."""


class PlainStream:
    """Pieces as they are."""

    headers: Mapping[str, str] = {}

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type

    def piece(self, data: bytes, outputs: Outputs) -> bytes:
        """The piece."""
        return data

    def last(self, data: bytes, usage: Usage) -> bytes:
        """The piece."""
        return data

    def failure(self, data: bytes, error: QuireError) -> bytes:
        """The piece."""
        return data


class FramedStream:
    """Pieces in frames. Outputs without bytes for the client wait for the next piece."""

    content_type = CONTENT_TYPE

    def __init__(self, content_type: str, journal: Journal) -> None:
        self.headers = {STREAM_TYPE: content_type}
        self._journal = journal
        self._outputs: list[Tokens | Finished] = []

    def piece(self, data: bytes, outputs: Outputs) -> bytes:
        """A frame, or nothing if there is nothing for the client."""
        if self._outputs:
            outputs, self._outputs = [*self._outputs, *outputs], []
        if not data:
            self._outputs = list(outputs)
            return b""
        num_tokens = sum(len(output.tokens) for output in outputs)
        return encode_frame(DATA, data, self._journal.encode(outputs), num_tokens)

    def last(self, data: bytes, usage: Usage) -> bytes:
        """The frame with the usage."""
        return encode_frame(END, data, encode_usage(RelayedUsage(usage.prompt, usage.cached, usage.output)))

    def failure(self, data: bytes, error: QuireError) -> bytes:
        """The frame with the error."""
        may_retry = may_fall_back(error) or error.code == "shutting_down"
        return encode_frame(FAILED, data, encode_failure(StreamFailure(error.code, error.status, may_retry)))
