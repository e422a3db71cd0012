"""What upstreams that are not Quire have cached: by vLLM's events over ZMQ, or assumed from what was sent there.

These servers cache without regard to the gateway's keys, so their blocks are looked up without a salt. Where nothing is
reported, a prompt counts as cached where it was sent, up to MAX_ASSUMED blocks; then the assumptions begin anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Mapping

import zmq
import zmq.asyncio

from quire.gateway.index.lines import EventLine, StoredEvent
from quire.gateway.index.prefix_index import BadEvents, PrefixIndex
from quire.gateway.index.vllm import VllmEvents
from quire.gateway.upstreams.upstream import Upstream
from quire.types.digests import block_digest, little_endian, root_digest
from quire.types.request import CacheKey

logger = logging.getLogger(__name__)

BLOCK_TOKENS = 16  # vLLM's default, and the unit of assumptions
MAX_ASSUMED = 16_384  # blocks of one upstream: 262,144 tokens
NO_KEY = CacheKey()
PAUSE_SECONDS = 1.0


class ForeignCaches:
    """The index of each model. Used in the event loop's thread."""

    def __init__(self) -> None:
        self._indexes: dict[str, PrefixIndex] = {}
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}
        self._assumed: dict[tuple[str, str], int] = {}  # upstream and model -> number of the newest line
        self._context: zmq.asyncio.Context | None = None

    def cached(self, model: str, tokens: tuple[int, ...]) -> Mapping[str, int]:
        """Upstream -> how many of these tokens it has cached."""
        index = self._indexes.get(model)
        return {} if index is None else index.lookup(array("I", tokens), NO_KEY, time.monotonic())

    def assume(self, upstream: Upstream, model: str, tokens: tuple[int, ...]) -> None:
        """A prompt is sent to an upstream that reports nothing: it will be cached there."""
        if upstream in self._tasks:
            return
        index = self._indexes.setdefault(model, PrefixIndex())
        at = (upstream.name, model)
        if at not in self._assumed or index.num_blocks(upstream.name) > MAX_ASSUMED:
            self._assumed[at] = 0
            index.apply(upstream.name, _line(0, [], part=(1, 1)))
        number = self._assumed[at]
        index.apply(upstream.name, _line(number, _blocks(tokens)))
        self._assumed[at] = number + 1

    def follow(self, upstream: Upstream) -> None:
        """Read an upstream's events while it is there; forget what it had when it is not ready."""
        is_there = upstream.is_ready and not upstream.is_gone
        is_followed = bool(upstream.spec.events) and is_there and not upstream.is_quire
        if is_followed and upstream not in self._tasks:
            self._tasks[upstream] = asyncio.create_task(self._read_events(upstream))
        elif not is_followed and upstream in self._tasks:
            self._tasks.pop(upstream).cancel()
        if not is_there:
            self._forget(upstream.name)

    def num_blocks(self, upstream: str) -> dict[str, int]:
        """Blocks that are known or assumed of an upstream, by model."""
        return {model: index.num_blocks(upstream) for model, index in self._indexes.items()}

    async def close(self) -> None:
        """End all tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    def _forget(self, name: str) -> None:
        for model, index in self._indexes.items():
            index.remove(name)
            self._assumed.pop((name, model), None)

    async def _read_events(self, upstream: Upstream) -> None:
        """Apply the messages of one publisher. After a gap the server counts as empty."""
        self._context = self._context or zmq.asyncio.Context()
        index = self._indexes.setdefault(upstream.models[0], PrefixIndex())
        socket = self._context.socket(zmq.SUB)
        try:
            socket.connect(upstream.spec.events)
            socket.subscribe(b"")
            events, expected = VllmEvents(BLOCK_TOKENS), -1
            while True:
                parts = await socket.recv_multipart()
                if len(parts) != 3 or len(parts[1]) != 8:
                    continue
                number = int.from_bytes(parts[1], "big")
                try:
                    if number != expected:
                        index.apply(upstream.name, events.begin(number))
                    index.apply(upstream.name, events.convert(number, parts[2]))
                    expected = number + 1
                except BadEvents as error:
                    logger.warning("the events of %s cannot be used: %s", upstream.name, error)
                    index.remove(upstream.name)
                    expected = -1
                    await asyncio.sleep(PAUSE_SECONDS)
        except zmq.ZMQError as error:
            logger.warning("the events of %s cannot be read from %s: %s", upstream.name, upstream.spec.events, error)
        finally:
            socket.close(linger=0)


def _line(after: int, events: list[StoredEvent], part: tuple[int, int] | None = None) -> EventLine:
    last = after if part else after + 1
    return EventLine(epoch="assumed", after=after, last=last, block_tokens=BLOCK_TOKENS, part=part, events=list(events))


def _blocks(tokens: tuple[int, ...]) -> list[StoredEvent]:
    events, digest = [], root_digest(NO_KEY)
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chunk = tokens[start : start + BLOCK_TOKENS]
        parent, digest = digest, block_digest(digest, little_endian(array("I", chunk).tobytes()))
        events.append(StoredEvent(digest.hex(), parent.hex(), chunk))
    return events
