"""What a front and its hub say to each other about models, over a Unix socket: one message a frame, in MessagePack.

    front   FrontHello   FrontReady   Acquire   Release   Query
    hub     StatusChanged   Acquired   Records   MemoryAnswer   EngineCounters   Done   CallFailed

Acquire is answered by Acquired or CallFailed; Release has no answer, and before the answer it withdraws the Acquire.
A Query is answered by Records, MemoryAnswer, EngineCounters or Done, as it asks, or by CallFailed. `call` numbers the
questions of a front, and its leases.
"""

from __future__ import annotations

import asyncio
import struct
from functools import cache
from typing import Literal

import msgspec

from quire.engine.messages import Counters
from quire.engine.wire import error_of, plain_error
from quire.serve.residency.contract import MemoryReport, ModelRecord, ResidencyStatus
from quire.serve.residency.shelf import StoreFacts
from quire.types.errors import QuireError

LENGTH = struct.Struct("!Q")
SOCKET = "residency"  # in the hub's folder


class FrontHello(msgspec.Struct, tag=True):
    """The first message of a front."""

    front: str


class FrontReady(msgspec.Struct, tag=True):
    """This front can answer requests."""


class Acquire(msgspec.Struct, tag=True):
    """ModelLease the model of this name."""

    call: int
    name: str


class Release(msgspec.Struct, tag=True):
    """End a lease. `keep_alive`: seconds that the model stays loaded from now on."""

    call: int
    keep_alive: float | None = None


class Query(msgspec.Struct, tag=True):
    """Call one of the other methods of `Residency`."""

    call: int
    about: Literal["records", "record", "unload", "forget", "memory", "counters"]
    name: str = ""


class StatusChanged(msgspec.Struct, tag=True):
    """The state of all models, and the addresses of the engines that are loaded."""

    status: ResidencyStatus
    addresses: tuple[str, ...]


class Acquired(msgspec.Struct, tag=True):
    """A lease, and the address where the hub passes requests on to the engine."""

    call: int
    name: str
    identity: str
    facts: StoreFacts | None
    path: str
    address: str


class Records(msgspec.Struct, tag=True):
    """The models that were asked for."""

    call: int
    records: list[ModelRecord]


class MemoryAnswer(msgspec.Struct, tag=True):
    """The memory budget and its use by each engine."""

    call: int
    report: MemoryReport


class EngineCounters(msgspec.Struct, tag=True):
    """The counters of every engine that answers."""

    call: int
    counters: dict[str, Counters]


class Done(msgspec.Struct, tag=True):
    """It was done."""

    call: int


class CallFailed(msgspec.Struct, tag=True):
    """It failed."""

    call: int
    error: QuireError


FrontMessage = FrontHello | FrontReady | Acquire | Release | Query
HubAnswer = Acquired | Records | MemoryAnswer | EngineCounters | Done
HubMessage = StatusChanged | HubAnswer | CallFailed
ChannelMessage = FrontMessage | HubMessage


class Channel:
    """One end of the socket. Used in the event loop's thread."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: ChannelMessage) -> None:
        """Send a message. If the other end is gone, it is dropped."""
        if not self._writer.is_closing():
            data = _encoder().encode(message)
            self._writer.write(LENGTH.pack(len(data)) + data)

    async def receive(self) -> ChannelMessage | None:
        """The next message. None: the other end is gone."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            message: ChannelMessage = _decoder().decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


@cache
def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=plain_error)


@cache
def _decoder() -> msgspec.msgpack.Decoder[ChannelMessage]:
    return msgspec.msgpack.Decoder(ChannelMessage, dec_hook=error_of)
