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
from quire.engine.client import Client
from quire.engine.launch import Progress
from quire.engine.messages import Counters, EngineDied, Ready, Resized, Snapshot
from quire.engine.messages import Resize as ResizeBlocks
from quire.engine.need import WHOLE, Need, Share
from quire.gateway.residency import Admit, Demand, Load, Residency, Resident, Resize, Stage, Unload
from quire.serve.errors import EngineBusy, ModelLoading, NoRoom
from quire.serve.http.exchange import ClientGone
from quire.serve.residency.engines import Opens, ask, in_thread
from quire.serve.residency.fitting import Fitted, OnGpu, fit, on_gpu
from quire.serve.residency.model import Model, Slot, weights_identity, weights_path
from quire.text.preset import preset_beside, with_num_ctx
from quire.types.duration import seconds_of_flag
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
        self._keep = seconds_of_flag(config.serve.keep_alive, "keep_alive")
        self._slots: dict[str, Slot] = {}  # by key
        self._by_weights: dict[str, Slot] = {}
        self._keys = map(str, itertools.count())
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
        """What each may take of it; models that share an engine are one."""
        return {self._slots[each.name].name: each.taken for each in self._residency if each.taken}

    def of(self, model: Model) -> Resident | None:
        """What was decided about a model. None: nobody has asked for it."""
        return None if model.slot is None else self._residency.get(model.slot.key)

    def allowed_bytes(self, model: Model) -> int:
        """What the engine of a loaded model may use."""
        slot = model.slot
        assert slot is not None and slot.client is not None
        if isinstance(slot.fitted, Fitted):
            return self._residency[slot.key].num_bytes
        return _bytes_with(slot.client.ready, slot.client.ready.num_blocks)

    async def used_bytes(self, model: Model) -> int:
        """What it uses now: weights, buffers, and the KV blocks that hold something. 0: it does not answer."""
        slot = model.slot
        if slot is None or (client := slot.client) is None:
            return 0
        with suppress(EngineBusy, EngineDied):
            counters: Counters = await ask(client, Snapshot())
            num_blocks = counters.num_blocks - counters.num_free_blocks
            fitted = slot.fitted
            return fitted.bytes_of(num_blocks) if isinstance(fitted, Fitted) else _bytes_with(client.ready, num_blocks)
        return 0

    def fits_now(self, model: Model) -> bool:
        """Is it here, or is there room for it without anyone having to go?"""
        resident = self.of(model)
        assert resident is not None, "it was measured"
        return resident.stage is Stage.HERE or resident.demand.least <= self._residency.room

    # ── requests ──

    async def measured(self, model: Model) -> None:
        """Find out what a model takes, once for all who wait. Raises if it is not there or does not fit."""
        if model.slot is not None:
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
        assert model.slot is not None
        self._residency.ask(ticket, model.slot.key, time.monotonic())
        self._tend()
        try:
            if not admitted.done():
                left = None if patience is None else max(0.0, patience - (time.monotonic() - began))
                waits = {admitted} if gone is None else {admitted, gone}
                await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not admitted.done():
                raise self._impatient(model, gone, patience or 0.0)
            admitted.result()
            await self._spoken(model)
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
        assert model.slot is not None
        self._residency.release(model.slot.key, time.monotonic())
        self._tend()
        while resident.stage is Stage.LEAVING and self._tasks:
            await asyncio.wait(set(self._tasks), timeout=RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    def forget(self, model: Model) -> None:
        """A model is no longer served: unload its engine once no request uses it, unless another model shares it."""
        if (slot := model.slot) is None or model not in slot.models:
            return
        slot.models.remove(model)
        if slot.path == model.path and slot.models:
            slot.path = slot.models[0].path or slot.path  # a view goes with its last name
        if not slot.models and (resident := self._residency.get(slot.key)) is not None:
            resident.keep = 0.0
            self._tend()

    async def watch(self) -> None:
        """For as long as the server runs, see whose requests wait for KV memory."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for slot in self._slots.values():
                self._remind(slot)
            growing = [self._slots[each.name] for each in self._residency if _may_grow(each)]
            pressed = [slot.key for slot in growing if await _is_pressed(slot)]
            self._residency.press(pressed)
            if pressed:
                self._tend()

    def _remind(self, slot: Slot) -> None:
        """An engine that was started again has the memory that the first one began with: it is told what it may."""
        client = slot.client
        if client is None or not client.is_alive or client.num_restarts == slot.num_reminded:
            return
        slot.num_reminded = client.num_restarts
        if isinstance(slot.fitted, Fitted):
            self._begin(self._resize(slot, self._residency[slot.key].wanted_bytes))

    async def close(self) -> None:
        """End all engines."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (tasks := set(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        clients = [slot.client for slot in self._slots.values() if slot.client is not None]
        await asyncio.gather(*(asyncio.to_thread(client.close) for client in clients))

    def _impatient(self, model: Model, gone: Gone | None, patience: float) -> Exception:
        if gone is not None and gone.done():
            return ClientGone()
        resident = self.of(model)
        if resident is not None and resident.stage is Stage.LOADING:
            return ModelLoading(model.name, RETRY_SECONDS)
        return NoRoom(model.name, patience, RETRY_SECONDS)

    async def _measure(self, model: Model) -> None:
        def work() -> tuple[Path, Config, str, Need | Share | None]:
            path = model.wanted.locate()
            config = with_num_ctx(self._config, preset_beside(path))
            need = self._place.measure(path, config)
            # names with contexts of their own have engines of their own: memory is planned for a context
            identity = f"{weights_identity(path)} {config.scheduler.max_context}"
            return path, config, "" if need is None else identity, need

        path, config, identity, need = await in_thread(work)
        fitted: Fitted | OnGpu | None = None
        if isinstance(need, Share):
            fitted = on_gpu(need)
        elif need is not None:
            fitted = fit(model.name, need, config, self.budget)
        slot = self._by_weights.get(identity) if identity else None
        if slot is None:
            is_dummy = self._config.weights.load_format == "dummy"  # which looks for a file beside the path
            slot = Slot(next(self._keys), model.name, path if is_dummy else weights_path(path), fitted)
            self._slots[slot.key] = slot
            self._residency.add(slot.key, ELSEWHERE if fitted is None else fitted.demand, self._keep)
            if identity:
                self._by_weights[identity] = slot
        if fitted is None or model.is_named:
            self._residency.stay(slot.key)
        slot.models.append(model)
        model.path, model.slot = path, slot

    async def _spoken(self, model: Model) -> None:
        """Read how a model speaks, once for all who wait. Its engine may have been loaded for another one."""
        if model.model_text is not None:
            return
        slot = model.slot
        assert slot is not None and slot.client is not None and model.path is not None, "it was admitted"
        if model.reading is None:
            path = slot.path if slot.fitted is None else model.path  # of an engine that is not ours, as that tells it
            read = partial(model.read, path, slot.client.ready.max_context, self._config)
            model.reading = asyncio.create_task(in_thread(read))
        try:
            model.model_text = await asyncio.shield(model.reading)
        finally:
            if model.reading is not None and model.reading.done():
                model.reading = None

    # ── doing what is decided ──

    def _tend(self) -> None:
        """See what follows from what has happened."""
        now = time.monotonic()
        for action in self._residency.plan(now):
            match action:
                case Admit(ticket):
                    self._waiting.pop(ticket).set_result(None)
                case Load(key, num_bytes):
                    self._begin(self._load(self._slots[key], num_bytes))
                case Unload(key):
                    self._begin(self._unload(self._slots[key]))
                case Resize(key, num_bytes):
                    self._begin(self._resize(self._slots[key], num_bytes))
        if self._timer is not None:
            self._timer.cancel()
        wakes = self._residency.wakes(now)
        loop = asyncio.get_running_loop()
        self._timer = None if math.isinf(wakes) else loop.call_later(max(0.0, wakes - now), self._tend)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, slot: Slot, num_bytes: int) -> None:
        began = time.monotonic()
        try:
            work = partial(self._open, slot, num_bytes, asyncio.get_running_loop())
            path, client = await in_thread(work, lambda opened: opened[1].close())
            slot.path, slot.client = path, client
            slot.num_reminded = 0
        except Exception as error:
            logger.error("%s could not be loaded: %s", slot.name, error)
            failure = error if isinstance(error, QuireError) else QuireError(f"{slot.name} cannot be loaded: {error}")
            for ticket in self._residency.failed(slot.key):
                self._waiting.pop(ticket).set_exception(failure)
        else:
            self.num_loads += 1
            self._residency.loaded(slot.key, time.monotonic())
            _announce(slot, num_bytes, time.monotonic() - began)
        self._tend()

    async def _unload(self, slot: Slot) -> None:
        client, slot.client = slot.client, None
        assert client is not None
        await in_thread(client.close)
        self.num_unloads += 1
        logger.info("%s is unloaded", slot.name or "a model that is no longer served")
        self._residency.gone(slot.key)
        self._tend()

    async def _resize(self, slot: Slot, num_bytes: int) -> None:
        """Move the number of KV blocks. What the engine cannot give up yet, it says."""
        client = slot.client
        assert client is not None and isinstance(slot.fitted, Fitted)
        has = self._residency[slot.key].num_bytes
        with suppress(EngineBusy, EngineDied):
            told: Resized = await ask(client, ResizeBlocks(slot.fitted.blocks_in(num_bytes)))
            has = slot.fitted.bytes_of(max(told.num_blocks, told.num_held))
        if slot.client is client:
            self._residency.resized(slot.key, has)
            self._tend()

    def _open(self, slot: Slot, num_bytes: int, loop: asyncio.AbstractEventLoop) -> tuple[Path, Client]:
        """In a thread."""
        config = self._config if slot.fitted is None else slot.fitted.config_for(self._config, num_bytes)
        return self._place.open(slot.opened_as, slot.path, config, self._progress, loop)


