"""What all handlers of the gateway share, and how its parts are connected."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from quire.config import BadSetting, Config
from quire.gateway.accounts.audit import AuditLog
from quire.gateway.accounts.ledger import Ledger
from quire.gateway.balancers.contract import all_balancers
from quire.gateway.health.outliers import Outliers
from quire.gateway.relay.balance import Balance
from quire.gateway.relay.caches import FleetCaches
from quire.gateway.relay.meters import GatewayMeters
from quire.gateway.relay.reading import RequestReader
from quire.gateway.relay.relay import Relay
from quire.gateway.relay.texts import ModelTexts, ReadText
from quire.gateway.upstreams.declared import FleetFile, UpstreamSpec, read_fleet
from quire.gateway.upstreams.joined import JoinedUpstreams
from quire.gateway.upstreams.kubernetes import watch_service
from quire.gateway.upstreams.registry import Upstreams
from quire.gateway.upstreams.upstream import Upstream
from quire.observe.meters import Meters
from quire.observe.record import Observer, Record
from quire.serve.access.keys import ApiKeys
from quire.serve.access.quota import Quotas
from quire.serve.dialects.contract import Dialect
from quire.serve.generation.routing import Router
from quire.serve.residency.contract import ModelStatus
from quire.types.errors import QuireError
from quire.types.load import LoadReport

logger = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
FILE_SECONDS = 1.0  # between two looks whether the fleet file has changed
FILE, FLAG, KUBERNETES = "file", "flag", "kubernetes"


class FleetModels:
    """The fleet's models, for the rules of aliases."""

    def __init__(self) -> None:
        self.upstreams: Upstreams | None = None

    def __iter__(self) -> Iterator[ModelStatus]:
        models = [] if self.upstreams is None else self.upstreams.models()
        return iter([ModelStatus(name, is_named=True, is_loaded=True) for name in models])

    def knows(self, name: str) -> bool | None:
        """None: an upstream may come that has it."""
        return None


class GatewayService:
    """One for each gateway; used in its event loop's thread. `start` and `close` need the loop."""

    def __init__(
        self,
        config: Config,
        dialects: Sequence[Dialect],
        keys: ApiKeys,
        flags: Sequence[UpstreamSpec],
        read_text: ReadText,
    ) -> None:
        self.config = config
        self.dialects = dialects
        self.keys = keys
        self.quotas = Quotas()
        self.meters = Meters()
        self.gateway_meters = GatewayMeters()
        self.observers: Sequence[Observer] = ()
        self.is_draining = False
        self.num_running = 0
        self._flags = flags
        self._tasks: list[asyncio.Task[None]] = []
        self._file_path = None if config.gateway.fleet is None else Path(config.gateway.fleet).expanduser()
        self._file_stamp: tuple[int, int] | None = None
        self._kubernetes: asyncio.Task[None] | None = None
        self.problem: str | None = None  # why the last reload failed
        self.fleet_file = FleetFile() if self._file_path is None else read_fleet(self._file_path)
        self.ledger = Ledger(config.gateway.spend_file)
        self.audit = AuditLog(config.gateway.audit_log)
        self.outliers = Outliers()
        self.upstreams = Upstreams(config.gateway, self._upstream_changed)
        models = FleetModels()
        models.upstreams = self.upstreams
        self.router = Router(config.serve.routes, models)
        self.caches = FleetCaches(config.gateway)
        self.balance = Balance(_balancer(config.gateway.balance), self.upstreams, self.outliers, self.caches)
        self.caches.on_load = self._take_load
        self.texts = ModelTexts(self.upstreams, read_text)
        self.reader = RequestReader(dialects, self.texts)
        self.joined = JoinedUpstreams(self.upstreams, config.gateway.join_seconds)
        self.relay = Relay(config.gateway, self.upstreams, self.balance, self.outliers, self.gateway_meters)

    @property
    def origins(self) -> list[str]:
        """Origins of web pages that may call this gateway."""
        return [origin for part in self.config.serve.cors_origins.split(",") if (origin := part.strip())]

    def start(self) -> None:
        """Begin to watch the upstreams."""
        self.upstreams.replace(FLAG, self._flags)
        self._apply_file()
        works: list[Callable[[], Any]] = [self._watch_file, self._expire, self._save]
        self._tasks = [asyncio.create_task(work()) for work in works]

    def reload(self) -> bool:
        """Read the fleet file and the routes again. If one is not valid, the old one stays. From the loop's thread."""
        is_routed = self.router.reload() if self.router.path else True
        if self._file_path is None:
            return is_routed
        try:
            self.fleet_file = read_fleet(self._file_path)
        except QuireError as error:
            self.problem = error.public
            logger.error("the fleet file was not reloaded: %s", error.public)
            return False
        self.problem = None
        self._apply_file()
        logger.info("reloaded the fleet from %s", self._file_path)
        return is_routed

    def report(self, record: Record) -> None:
        """Report an ended request to the meters and observers."""
        for observe in (self.meters.observe, *self.observers):
            observe(record)

    async def close(self) -> None:
        """End all tasks, and save the ledger."""
        tasks = [*self._tasks, *([self._kubernetes] if self._kubernetes else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.caches.close()
        await self.upstreams.close()
        await asyncio.to_thread(self.ledger.save)
        self.audit.close()

    def _apply_file(self) -> None:
        self._file_stamp = self._stamp()
        self.upstreams.replace(FILE, self.fleet_file.upstreams)
        self.upstreams.waiting.expected = self.fleet_file.models
        self.texts.tokenizers = self.fleet_file.tokenizers
        if self._kubernetes is not None:
            self._kubernetes.cancel()
            self._kubernetes = None
        service = self.fleet_file.kubernetes
        if service is not None:
            watch = watch_service(service, lambda specs: self.upstreams.replace(KUBERNETES, specs))
            self._kubernetes = asyncio.create_task(watch)

    def _upstream_changed(self, upstream: Upstream) -> None:
        self.caches.follow(upstream)
        if upstream.is_gone:
            self.balance.forget(upstream)
            self.outliers.keep_only(each.name for each in self.upstreams)

    def _take_load(self, upstream: Upstream, model: str, load: LoadReport, asked_at: float) -> None:
        self.balance.report(upstream, model, load, asked_at, time.monotonic())
        self.texts.read_soon(model)

    def _stamp(self) -> tuple[int, int] | None:
        if self._file_path is None:
            return None
        try:
            facts = self._file_path.stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_size

    async def _watch_file(self) -> None:
        while self._file_path is not None:
            await asyncio.sleep(FILE_SECONDS)
            stamp = self._stamp()
            if stamp is not None and stamp != self._file_stamp:
                self._file_stamp = stamp
                self.reload()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.config.gateway.join_seconds / 3))
            self.joined.expire(time.monotonic())

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            await asyncio.to_thread(self.ledger.save)


def _balancer(name: str) -> Any:
    known = all_balancers()
    if name not in known:
        raise BadSetting(f"There is no balancer {name!r}: use one of {', '.join(known)}.", field="balance")
    return known[name].make()
