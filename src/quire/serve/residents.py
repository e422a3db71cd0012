"""Does what gateway/residency.py decides: starts and ends engines, moves memory between them, and lets requests wait.

Used in the event loop's thread; whatever takes long runs beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from quire.config import Config
from quire.engine.launch import Progress
from quire.engine.messages import Counters, EngineDied, Resized, Snapshot
from quire.engine.messages import Resize as ResizeBlocks
from quire.engine.need import WHOLE, Need, Share
from quire.gateway.residency import Admit, Demand, Load, Residency, Resident, Resize, Stage, Unload
from quire.serve.engines import Engine, Opens, in_thread
from quire.serve.errors import EngineBusy, ModelLoading, NoRoom
from quire.serve.exchange import ClientGone
from quire.serve.fitting import Fitted, OnGpu, fit, on_gpu
from quire.serve.model import Model
from quire.types.duration import seconds_of
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
LOOK_SECONDS = 1.0  # between two looks at who needs memory
ELSEWHERE = Demand(1, 1)  # of an engine that is not ours, and so takes nothing of our budget

Gone = asyncio.Future[None]  # done when nobody waits any more


class Residents:
    """The models that were asked for, in memory or not."""

    def __init__(self, config: Config, place: Opens, progress: Progress) -> None:
        self._config = config
        self._place = place
        self._progress = progress
        self._keep = seconds_of(config.serve.keep_alive, "keep_alive")
        self._models: dict[str, Model] = {}  # by key
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        amount, self.unit = place.budget(config)
        self._residency = Residency(amount)
        self.num_loads = self.num_unloads = 0

    @property
    def budget(self) -> int:
        """For all, in `unit`."""
        return self._residency.budget

    def taken(self) -> dict[str, int]:
        """What each may take of it."""
        return {self._models[each.name].name: each.taken for each in self._residency if each.taken}

    def of(self, model: Model) -> Resident | None:
        """What was decided about a model. None: nobody has asked for it."""
        return self._residency.get(model.key)

    def fits_now(self, model: Model) -> bool:
        """Is there room for it without anyone having to go?"""
        return self._residency[model.key].demand.least <= self._residency.room

    # ── requests ──

    async def measured(self, model: Model) -> None:
        """Find out what a model takes, once for all who wait. Raises if it is not there or does not fit."""
        if model.path is not None:
            return
        if model.measuring is None:
            model.measuring = asyncio.create_task(self._measure(model))
        try:
            await asyncio.shield(model.measuring)
        finally:
            if model.measuring is not None and model.measuring.done():
                model.measuring = None

    async def admitted(self, model: Model, patience: float | None, gone: Gone | None = None) -> int:
        """A ticket of a request that may run; it must be ended. Raises if that takes too long."""
        began = time.monotonic()
        try:
            await asyncio.wait_for(self.measured(model), patience)
        except TimeoutError:
            raise ModelLoading(model.name, RETRY_SECONDS) from None
        ticket, admitted = next(self._tickets), asyncio.get_running_loop().create_future()
        self._waiting[ticket] = admitted
        self._residency.ask(ticket, model.key, time.monotonic())
        self._tend()
        try:
            if not admitted.done():
                left = None if patience is None else max(0.0, patience - (time.monotonic() - began))
                waits = {admitted} if gone is None else {admitted, gone}
                await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not admitted.done():
                raise self._impatient(model, gone, patience or 0.0)
            admitted.result()
        except BaseException:
            self._waiting.pop(ticket, None)
            self.end(ticket)
            raise
        return ticket

    def end(self, ticket: int, keep: float | None = None) -> None:
        """A request has ended."""
        self._residency.end(ticket, time.monotonic(), keep)
        self._tend()

    async def release(self, model: Model) -> None:
        """Let a model go: now if nobody uses it, else as soon as nobody does."""
        resident = self.of(model)
        if resident is None or resident.demand == ELSEWHERE or resident.stage is Stage.AWAY:
            return
        self._residency.release(model.key, time.monotonic())
        self._tend()
        while resident.stage is Stage.LEAVING and self._tasks:
            await asyncio.wait(set(self._tasks), timeout=RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    async def watch(self) -> None:
        """For as long as the server runs, see whose requests wait for KV memory."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for model in self._models.values():
                self._remind(model)
            growing = [self._models[each.name] for each in self._residency if _may_grow(each)]
            pressed = [model.key for model in growing if await _is_pressed(model)]
            self._residency.press(pressed)
            if pressed:
                self._tend()

    def _remind(self, model: Model) -> None:
        """An engine that was started again has the memory that the first one began with: it is told what it may."""
        if model.engine is None or not model.is_ready or model.engine.client.num_restarts == model.num_reminded:
            return
        model.num_reminded = model.engine.client.num_restarts
        if isinstance(model.fitted, Fitted):
            self._begin(self._resize(model, self._residency[model.key].wanted_bytes))

    async def close(self) -> None:
        """End all engines."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (tasks := set(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engines = [model.engine for model in self._models.values() if model.engine is not None]
        await asyncio.gather(*(asyncio.to_thread(engine.client.close) for engine in engines))

    def _impatient(self, model: Model, gone: Gone | None, patience: float) -> Exception:
        if gone is not None and gone.done():
            return ClientGone()
        if self._residency[model.key].stage is Stage.LOADING:
            return ModelLoading(model.name, RETRY_SECONDS)
        return NoRoom(model.name, patience, RETRY_SECONDS)

    async def _measure(self, model: Model) -> None:
        def work() -> tuple[Path, Need | Share | None]:
            path = model.wanted.locate()
            return path, self._place.measure(path, self._config)

        path, need = await in_thread(work)
        if isinstance(need, Share):
            model.fitted = on_gpu(need)
        elif need is not None:
            model.fitted = fit(model.name, need, self._config, self.budget)
        demand = ELSEWHERE if model.fitted is None else model.fitted.demand
        self._models[model.key] = model
        self._residency.add(model.key, demand, -1.0 if model.fitted is None or model.is_named else self._keep)
        model.path = path

    # ── doing what is decided ──

    def _tend(self) -> None:
        """See what follows from what has happened."""
        now = time.monotonic()
        for action in self._residency.plan(now):
            match action:
                case Admit(ticket):
                    self._waiting.pop(ticket).set_result(None)
                case Load(key, num_bytes):
                    self._begin(self._load(self._models[key], num_bytes))
                case Unload(key):
                    self._begin(self._unload(self._models[key]))
                case Resize(key, num_bytes):
                    self._begin(self._resize(self._models[key], num_bytes))
        if self._timer is not None:
            self._timer.cancel()
        wakes = self._residency.wakes(now)
        loop = asyncio.get_running_loop()
        self._timer = None if math.isinf(wakes) else loop.call_later(max(0.0, wakes - now), self._tend)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, model: Model, num_bytes: int) -> None:
        began = time.monotonic()
        try:
            work = partial(self._open, model, num_bytes, asyncio.get_running_loop())
            model.engine = await in_thread(work, lambda engine: engine.client.close())
            model.num_reminded = 0
        except Exception as error:
            logger.error("%s could not be loaded: %s", model.name, error)
            failure = error if isinstance(error, QuireError) else QuireError(f"{model.name} cannot be loaded: {error}")
            for ticket in self._residency.failed(model.key):
                self._waiting.pop(ticket).set_exception(failure)
        else:
            self.num_loads += 1
            self._residency.loaded(model.key, time.monotonic())
            _announce(model, num_bytes, time.monotonic() - began)
        self._tend()

    async def _unload(self, model: Model) -> None:
        engine, model.engine = model.engine, None
        assert engine is not None
        await in_thread(engine.client.close)
        self.num_unloads += 1
        logger.info("%s is unloaded", model.name)
        self._residency.gone(model.key)
        self._tend()

    async def _resize(self, model: Model, num_bytes: int) -> None:
        """Move the number of KV blocks. What the engine cannot give up yet, it says."""
        engine = model.engine
        assert engine is not None and isinstance(model.fitted, Fitted)
        has = self._residency[model.key].num_bytes
        with suppress(EngineBusy, EngineDied):
            told: Resized = await engine.ask(ResizeBlocks(model.fitted.blocks_in(num_bytes)))
            has = model.fitted.bytes_of(max(told.num_blocks, told.num_held))
        if model.engine is engine:
            self._residency.resized(model.key, has)
            self._tend()

    def _open(self, model: Model, num_bytes: int, loop: asyncio.AbstractEventLoop) -> Engine:
        """In a thread."""
        assert model.path is not None
        config = self._config if model.fitted is None else model.fitted.config_for(self._config, num_bytes)
        path, client = self._place.open(model.name, model.path, config, self._progress, loop)
        try:
            return Engine(client, model.read(path, client.ready.max_context, config.weights.load_format))
        except BaseException:
            client.close()
            raise


def _may_grow(resident: Resident) -> bool:
    return bool(resident.running) and resident.num_bytes < resident.demand.most


async def _is_pressed(model: Model) -> bool:
    """Do its requests wait for KV memory, or has all of it been used?"""
    if model.engine is None:
        return False
    with suppress(EngineBusy, EngineDied):
        counters: Counters = await model.engine.ask(Snapshot())
        return counters.num_waiting > 0 or counters.num_free_blocks == 0
    return False


def _announce(model: Model, num_bytes: int, seconds: float) -> None:
    logger.info("%s is loaded, in %.1f s", model.name, seconds)
    if isinstance(model.fitted, OnGpu):
        logger.info("%s has %.0f %% of the GPU's memory", model.name, 100 * num_bytes / WHOLE)
    elif model.fitted is not None:
        context, promised = model.fitted.context, model.fitted.need.max_context
        logger.info("%s may take %.0f MB, and has a context of %d tokens", model.name, num_bytes / 1e6, context)
        if model.engine is not None:
            ready = model.engine.client.ready
            kv_mb = ready.num_blocks * ready.block_bytes / 1e6
            logger.info("%s: %.0f MB of that are KV cache, which fills with the first requests", model.name, kv_mb)
        if context < promised:
            logger.warning("%s: the memory budget holds no context of %d tokens", model.name, promised)
