"""Residency in the process that owns the engines: does what the policy decides.

Used in the event loop's thread; slow work runs in threads beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.config import Config
from quire.engine.client import Client
from quire.engine.launch import Progress
from quire.engine.messages import Counters, EngineDied, Resize, Resized, Snapshot
from quire.engine.need import Need, Share
from quire.serve.errors import EngineBusy, ModelLoading, NoRoom
from quire.serve.http.exchange import ClientGone
from quire.serve.residency.contract import RETRY_SECONDS, Gone, MemoryReport, ModelLease, ModelRecord, ResidencyStatus
from quire.serve.residency.engines import EngineLauncher, ask_engine, in_thread
from quire.serve.residency.memory import HostFit, fit_model
from quire.serve.residency.policy import (
    AdmitRequest,
    EngineStage,
    LoadEngine,
    ResidencyPolicy,
    Resident,
    ResizeEngine,
    UnloadEngine,
)
from quire.serve.residency.reports import entry_record, log_loaded, model_record, model_status
from quire.serve.residency.roster import EngineSlot, ResidentModel, Roster, weights_identity, weights_path
from quire.serve.residency.shelf import EmptyShelf, ModelEntry, ModelShelf
from quire.text.preset import preset_beside, with_model_settings
from quire.types.duration import seconds_of_flag
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0  # between two looks at which engines need memory


class LocalResidency:
    """See `contract.Residency`."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        config: Config,
        launcher: EngineLauncher,
        progress: Progress,
        shelf: ModelShelf | None = None,
    ) -> None:
        self.roster = Roster(entries, shelf or EmptyShelf(), self._on_forgotten)
        self._config = config
        self._launcher = launcher
        self._progress = progress
        self._keep = seconds_of_flag(config.serve.keep_alive, "keep_alive")
        self._slots: dict[str, EngineSlot] = {}  # by key
        self._by_weights: dict[str, EngineSlot] = {}
        self._tickets = itertools.count()
        self._admissions: dict[int, asyncio.Future[None]] = {}  # of tickets that wait
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        amount, self._unit = launcher.budget(config)
        self._policy = ResidencyPolicy(amount)
        self._num_loads = self._num_unloads = 0
        self._is_started = False
        self._error: QuireError | None = None

    # ── reports ──

    @property
    def status(self) -> ResidencyStatus:
        """The state of all models."""
        return ResidencyStatus(tuple(map(model_status, self.roster)), self._is_started, self._error)

    def knows(self, name: str) -> bool:
        """May a request use this name?"""
        try:
            self.roster.find(name)
        except QuireError:
            return False
        return True

    async def records(self) -> list[ModelRecord]:
        """All models: those on the command line, then the store's, then others that were requested."""
        entries = await self.roster.refresh()
        named = [model.name for model in self.roster if model.is_named]
        requested = [model.name for model in self.roster]
        names = dict.fromkeys((*named, *entries, *requested))
        known = {name: self.roster.get(name) for name in names}
        return [
            entry_record(entries[name]) if model is None else replace(self._record(model), is_in_store=name in entries)
            for name, model in known.items()
        ]

    async def record(self, name: str) -> ModelRecord:
        """The model with this name, measured."""
        model = self.roster.find(name)
        await self._measured(model)
        return self._record(model)

    async def memory(self) -> MemoryReport:
        """The memory budget and its use by each engine. Models that share an engine are one."""
        reserved = {self._slots[each.key].names: each.reserved_bytes for each in self._policy if each.reserved_bytes}
        return MemoryReport(self._unit, self._policy.budget, reserved, self._num_loads, self._num_unloads)

    async def counters(self) -> dict[str, Counters]:
        """The counters of every engine that answers, by the first model that it serves."""
        slots = [slot for slot in self._slots.values() if slot.first is not None]
        answers = await asyncio.gather(*map(_counters, slots))
        return {
            slot.first.name: counters
            for slot, counters in zip(slots, answers, strict=True)
            if slot.first is not None and counters is not None
        }

    def clients(self) -> list[Client]:
        """The clients of all engines."""
        return [slot.client for slot in self._slots.values() if slot.client is not None]

    def _record(self, model: ResidentModel) -> ModelRecord:
        resident = None if model.slot is None else self._policy.get(model.slot.key)
        return model_record(model, resident)

    # ── requests ──

    async def acquire(self, name: str, gone: Gone | None = None) -> ModelLease:
        """Wait until the model is loaded."""
        return await self._acquire(self.roster.find(name), self._config.serve.load_patience, gone)

    def release(self, lease: ModelLease, keep_alive: float | None = None) -> None:
        """The request has ended."""
        self._finish(lease.ticket, keep_alive)

    async def unload(self, name: str) -> ModelRecord:
        """Unload a model: now if it is idle, otherwise when its last request has ended."""
        model = self.roster.find(name)
        resident = None if model.slot is None else self._policy.get(model.slot.key)
        if resident is not None and resident.stage is not EngineStage.UNLOADED:
            self._policy.unload_when_idle(resident.key, time.monotonic())
            self._apply_plan()
            while resident.stage is EngineStage.UNLOADING and self._tasks:
                await asyncio.wait(set(self._tasks), timeout=RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return self._record(model)

    async def forget(self, name: str) -> None:
        """Stop serving a model that is about to be deleted, unless it is on the command line."""
        model = self.roster.find(name)
        if not model.is_named:
            self.roster.forget(model)

    async def _acquire(self, model: ResidentModel, patience: float | None, gone: Gone | None = None) -> ModelLease:
        began = time.monotonic()
        if model.slot is None:
            try:
                await asyncio.wait_for(self._measured(model), patience)
            except TimeoutError:
                raise ModelLoading(model.name, RETRY_SECONDS) from None
        slot = model.slot
        assert slot is not None and model.path is not None, "it was measured"
        ticket, admission = next(self._tickets), asyncio.get_running_loop().create_future()
        self._admissions[ticket] = admission
        self._policy.enter(ticket, slot.key, time.monotonic())
        self._apply_plan()
        try:
            if not admission.done():
                left = None if patience is None else max(0.0, patience - (time.monotonic() - began))
                events = {admission} if gone is None else {admission, gone}
                await asyncio.wait(events, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not admission.done():
                raise self._impatience(model, slot, gone, patience or 0.0)
            admission.result()
        except BaseException:
            self._admissions.pop(ticket, None)
            self._finish(ticket)
            raise
        assert slot.client is not None, "it was admitted"
        model.was_used = True
        return ModelLease(ticket, model.name, model.entry.identity, model.entry.facts, model.path, slot.client)

    def _finish(self, ticket: int, keep_alive: float | None = None) -> None:
        self._policy.finish(ticket, time.monotonic(), keep_alive)
        self._apply_plan()

    def _impatience(self, model: ResidentModel, slot: EngineSlot, gone: Gone | None, patience: float) -> Exception:
        if gone is not None and gone.done():
            return ClientGone()
        if self._policy[slot.key].stage is EngineStage.LOADING:
            return ModelLoading(model.name, RETRY_SECONDS)
        return NoRoom(model.name, patience, RETRY_SECONDS)

    def _on_forgotten(self, model: ResidentModel) -> None:
        """Unload its engine once it is idle, unless another model shares it."""
        if (slot := model.slot) is None or model not in slot.models:
            return
        slot.models.remove(model)
        if slot.models:
            if slot.path == model.path:
                slot.path = slot.models[0].path or slot.path  # a folder of links goes with its name
        elif (resident := self._policy.get(slot.key)) is not None:
            resident.keep = 0.0
            self._apply_plan()

    # ── measuring ──

    async def _measured(self, model: ResidentModel) -> None:
        """Find out what a model needs, once for all requests that wait. Raises if it is missing or does not fit."""
        if model.slot is not None:
            return
        if model.measuring is None:
            model.measuring = asyncio.create_task(self._measure(model))
        try:
            await asyncio.shield(model.measuring)
        finally:
            if model.measuring is not None and model.measuring.done():
                model.measuring = None

    async def _measure(self, model: ResidentModel) -> None:
        def work() -> tuple[Path, Config, str, Need | Share | None]:
            path = model.entry.locate()
            config = with_model_settings(self._with_draft(model.is_named), preset_beside(path))
            # Models with different contexts do not share an engine: memory is planned for one context.
            differing = (config.scheduler.max_context, config.speculation.draft, config.embedding.pooling)
            identity = " ".join(map(str, (weights_identity(path), *differing)))
            need = None if identity in self._by_weights else self._launcher.measure(path, config)
            return path, config, identity, need

        path, config, identity, need = await in_thread(work)
        slot = self._by_weights.get(identity)
        if slot is None:
            assert need is not None
            fit = fit_model(model.name, need, config, self._policy.budget)
            slot = EngineSlot(str(len(self._slots)), self._weights_path(path), fit, model.is_named)
            self._slots[slot.key] = self._by_weights[identity] = slot
            self._policy.add(slot.key, fit.demand, self._keep)
        elif not slot.models:
            slot.path = self._weights_path(path)
        if model.is_named:
            self._policy.keep_forever(slot.key)
        slot.models.append(model)
        model.path, model.slot = path, slot

    def _with_draft(self, is_named: bool) -> Config:
        """Return the settings of a model: the draft model is for those of the command line."""
        speculation = self._config.speculation
        return self._config if is_named else replace(self._config, speculation=replace(speculation, draft=None))

    def _weights_path(self, path: Path) -> Path:
        is_dummy = self._config.weights.load_format == "dummy"  # which looks for a file beside the path
        return path if is_dummy else weights_path(path)

    # ── life ──

    async def load(self) -> None:
        """Load the models of the command line that fit, one after another."""
        try:
            for model in [each for each in self.roster if each.is_named]:
                await self._measured(model)
                assert model.slot is not None
                resident = self._policy[model.slot.key]
                is_loaded = resident.stage is EngineStage.LOADED
                if is_loaded or resident.demand.least <= self._policy.available_bytes:
                    self.release(await self._acquire(model, patience=None))
                else:
                    logger.warning("%s does not fit beside the others: it is loaded on request", model.name)
        except QuireError as error:
            self._error = error
            raise
        self._is_started = True

    async def watch(self) -> None:
        """Move memory to the engines that need it, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for slot in self._slots.values():
                self._restore_size(slot)
            growing = [self._slots[each.key] for each in self._policy if _may_grow(each)]
            pressed = [slot.key for slot in growing if await _is_pressed(slot)]
            self._policy.set_pressed(pressed)
            if pressed:
                self._apply_plan()

    async def close(self) -> None:
        """End all engines."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (tasks := set(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(asyncio.to_thread(client.close) for client in self.clients()))

    def _restore_size(self, slot: EngineSlot) -> None:
        """A restarted engine has the memory that it was first started with: set its current size again."""
        client = slot.client
        if client is None or not client.is_alive or client.num_restarts == slot.num_restarts:
            return
        slot.num_restarts = client.num_restarts
        if isinstance(slot.fit, HostFit):
            self._start(self._resize(slot, self._policy[slot.key].target_bytes))

    # ── doing what the policy decides ──

    def _apply_plan(self) -> None:
        """Start what follows from the current state, and set the timer for the next change."""
        now = time.monotonic()
        for action in self._policy.plan(now):
            match action:
                case AdmitRequest(ticket):
                    self._admissions.pop(ticket).set_result(None)
                case LoadEngine(key, num_bytes):
                    self._start(self._load(self._slots[key], num_bytes))
                case UnloadEngine(key):
                    self._start(self._unload(self._slots[key]))
                case ResizeEngine(key, num_bytes):
                    self._start(self._resize(self._slots[key], num_bytes))
        if self._timer is not None:
            self._timer.cancel()
        wakeup = self._policy.next_wakeup(now)
        loop = asyncio.get_running_loop()
        self._timer = None if math.isinf(wakeup) else loop.call_later(max(0.0, wakeup - now), self._apply_plan)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, slot: EngineSlot, num_bytes: int) -> None:
        began = time.monotonic()
        config = slot.fit.engine_config(self._with_draft(slot.has_draft), num_bytes)
        loop = asyncio.get_running_loop()
        try:
            work = partial(self._launcher.open, slot.path, config, self._progress, loop)
            slot.client = await in_thread(work, lambda client: client.close())
            slot.num_restarts = 0
        except Exception as error:
            logger.error("%s could not be loaded: %s", slot.names, error)
            failure = error if isinstance(error, QuireError) else QuireError(f"{slot.names} cannot be loaded: {error}")
            for ticket in self._policy.on_load_failed(slot.key):
                self._admissions.pop(ticket).set_exception(failure)
        else:
            self._num_loads += 1
            self._policy.on_loaded(slot.key, time.monotonic())
            log_loaded(slot, num_bytes, time.monotonic() - began)
        self._apply_plan()

    async def _unload(self, slot: EngineSlot) -> None:
        client, slot.client = slot.client, None
        assert client is not None
        await in_thread(client.close)
        self._num_unloads += 1
        logger.info("%s is unloaded", slot.names or "a model that is no longer served")
        self._policy.on_unloaded(slot.key)
        self._apply_plan()

    async def _resize(self, slot: EngineSlot, num_bytes: int) -> None:
        """Change the number of KV blocks. The engine answers how many it could not give up yet."""
        client = slot.client
        assert client is not None and isinstance(slot.fit, HostFit)
        size = self._policy[slot.key].num_bytes
        with suppress(EngineBusy, EngineDied):
            resized: Resized = await ask_engine(client, Resize(slot.fit.blocks_in(num_bytes, client.ready)))
            size = slot.fit.bytes_with(max(resized.num_blocks, resized.num_held), client.ready)
        if slot.client is client:
            self._policy.on_resized(slot.key, size)
            self._apply_plan()


async def _counters(slot: EngineSlot) -> Counters | None:
    """None: the engine does not answer."""
    if slot.client is None:
        return None
    with suppress(EngineBusy, EngineDied):
        counters: Counters = await ask_engine(slot.client, Snapshot())
        return counters
    return None


def _may_grow(resident: Resident) -> bool:
    return bool(resident.running) and resident.num_bytes < resident.demand.most


async def _is_pressed(slot: EngineSlot) -> bool:
    """Do its requests wait for KV memory, or is all of it in use?"""
    counters = await _counters(slot)
    return counters is not None and (counters.num_waiting > 0 or counters.num_free_blocks == 0)
