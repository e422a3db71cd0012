"""The stream of an answer in frames: the client's bytes, and beside them what another server needs to go on.

    frame = <payload length: u32> <journal length: u32> <tokens: u16> <kind: u8> payload journal      (little endian)

The payload is what the client gets. The journal of a DATA frame is opaque to a gateway: it keeps the journals of all
frames that it has passed on, and sends them with the request to another server if this one dies. Only whole frames are
passed on, so that no byte is lost or sent twice. The last frame is END, with the usage as its journal, or FAILED, with
the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import msgspec

CONTENT_TYPE = "application/x-quire-frames"
STREAM_TYPE = "x-quire-stream"  # header with the content type of the payloads
USAGE = "x-quire-usage"  # header of an answer that is no stream: prompt, cached and output tokens

DATA, END, FAILED = 0, 1, 2
HEAD = Struct("<IIHB")
MAX_TOKENS = 0xFFFF
MAX_FRAME = 1 << 28  # bytes


class Frame(NamedTuple):
    """A part of a stream."""

    kind: int
    payload: bytes
    journal: bytes
    num_tokens: int


class RelayedUsage(NamedTuple):
    """What an answer has cost, in tokens."""

    prompt: int
    cached: int
    output: int


class StreamFailure(NamedTuple):
    """Why a stream ended early."""

    code: str
    status: int
    may_retry: bool  # another server may be able to go on


def encode_frame(kind: int, payload: bytes, journal: bytes, num_tokens: int = 0) -> bytes:
    """The bytes of a frame."""
    return HEAD.pack(len(payload), len(journal), min(num_tokens, MAX_TOKENS), kind) + payload + journal


class FrameReader:
    """Finds the frames in the pieces of a body."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that this piece completes. Raises ValueError if it is none."""
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        while size - at >= HEAD.size:
            num_payload, num_journal, num_tokens, kind = HEAD.unpack_from(data, at)
            if num_payload + num_journal > MAX_FRAME or kind > FAILED:
                raise ValueError(f"a frame of kind {kind} with {num_payload} and {num_journal} bytes")
            middle = at + HEAD.size + num_payload
            end = middle + num_journal
            if end > size:
                break
            yield Frame(kind, data[at + HEAD.size : middle], data[middle:end], num_tokens)
            at = end
        self._rest = data[at:] if at else data


def encode_usage(usage: RelayedUsage) -> bytes:
    """The journal of an END frame."""
    return msgspec.msgpack.encode(usage)


def decode_usage(journal: bytes) -> RelayedUsage:
    """The usage in an END frame."""
    return msgspec.msgpack.decode(journal, type=RelayedUsage)


def encode_failure(failure: StreamFailure) -> bytes:
    """The journal of a FAILED frame."""
    return msgspec.msgpack.encode(failure)


def decode_failure(journal: bytes) -> StreamFailure:
    """The error in a FAILED frame."""
    return msgspec.msgpack.decode(journal, type=StreamFailure)
