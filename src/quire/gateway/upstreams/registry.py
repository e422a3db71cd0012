"""The fleet's upstreams by name, from several sources at once. A removed one finishes the requests that it has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from quire.config import GatewayConfig
from quire.gateway.upstreams.checks import watch_upstream
from quire.gateway.upstreams.declared import UpstreamSpec
from quire.gateway.upstreams.expected import WaitingRequests
from quire.gateway.upstreams.upstream import Upstream

logger = logging.getLogger(__name__)


class Upstreams:
    """Used in the event loop's thread. `on_change` is called when an upstream is added, has changed, or is removed."""

    def __init__(self, config: GatewayConfig, on_change: Callable[[Upstream], None]) -> None:
        self._config = config
        self._on_change = on_change
        self.waiting = WaitingRequests()
        self._all: dict[str, Upstream] = {}
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Upstream]:
        return iter(tuple(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def get(self, name: str) -> Upstream | None:
        """The upstream of this name."""
        return self._all.get(name)

    def replace(self, source: str, specs: Sequence[UpstreamSpec]) -> None:
        """Make these the upstreams of a source. Those that have not changed keep their connections and their state."""
        wanted = {spec.name: spec for spec in specs}
        for upstream in self:
            if upstream.source == source and wanted.get(upstream.name) != upstream.spec:
                self._remove(upstream)
        for spec in specs:
            self.add(source, spec)

    def add(self, source: str, spec: UpstreamSpec) -> Upstream:
        """Add an upstream, or return the one that is there. The first source of a name keeps it."""
        known = self._all.get(spec.name) or next((each for each in self if each.spec.url == spec.url), None)
        if known is not None:
            return known
        upstream = self._all[spec.name] = Upstream(spec, source, self._config)
        self._tasks[upstream] = asyncio.create_task(watch_upstream(upstream, self._config, self._on_change))
        logger.info("upstream %s (%s) was added by %s", spec.name, spec.url, source)
        self._on_change(upstream)
        return upstream

    def remove(self, name: str) -> bool:
        """Remove an upstream. Was it there?"""
        upstream = self._all.get(name)
        if upstream is not None:
            self._remove(upstream)
        return upstream is not None

    def models(self) -> list[str]:
        """Return the models of ready upstreams, in the order of the upstreams, then the expected models."""
        ready = (model for each in self if each.is_ready for model in each.models)
        return list(dict.fromkeys([*ready, *self.waiting.expected]))

    def resolve(self, name: str) -> str:
        """The model that a request means: one of this name, or the only one with it before a colon.

        Without a name, the only model of the fleet. An unknown name is returned unchanged.
        """
        models = self.models()
        if name in models:
            return name
        near = models if not name else [model for model in models if model.partition(":")[0] == name]
        return near[0] if len(near) == 1 else name

    async def close(self) -> None:
        """End all checks, and close all connections."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for upstream in self:
            upstream.pool.close()

    def _remove(self, upstream: Upstream) -> None:
        del self._all[upstream.name]
        upstream.is_gone = True
        self._tasks.pop(upstream).cancel()
        upstream.pool.close()
        logger.info("upstream %s (%s) was removed", upstream.name, upstream.spec.url)
        self._on_change(upstream)
