"""What the fleet's Quire upstreams report: loads at intervals, cache events as a stream. Both feed the choice."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import msgspec

from quire.config import GatewayConfig
from quire.gateway.http.errors import UpstreamFailed
from quire.gateway.index.lines import decode_line
from quire.gateway.index.prefix_index import BadEvents, PrefixIndex
from quire.gateway.relay.foreign_caches import ForeignCaches
from quire.gateway.upstreams.upstream import Upstream
from quire.types.load import LoadReport
from quire.types.request import CacheKey

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0  # before a broken stream of events is opened again
SILENCE_SECONDS = 20.0  # an engine sends a line every 5 s at least

OnLoad = Callable[[Upstream, str, LoadReport, float], None]


class _Loads(msgspec.Struct):
    models: dict[str, LoadReport]


class FleetCaches:
    """The index of each model, and the tasks that keep it. Used in the event loop's thread."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self.on_load: OnLoad = lambda upstream, model, load, asked_at: None
        self._foreign = ForeignCaches()
        self._indexes: dict[str, PrefixIndex] = {}
        self._loads: dict[Upstream, asyncio.Task[None]] = {}
        self._events: dict[tuple[Upstream, str], asyncio.Task[None]] = {}

    def cached(self, model: str, key: CacheKey, tokens: tuple[int, ...]) -> Mapping[str, int]:
        """Upstream -> how many of these tokens it has cached."""
        index = self._indexes.get(model)
        own = {} if index is None else index.lookup(array("I", tokens), key, time.monotonic())
        return {**self._foreign.cached(model, tokens), **own}

    def expect(self, upstream: Upstream, model: str, key: CacheKey, tokens: tuple[int, ...]) -> None:
        """A prompt is sent to an upstream: it will be cached there."""
        if not upstream.is_quire:
            self._foreign.assume(upstream, model, tokens)
        elif index := self._indexes.get(model):
            index.expect(upstream.name, array("I", tokens), key, time.monotonic())

    def observe(self, upstream: str, model: str, promised: int, found: int) -> None:
        """An upstream has said how much of a prompt it had cached."""
        if index := self._indexes.get(model):
            index.observe(upstream, promised, found)

    def follow(self, upstream: Upstream) -> None:
        """Read the reports of an upstream while it is a ready Quire; forget them when it is gone."""
        self._foreign.follow(upstream)
        is_followed = upstream.is_quire and upstream.is_ready and not upstream.is_gone
        if is_followed and upstream not in self._loads:
            self._loads[upstream] = asyncio.create_task(self._read_loads(upstream))
        elif not is_followed and upstream in self._loads:
            self._loads.pop(upstream).cancel()
            for at in [at for at in self._events if at[0] is upstream]:
                self._events.pop(at).cancel()
                self._indexes[at[1]].remove(upstream.name)

    def num_blocks(self, upstream: str) -> dict[str, int]:
        """Blocks that the index knows of an upstream, by model."""
        counts = {model: index.num_blocks(upstream) for model, index in self._indexes.items()}
        counts = {**self._foreign.num_blocks(upstream), **{model: count for model, count in counts.items() if count}}
        return {model: count for model, count in counts.items() if count}

    async def close(self) -> None:
        """End all tasks."""
        tasks = [*self._loads.values(), *self._events.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._foreign.close()

    async def _read_loads(self, upstream: Upstream) -> None:
        while True:
            asked_at = time.monotonic()
            try:
                status, body, _ = await upstream.pool.fetch(
                    "GET", "/v1/load", upstream.headers(), seconds=self._config.check_timeout
                )
                reports = msgspec.json.decode(body, type=_Loads).models if status == 200 else {}
            except (UpstreamFailed, msgspec.MsgspecError) as error:
                logger.debug("no load of %s: %s", upstream.name, error)
                reports = {}
            for model, load in reports.items():
                self.on_load(upstream, model, load, asked_at)
                if (upstream, model) not in self._events:
                    self._indexes.setdefault(model, PrefixIndex())
                    self._events[upstream, model] = asyncio.create_task(self._follow_events(upstream, model))
            await asyncio.sleep(self._config.load_seconds)

    async def _follow_events(self, upstream: Upstream, model: str) -> None:
        index = self._indexes[model]
        while True:
            try:
                await self._read_events(upstream, model, index)
            except (UpstreamFailed, TimeoutError) as error:
                logger.debug("the events of %s have ended: %s", upstream.name, error)
            except (BadEvents, msgspec.MsgspecError) as error:
                index.remove(upstream.name)
                logger.warning("the events of %s cannot be used: %s", upstream.name, error)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read_events(self, upstream: Upstream, model: str, index: PrefixIndex) -> None:
        query = {"model": model, "follow": "true"}
        if position := index.position(upstream.name):
            query |= {"epoch": position.epoch, "after": str(position.sequence)}
        sent = await upstream.pool.send("GET", f"/v1/cache/events?{urlencode(query)}", upstream.headers())
        try:
            rest = b""
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await sent.response.head()
                    data = await sent.response.read()
                if not data or sent.response.status != 200:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not index.apply(upstream.name, decode_line(line)):
                        index.remove(upstream.name)  # events are missing: the next stream begins with a snapshot
                        return
        finally:
            sent.close()
