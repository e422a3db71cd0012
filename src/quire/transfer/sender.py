"""The end that sends blocks: a listener, and a thread for each engine that fetches.

The engine's loop adds blocks to an `Export` as they are computed; the connection's thread sends them. The queue between
them is bounded, so a slow receiver costs the memory of a few blocks and does not delay the loop.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from quire.transfer.form import BlockForm
from quire.transfer.frames import (
    MAX_PAYLOAD,
    TO_RECEIVER,
    TO_SENDER,
    VERSION,
    Begin,
    Block,
    BlockChannel,
    DirectionKey,
    End,
    Freed,
    Greeting,
    Refused,
    StillComputing,
    TransferBroken,
    Want,
    new_nonce,
)
from quire.transfer.transports.contract import SendingSide, usable_transports
from quire.types.digests import block_digest, little_endian, root_digest
from quire.types.request import CacheKey
from quire.types.transfer import TransferConfig

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
MAX_QUEUED = 8 << 20  # bytes of one export's queue
GREETING_SECONDS = 5.0  # timeout for the Want of a new connection
ALIVE_SECONDS = 0.25  # between two keep-alive frames while there is nothing to send
FREE_SECONDS = 30.0  # timeout for a receiver to free a slot


class OutgoingBlock(NamedTuple):
    """The bytes of one block."""

    place: int
    parts: tuple[bytes, ...]  # of the full-attention block, of window groups, of the state; empty: none


class Export:
    """One transfer, shared by the engine's loop and the connection's thread."""

    def __init__(self, want: Want, block_tokens: int) -> None:
        self.want = want
        self.key = CacheKey(*want.key)
        self.tokens = array("I", little_endian(want.tokens))
        self.num_blocks = (len(self.tokens) - 1) // block_tokens  # requested
        self.next = want.first  # place of the next block to read
        self.is_gone = False  # no more blocks are needed: the connection is closed, or all blocks are queued
        self._ready = threading.Condition()
        self._blocks: deque[OutgoingBlock] = deque()
        self._num_bytes = 0
        self._end: End | Refused | None = None

    @property
    def has_room(self) -> bool:
        """Return whether the loop may add blocks."""
        return self._num_bytes < MAX_QUEUED

    def put(self, block: OutgoingBlock) -> None:
        """Add the next block. Called by the loop."""
        with self._ready:
            self._blocks.append(block)
            self._num_bytes += sum(map(len, block.parts))
            self.next = block.place + 1
            self._ready.notify()

    def finish(self, end: End | Refused) -> None:
        """End the export after the queued blocks. Called by the loop."""
        with self._ready:
            self._end = end
            self._ready.notify()

    def take(self, seconds: float) -> OutgoingBlock | End | Refused | None:
        """Return the next block, or the end; None if neither comes within `seconds`. Called by the sending thread."""
        with self._ready:
            self._ready.wait_for(lambda: self._blocks or self._end is not None, seconds)
            if self._blocks:
                block = self._blocks.popleft()
                self._num_bytes -= sum(map(len, block.parts))
                return block
            return self._end


class BlockServer:
    """Listens for engines that fetch blocks. `on_export` and `wake` are called from its threads."""

    def __init__(
        self,
        config: TransferConfig,
        form: BlockForm,
        on_export: Callable[[Export], None],
        wake: Callable[[], None],
    ) -> None:
        assert config.transfer_secret is not None and form.max_bytes <= MAX_PAYLOAD
        self._secret = config.transfer_secret
        self._form = form
        self._transports = usable_transports(config.transport, form.has_own_memory)  # here: NIXL takes 0.5 s to start
        self._on_export = on_export
        self._wake = wake
        self._channels: set[BlockChannel] = set()
        self._is_open = True
        self._listener = socket.create_server((config.transfer_host, config.transfer_port), backlog=MAX_CONNECTIONS)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="quire-blocks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the listener and all connections."""
        self._is_open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for channel in tuple(self._channels):
            channel.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                connection, address = self._listener.accept()
            except OSError:
                if not self._is_open:
                    return
                time.sleep(0.01)  # out of descriptors, or a connection that ended early
                continue
            if len(self._channels) >= MAX_CONNECTIONS:
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = BlockChannel(connection)
            self._channels.add(channel)
            name = f"{address[0]}:{address[1]}"
            threading.Thread(target=self._serve, args=(channel, name), name="quire-export", daemon=True).start()

    def _serve(self, channel: BlockChannel, peer: str) -> None:
        export = None
        try:
            want = self._greet(channel)
            export = Export(want, self._form.block_tokens)
            self._send_all(channel, export)
        except TransferBroken as error:
            logger.info("the transfer to %s ended: %s", peer, error)
        except Exception:
            logger.exception("the transfer to %s failed", peer)
        finally:
            if export is not None:
                export.is_gone = True
                self._wake()
            self._channels.discard(channel)
            channel.close()

    def _greet(self, channel: BlockChannel) -> Want:
        """Exchange nonces; return the request of a receiver with the same secret."""
        nonce = new_nonce()
        channel.send(Greeting(VERSION, nonce))
        frame = channel.receive(GREETING_SECONDS, is_checked=False)
        if not isinstance(frame.body, Want):
            raise TransferBroken("the first frame is not a Want")
        nonces = nonce + frame.body.nonce
        sending, receiving = (DirectionKey(self._secret, nonces, way) for way in (TO_RECEIVER, TO_SENDER))
        channel.secure(sending, receiving, num_received=1)
        channel.check(frame, b"")
        if len(frame.body.tokens) % 4:
            raise TransferBroken("the tokens are not a multiple of 4 bytes")
        return frame.body

    def _send_all(self, channel: BlockChannel, export: Export) -> None:
        want = export.want
        if why := self._refusal(export):
            channel.send(Refused(why))
            return
        size, offers = self._form.max_bytes, want.offers
        opened = ((name, each.sending(offers[name], size)) for name, each in self._transports.items() if name in offers)
        name, side = next(((name, side) for name, side in opened if side is not None), ("", None))
        if side is None:
            channel.send(Refused("the two engines have no transport in common"))
            return
        try:
            channel.send(Begin(name, side.offer))
            self._on_export(export)
            self._send_blocks(channel, export, side)
        finally:
            side.close()

    def _refusal(self, export: Export) -> str:
        want = export.want
        if want.layout != self._form.layout:
            return "the two engines differ in model, KV format or kind of kernels"
        if not 0 <= want.first <= export.num_blocks or export.num_blocks < 1:
            return "the request covers no whole block"
        return ""

    def _send_blocks(self, channel: BlockChannel, export: Export, side: SendingSide) -> None:
        digest, size = root_digest(export.key), self._form.block_tokens
        chunks = [
            little_endian(export.tokens[at : at + size].tobytes()) for at in range(0, export.num_blocks * size, size)
        ]
        digests = [digest := block_digest(digest, chunk) for chunk in chunks]
        while True:
            item = export.take(ALIVE_SECONDS)
            if item is None:
                channel.send(StillComputing())
            elif isinstance(item, OutgoingBlock):
                self._send_block(channel, side, item, digests[item.place])
                self._wake()  # the loop may add more blocks
            else:
                channel.send(item)
                channel.finish(GREETING_SECONDS)
                return

    def _send_block(self, channel: BlockChannel, side: SendingSide, block: OutgoingBlock, digest: bytes) -> None:
        data = b"".join(block.parts)
        while (parcel := side.put(data)) is None:
            frame = channel.receive(FREE_SECONDS)
            if not isinstance(frame.body, Freed):
                raise TransferBroken("the receiver sent an unexpected frame instead of a freed slot")
            try:
                side.freed(frame.body.ticket)
            except ValueError as error:
                raise TransferBroken(str(error)) from None
        body = Block(block.place, digest, tuple(map(len, block.parts)), parcel.ticket)
        channel.send(body, data, inline=bool(parcel.inline))