def _bytes_with(ready: Ready, num_blocks: int) -> int:
    return ready.weight_bytes + num_blocks * ready.block_bytes


def _may_grow(resident: Resident) -> bool:
    return bool(resident.running) and resident.num_bytes < resident.demand.most


async def _is_pressed(slot: Slot) -> bool:
    """Do its requests wait for KV memory, or has all of it been used?"""
    if slot.client is None:
        return False
    with suppress(EngineBusy, EngineDied):
        counters: Counters = await ask(slot.client, Snapshot())
        return counters.num_waiting > 0 or counters.num_free_blocks == 0
    return False


def _announce(slot: Slot, num_bytes: int, seconds: float) -> None:
    name, fitted = slot.name, slot.fitted
    logger.info("%s is loaded, in %.1f s", name, seconds)
    if isinstance(fitted, OnGpu):
        logger.info("%s has %.0f %% of the GPU's memory", name, 100 * num_bytes / WHOLE)
    elif fitted is not None:
        context, promised = fitted.context, fitted.need.max_context
        logger.info("%s may take %.0f MB, and has a context of %d tokens", name, num_bytes / 1e6, context)
        if slot.client is not None:
            kv_mb = slot.client.ready.num_blocks * slot.client.ready.block_bytes / 1e6
            logger.info("%s: %.0f MB of that are KV cache, which fills with the first requests", name, kv_mb)
        if context < promised:
            logger.warning("%s: the memory budget holds no context of %d tokens", name, promised)
