"""The models that a server serves: each has an engine of its own, which is started when a request needs it.

A request may name a model by its name, or by another spelling of it that no other model here has; or one of the store
by any spelling that the store knows. Who is in memory, and who waits, is decided by gateway/residency.py; this is who
does it. Used in the event loop's thread; whatever takes long runs beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from quire.config import Config
from quire.engine.launch import Progress
from quire.engine.need import Need, budget_bytes
from quire.engine.text_side import TextSide
from quire.gateway.residency import Admit, Demand, Load, Residency, Resize, Stage, Unload
from quire.serve.card import card_of
from quire.serve.engines import Engine, Opens, Place, in_thread, speech_of
from quire.serve.errors import ModelLoading, ModelNotServed, NoRoom
from quire.serve.exchange import ClientGone
from quire.serve.fitting import Fitted, fit
from quire.serve.shelf import Wanted
from quire.types.chat import ModelCard
from quire.types.duration import seconds_of
from quire.types.errors import QuireError
from quire.weights.checkpoint import open_checkpoint

__all__ = ["Engine", "Model", "Models", "Place", "Wanted"]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
ELSEWHERE = Demand(1, 1)  # of an engine that is not ours, and so takes nothing of our budget


class Offers(Protocol):
    """Models beside those that were named when the server was started."""

    def find(self, text: str) -> Wanted | None:
        """The one of this name."""

    def all(self) -> list[Wanted]:
        """Every one."""


class Model:
    """One of them: away, on its way, or loaded."""

    def __init__(self, wanted: Wanted, key: str, is_named: bool) -> None:
        self.name = wanted.name
        self.wanted = wanted
        self.key = key  # for the residency: another model may have had this name before
        self.is_named = is_named
        self.engine: Engine | None = None
        self.fitted: Fitted | None = None
        self.path: Path | None = None  # once it was measured
        self.measuring: asyncio.Task[None] | None = None
        self.facts: ModelCard | None = wanted.card

    @property
    def is_ready(self) -> bool:
        """Can it answer now?"""
        return self.engine is not None and self.engine.client.is_alive

    def read(self) -> ModelCard:
        """All that its files say of it. In a thread."""
        assert self.path is not None
        checkpoint = open_checkpoint(self.path)
        context = 0 if self.fitted is None else self.fitted.context
        self.learn(card_of(self.name, checkpoint, speech_of(TextSide.of(checkpoint)), context))
        assert self.facts is not None
        return self.facts

    def learn(self, card: ModelCard) -> None:
        """What its files say; the store knows better who it is."""
        known = self.wanted.card
        if known is not None:
            card = replace(card, created=known.created, num_bytes=known.num_bytes, digest=known.digest)
        self.facts = card


class Models:
    """All of them."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        config: Config,
        place: Opens,
        progress: Progress,
        offers: Offers | None = None,
    ) -> None:
        self._keys = map(str, itertools.count())
        self._tickets = itertools.count()
        self._models = {each.name: Model(each, next(self._keys), is_named=True) for each in wanted}
        self._by_key = {model.key: model for model in self}
        self._config = config
        self._place = place
        self._progress = progress
        self._offers = offers
        self._patience = config.serve.load_patience
        self._keep = seconds_of(config.serve.keep_alive, "keep_alive")
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.residency = Residency(budget_bytes(config))
        self.num_loads = self.num_unloads = 0
        self.is_loaded = False  # those that were named, for the first time
        self.error: QuireError | None = None

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    # ── who is meant ──

    def find(self, name: str) -> Model:
        """The one that a request means."""
        if name in self._models and self._models[name].is_named:
            return self._models[name]
        named = [model for model in self if model.is_named]
        found = [model for model in named if name in model.wanted.aliases]
        if not name and len(named) == 1:
            found = named
        if len(found) == 1:
            return found[0]
        offered = self._offered(name)
        if offered is None:
            others = [] if self._offers is None else [each.name for each in self._offers.all()]
            raise ModelNotServed(name, list(dict.fromkeys([each.name for each in named] + others)))
        known = self._models.get(offered.name)
        if known is None or known.wanted.identity != offered.identity:
            self._replace(known, offered)
        return self._models[offered.name]

    async def cards(self) -> list[ModelCard]:
        """Of all models, loaded or not."""
        offered = [] if self._offers is None else await asyncio.to_thread(self._offers.all)
        cards = {wanted.name: wanted.card or ModelCard(wanted.name, is_loaded=False) for wanted in offered}
        ours = {model.name: self._card(model) for model in self if model.is_named or model.engine is not None}
        return list({**ours, **{name: card for name, card in cards.items() if name not in ours}}.values())

    async def card(self, name: str) -> ModelCard:
        """All that is known of one."""
        model = self.find(name)
        if model.engine is None and (model.facts is None or not model.facts.architecture):
            await self._measured(model)
            await in_thread(model.read)
        return self._card(model)

    def _offered(self, name: str) -> Wanted | None:
        if self._offers is None:
            return None
        if name:
            return self._offers.find(name)
        offered = self._offers.all() if not any(model.is_named for model in self) else []
        return offered[0] if len(offered) == 1 else None

    def _replace(self, known: Model | None, offered: Wanted) -> None:
        """Another model has this name now. Whoever uses the one before ends there, and it goes."""
        if known is not None and known.key in self.residency:
            self.residency.release(known.key, time.monotonic())
        model = Model(offered, next(self._keys), is_named=False)
        self._models[offered.name] = self._by_key[model.key] = model

    def _card(self, model: Model) -> ModelCard:
        card = model.facts or ModelCard(model.name, is_loaded=False)
        if model.engine is None or model.key not in self.residency:
            return card
        resident = self.residency[model.key]
        left = max(0.0, resident.expires - time.monotonic()) if not resident.running else max(0.0, resident.keep)
        stays = resident.keep < 0 or math.isinf(resident.expires)
        return replace(
            card,
            is_loaded=True,
            loaded_bytes=resident.num_bytes,
            max_context=model.engine.client.ready.max_context,
            expires=None if stays else time.time() + left,
        )

    def memory(self) -> dict[str, Any]:
        """The budget, what each model may take of it, and how often models came and went."""
        taken = {self._by_key[each.name].name: each.taken for each in self.residency if each.taken}
        facts = {"budget_bytes": self.residency.budget, "taken_bytes": taken}
        return {**facts, "num_loads": self.num_loads, "num_unloads": self.num_unloads}

    # ── using one ──

    @asynccontextmanager
    async def using(
        self, name: str, keep_alive: float | None = None, gone: asyncio.Future[None] | None = None
    ) -> AsyncIterator[tuple[Model, Engine]]:
        """The one that a request means, loaded, and there until this ends. Raises if that takes too long.

        `gone`: nobody waits any more when this is done.
        """
        model = self.find(name)
        ticket = await self._admitted(model, self._patience, gone)
        try:
            assert model.engine is not None
            yield model, model.engine
        finally:
            is_ours = self.residency[model.key].demand != ELSEWHERE
            self.residency.end(ticket, time.monotonic(), keep_alive if is_ours else None)
            self._tend()

    async def load(self) -> None:
        """Load those that were named, one after another, as far as there is room. Raises if one cannot be loaded."""
        try:
            for model in [each for each in self if each.is_named]:
                await self._measured(model)
                if self.residency.free < self.residency[model.key].demand.least:
                    logger.warning("%s does not fit beside the others: it is loaded when it is asked for", model.name)
                    continue
                self.residency.end(await self._admitted(model, None), time.monotonic())
        except QuireError as error:
            self.error = error
            raise
        finally:
            self.is_loaded = True
            self._tend()

    async def unload(self, name: str) -> Model:
        """Let one go: now if nobody uses it, else as soon as nobody does."""
        model = self.find(name)
        resident = self.residency[model.key] if model.key in self.residency else None
        if resident is not None and resident.demand != ELSEWHERE and resident.stage is not Stage.AWAY:
            self.residency.release(model.key, time.monotonic())
            self._tend()
            while model.engine is not None and not resident.running:
                await asyncio.wait(set(self._tasks), timeout=RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return model

    async def close(self) -> None:
        """End all engines."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (tasks := set(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engines = [model.engine for model in self._by_key.values() if model.engine is not None]
        await asyncio.gather(*(asyncio.to_thread(engine.client.close) for engine in engines))

    async def _admitted(self, model: Model, patience: float | None, gone: asyncio.Future[None] | None = None) -> int:
        """A ticket of a request that may run."""
        began = time.monotonic()
        try:
            await asyncio.wait_for(self._measured(model), patience)
        except TimeoutError:
            raise ModelLoading(model.name, RETRY_SECONDS) from None
        ticket, admitted = next(self._tickets), asyncio.get_running_loop().create_future()
        self._waiting[ticket] = admitted
        self.residency.ask(ticket, model.key, time.monotonic())
        self._tend()
        try:
            if not admitted.done():
                left = None if patience is None else max(0.0, patience - (time.monotonic() - began))
                waits = {admitted} if gone is None else {admitted, gone}
                await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if admitted.done():
                admitted.result()
                return ticket
        except QuireError:
            raise
        except BaseException:
            self._give_up(ticket)
            raise
        is_loading = self.residency[model.key].stage is Stage.LOADING
        self._give_up(ticket)
        if gone is not None and gone.done():
            raise ClientGone
        if is_loading or patience is None:
            raise ModelLoading(model.name, RETRY_SECONDS)
        raise NoRoom(model.name, patience, RETRY_SECONDS)

    def _give_up(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)
        self.residency.end(ticket, time.monotonic())
        self._tend()

    async def _measured(self, model: Model) -> None:
        """Find out what a model takes, once for all who wait. Raises if it is not there or does not fit."""
        if model.path is None:
            if model.measuring is None:
                model.measuring = asyncio.create_task(self._measure(model))
            try:
                await asyncio.shield(model.measuring)
            finally:
                if model.measuring is not None and model.measuring.done():
                    model.measuring = None

    async def _measure(self, model: Model) -> None:
        def work() -> tuple[Path, Need | None]:
            path = model.wanted.locate()
            return path, self._place.measure(path, self._config)

        path, need = await in_thread(work)
        if need is not None:
            model.fitted = fit(model.name, need, self._config, self.residency.budget)
        keep = -1.0 if need is None or model.is_named else self._keep
        self.residency.add(model.key, ELSEWHERE if model.fitted is None else model.fitted.demand, keep)
        model.path = path

    # ── doing what is decided ──

    def _tend(self) -> None:
        """See what follows from what has happened."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        for action in self.residency.plan(now):
            match action:
                case Admit(ticket):
                    self._waiting.pop(ticket).set_result(None)
                case Load(key, num_bytes):
                    self._begin(self._load(self._by_key[key], num_bytes))
                case Unload(key):
                    self._begin(self._unload(self._by_key[key]))
                case Resize(key, num_bytes):
                    self._begin(self._resize(self._by_key[key], num_bytes))
        if self._timer is not None:
            self._timer.cancel()
        wakes = self.residency.wakes(now)
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
        except Exception as error:
            failure = error if isinstance(error, QuireError) else QuireError(f"{model.name} cannot be loaded: {error}")
            for ticket in self.residency.failed(model.key):
                self._waiting.pop(ticket).set_exception(failure)
            logger.error("%s could not be loaded: %s", model.name, error)
        else:
            self.num_loads += 1
            self.residency.loaded(model.key, time.monotonic())
            _announce(model, num_bytes, time.monotonic() - began)
        self._tend()

    async def _unload(self, model: Model) -> None:
        engine, model.engine = model.engine, None
        assert engine is not None
        await in_thread(engine.client.close)
        self.num_unloads += 1
        logger.info("%s is unloaded", model.name)
        self.residency.gone(model.key)
        if self._models.get(model.name) is not model and not self.residency[model.key].waiting:
            self.residency.drop(model.key)
            del self._by_key[model.key]
        self._tend()

    async def _resize(self, model: Model, num_bytes: int) -> None:
        """Moves the number of KV blocks. What the engine cannot give up yet, it says."""
        engine, resident = model.engine, self.residency[model.key]
        assert engine is not None and model.fitted is not None
        need, now_has = model.fitted.need, resident.num_bytes
        with suppress(EngineBusy, EngineDied):
            told: Resized = await engine.ask(ResizeBlocks((num_bytes - need.fixed_bytes) // need.block_bytes))
            now_has = need.fixed_bytes + max(told.num_blocks, told.num_held) * need.block_bytes
        if model.engine is engine:
            self.residency.resized(model.key, now_has)
            self._tend()

    def _open(self, model: Model, num_bytes: int, loop: asyncio.AbstractEventLoop) -> Engine:
        """In a thread."""
        assert model.path is not None
        config = self._config if model.fitted is None else model.fitted.config_for(self._config, num_bytes)
        path, client = self._place.open(model.name, model.path, config, self._progress, loop)
        try:
            checkpoint = open_checkpoint(path)
            speech = speech_of(TextSide.of(checkpoint))
            model.learn(card_of(model.name, checkpoint, speech, client.ready.max_context))
            return Engine(client, speech)
        except BaseException:
            client.close()
            raise


def _announce(model: Model, num_bytes: int, seconds: float) -> None:
    logger.info("%s is loaded, in %.1f s", model.name, seconds)
    if model.fitted is not None:
        context, promised = model.fitted.context, model.fitted.need.max_context
        logger.info("%s may take %.0f MB and has a context of %d tokens", model.name, num_bytes / 1e6, context)
        if context < promised:
            logger.warning("%s: the memory budget holds no context of %d tokens", model.name, promised)
