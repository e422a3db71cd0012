"""The end that fetches blocks: one thread for each prefix.

It checks every frame's tag, and the order, size and token digest of every block. A block that is wrong, late or lost
ends the fetch; the blocks before it are kept, and the engine computes the rest.
"""

from __future__ import annotations

import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quire.transfer.form import BlockForm
from quire.transfer.frames import (
    NONCE_BYTES,
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
    TaggedFrame,
    TransferBroken,
    Want,
    new_nonce,
)
from quire.transfer.transports.contract import Parcel, ReceivingSide, usable_transports
from quire.types.digests import little_endian, path_digests, root_digest
from quire.types.request import CacheKey
from quire.types.transfer import PrefixSource, TransferConfig

MAX_QUEUED = 8 << 20  # bytes of received blocks that the engine's loop has not taken
CONNECT_SECONDS = 2.0
TOKEN_BYTES = 4


class IncomingBlock(NamedTuple):
    """The bytes of one block."""

    place: int
    parts: tuple[bytes, ...]  # of the full-attention block, of window groups, of the state; empty: none


@dataclass(frozen=True, slots=True)
class PrefixWish:
    """The blocks that a request is missing, and the engine to fetch them from."""

    source: PrefixSource
    key: CacheKey
    tokens: array[int]  # of all requested blocks and one more
    first: int  # number of blocks that are already here
    account: str = ""
    weight: float = 1.0
    priority: int = 0


class Fetch:
    """One transfer, shared by its thread and the engine's loop. `wake` is called from the thread."""

    def __init__(self, wish: PrefixWish, form: BlockForm, config: TransferConfig, wake: Callable[[], None]) -> None:
        self.wish = wish
        self.error = ""  # why it ended early; empty: it did not
        self.is_over = False  # no more blocks will arrive
        self.num_bytes = 0  # received
        self.busy_seconds = 0.0  # spent receiving and checking these bytes, without waiting for them
        self.num_computed = 0  # tokens that the sender computed for this
        self._form = form
        self._config = config
        self._wake = wake
        self._began = time.monotonic()
        self.seconds = 0.0  # from its start to its end
        self._changed = threading.Condition()
        self._blocks: deque[IncomingBlock] = deque()
        self._queued = 0
        self._channel: BlockChannel | None = None
        self._is_cancelled = False
        threading.Thread(target=self._run, name="quire-fetch", daemon=True).start()

    @property
    def has_blocks(self) -> bool:
        """Return whether there are blocks that the loop has not taken."""
        return bool(self._blocks)

    def take(self, max_bytes: int) -> list[IncomingBlock]:
        """Return received blocks, about `max_bytes` of them. Called by the loop."""
        blocks, num_bytes = list[IncomingBlock](), 0
        with self._changed:
            while self._blocks and num_bytes < max_bytes:
                blocks.append(self._blocks.popleft())
                num_bytes += sum(map(len, blocks[-1].parts))
            self._queued -= num_bytes
            self._changed.notify()
        return blocks

    def cancel(self, why: str = "the fetch was cancelled") -> None:
        """End the fetch and drop what arrives from now on. Called by the loop."""
        with self._changed:
            self._is_cancelled = True
            self.error = self.error or why
            self._changed.notify()
            channel = self._channel
        if channel is not None:
            channel.close()

    def _run(self) -> None:
        try:
            self._fetch()
        except (TransferBroken, OSError) as error:
            self.error = self.error or str(error)
        except Exception as error:  # a mistake here must not lose the request
            self.error = self.error or f"{type(error).__name__}: {error}"
        finally:
            self.seconds = time.monotonic() - self._began
            self.is_over = True
            self._wake()

    def _fetch(self) -> None:
        source, sides = self.wish.source, dict[str, ReceivingSide]()
        connection = socket.create_connection((source.host, source.port), CONNECT_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = BlockChannel(connection)
        with self._changed:
            self._channel = channel
            is_cancelled = self._is_cancelled
        try:
            if is_cancelled:
                return
            for name, transport in usable_transports(self._config.transport, self._form.has_own_memory).items():
                try:
                    sides[name] = transport.receiving(self._form.max_bytes)
                except OSError:
                    continue  # not on this host
            self._ask(channel, sides)
            begin = channel.receive(self._patience).body
            if isinstance(begin, Refused):
                raise TransferBroken(f"the other engine refused: {begin.why}")
            if not isinstance(begin, Begin) or begin.transport not in sides:
                raise TransferBroken("the other engine chose a transport that was not offered")
            try:
                sides[begin.transport].accept(begin.offer)
            except ValueError as error:
                raise TransferBroken(str(error)) from None
            self._receive(channel, sides[begin.transport])
        finally:
            channel.close()
            for side in sides.values():
                side.close()

    @property
    def _patience(self) -> float:
        """Seconds without a block after which the fetch ends."""
        return self._config.transfer_patience + 2.0 * self.wish.source.seconds

    def _ask(self, channel: BlockChannel, sides: dict[str, ReceivingSide]) -> None:
        hello = channel.receive(CONNECT_SECONDS).body
        if not isinstance(hello, Greeting) or hello.version != VERSION or len(hello.nonce) != NONCE_BYTES:
            raise TransferBroken("the other end is not a Quire engine of this version")
        nonce, secret, wish = new_nonce(), self._config.transfer_secret or "", self.wish
        nonces = hello.nonce + nonce
        channel.secure(DirectionKey(secret, nonces, TO_SENDER), DirectionKey(secret, nonces, TO_RECEIVER))
        channel.send(
            Want(
                nonce,
                self._form.layout,
                (wish.key.model, wish.key.adapter, wish.key.salt),
                little_endian(wish.tokens.tobytes()),
                wish.first,
                wish.source.computes,
                {name: side.offer for name, side in sides.items()},
                wish.account,
                wish.weight,
                wish.priority,
            )
        )

    def _receive(self, channel: BlockChannel, side: ReceivingSide) -> None:
        wish, size = self.wish, self._form.block_tokens
        data = little_endian(wish.tokens[: (len(wish.tokens) - 1) // size * size].tobytes())
        digests = list(path_digests(root_digest(wish.key), data, size * TOKEN_BYTES))
        place, last = wish.first, time.monotonic()
        while True:
            left = last + self._patience - time.monotonic()
            if left <= 0.0:
                raise TransferBroken("no block arrived in time")
            frame = channel.receive(left, self._form.max_bytes, is_checked=False)
            if isinstance(frame.body, Block):
                self._put(self._checked_block(channel, side, frame, place, digests))
                place, last = place + 1, time.monotonic()
                self.busy_seconds += last - frame.began
                continue
            channel.check(frame, frame.payload)
            if isinstance(frame.body, End):
                self.num_computed = max(0, min(frame.body.num_computed, len(wish.tokens)))
                if frame.body.num_sent != place - wish.first:
                    raise TransferBroken("some blocks were lost")
                return
            if isinstance(frame.body, Refused):
                raise TransferBroken(f"the other engine refused: {frame.body.why}")
            if not isinstance(frame.body, StillComputing):
                raise TransferBroken("the other engine sent an unexpected frame instead of a block")

    def _checked_block(
        self, channel: BlockChannel, side: ReceivingSide, frame: TaggedFrame, place: int, digests: list[bytes]
    ) -> IncomingBlock:
        """Return the block of a frame. Raises if it is not the expected block, or its bytes do not match the tag."""
        body: Block = frame.body
        sizes, expected = body.parts, self._form.part_bytes
        if len(sizes) != len(expected) or sizes[0] != expected[0]:
            raise TransferBroken("a block has the wrong size")
        if any(size not in (0, whole) for size, whole in zip(sizes, expected, strict=True)):
            raise TransferBroken("a part of a block has the wrong size")
        try:
            data = side.take(Parcel(body.ticket, frame.payload), sum(sizes), self._patience)
        except ValueError as error:
            raise TransferBroken(str(error)) from None
        channel.check(frame, data)
        if body.place != place or place >= len(digests) or body.digest != digests[place]:
            raise TransferBroken("a block of other tokens arrived")
        if body.ticket:
            channel.send(Freed(body.ticket))
        parts, at = [], 0
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        return IncomingBlock(place, tuple(parts))

    def _put(self, block: IncomingBlock) -> None:
        num_bytes = sum(map(len, block.parts))
        with self._changed:
            self._changed.wait_for(lambda: self._queued < MAX_QUEUED or self._is_cancelled)
            if self._is_cancelled:
                raise TransferBroken("the fetch was cancelled")
            self._blocks.append(block)
            self._queued += num_bytes
            self.num_bytes += num_bytes
        self._wake()
