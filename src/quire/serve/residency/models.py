"""The models that a server serves: each has an engine of its own, which is started when a request needs it.

A request may name a model by its name, or by another spelling of it that no other model here has; or one of the store
by any spelling that the store knows. Who is in memory, and who waits, is decided by gateway/residency.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from quire.config import Config
from quire.engine.launch import Progress
from quire.engine.need import has_own_memory
from quire.serve.errors import ModelNotServed
from quire.serve.residency.engines import Engine, Opens, in_thread
from quire.serve.residency.model import Model
from quire.serve.residency.residents import Gone, Residents
from quire.serve.residency.shelf import Wanted
from quire.types.chat import ModelCard
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)


class Offers(Protocol):
    """Models beside those that were named when the server was started."""

    def find(self, text: str) -> Wanted | None:
        """The one of this name."""

    def all(self) -> list[Wanted]:
        """Every one."""


class NoOffers:
    """There are no others."""

    def find(self, text: str) -> Wanted | None:
        """None."""
        return None

    def all(self) -> list[Wanted]:
        """None at all."""
        return []


class Models:
    """All of them. Made and used in the event loop's thread."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        config: Config,
        place: Opens,
        progress: Progress,
        offers: Offers | None = None,
    ) -> None:
        self._models = {each.name: Model(each, is_named=True) for each in wanted}
        self._offers = offers or NoOffers()
        self._patience = config.serve.load_patience
        self._config = config
        self._residents = Residents(config, place, progress)
        self.is_loaded = False  # those that were named, for the first time
        self.error: QuireError | None = None  # of them

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def find(self, name: str) -> Model:
        """The one that a request means."""
        named = [model for model in self if model.is_named]
        found = [model for model in named if model.name == name] or [
            model for model in named if name in model.wanted.aliases or (not name and len(named) == 1)
        ]
        if len(found) == 1:
            return found[0]
        offered = self._offered(name, named)
        if offered is None:
            others = (each.name for each in self._offers.all())
            raise ModelNotServed(name, list(dict.fromkeys((*(each.name for each in named), *others, *self._models))))
        known = self._models.get(offered.name)
        if known is None or known.wanted.identity != offered.identity:
            if known is not None:
                self._forget(known)  # requests that use the old one end there; then it is unloaded
            self._models[offered.name] = Model(offered, is_named=False)
        return self._models[offered.name]

    async def cards(self) -> list[ModelCard]:
        """Of all models, loaded or not: those that were named first, then the others in their own order."""
        offered = await self.refresh()
        named = [model.name for model in self if model.is_named]
        loaded = [model.name for model in self if model.engine is not None]  # also of another program's folder
        return [self._card_of(name, offered.get(name)) for name in dict.fromkeys((*named, *offered, *loaded))]

    async def running_cards(self) -> list[ModelCard]:
        """Of the models that are in memory, with what each uses of it now."""
        await self.refresh()
        return [
            replace(self._card(model), used_bytes=await self._residents.used_bytes(model))
            for model in list(self)
            if model.engine is not None
        ]

    async def refresh(self) -> dict[str, Wanted]:
        """What is offered beside the named models, by name. Models that are gone from there, or are others now under
        the same name, are forgotten."""
        offered = {each.name: each for each in await asyncio.to_thread(self._offers.all)}
        for name, model in list(self._models.items()):
            now = offered.get(name) or (None if model.is_named else await asyncio.to_thread(self._offers.find, name))
            if not model.is_named and (now is None or now.identity != model.wanted.identity):
                self._forget(model)
        return offered

    def forget(self, name: str) -> None:
        """A model is about to be removed: it leaves the memory too, unless the server was started for it."""
        model = self.find(name)
        if not model.is_named:
            self._forget(model)

    def _forget(self, model: Model) -> None:
        if self._models.get(model.name) is model:
            del self._models[model.name]
        self._residents.forget(model)

    def _card_of(self, name: str, offered: Wanted | None) -> ModelCard:
        model = self._models.get(name)
        if model is not None and (model.is_named or model.engine is not None):
            return self._card(model)
        return (offered and offered.card) or ModelCard(name, is_loaded=False)

    async def card(self, name: str) -> ModelCard:
        """All that is known of one."""
        model = self.find(name)
        if not model.is_read:
            await self._residents.measured(model)
            assert model.path is not None
            context = 0 if model.fitted is None else model.fitted.context
            await in_thread(lambda: model.read(model.path, context, self._config))  # type: ignore[arg-type]  # it was measured
        return self._card(model)

    def memory(self) -> dict[str, Any]:
        """The budget, what each model may take of it, and how often models came and went."""
        residents = self._residents
        facts = {f"budget_{residents.unit}": residents.budget, f"taken_{residents.unit}": residents.taken()}
        return {**facts, "num_loads": residents.num_loads, "num_unloads": residents.num_unloads}

    @asynccontextmanager
    async def using(
        self, name: str, keep_alive: float | None = None, gone: Gone | None = None
    ) -> AsyncIterator[tuple[Model, Engine]]:
        """The one that a request means, loaded, and there until this ends. Raises if that takes too long.

        `keep_alive`: seconds that it stays afterwards. `gone`: nobody waits any more when this is done.
        """
        model = self.find(name)
        ticket = await self._residents.admitted(model, self._patience, gone)
        try:
            assert model.engine is not None
            yield model, model.engine
        finally:
            self._residents.end(ticket, None if model.fitted is None else keep_alive)

    async def load(self) -> None:
        """Load those that were named, one after another, as far as there is room. Raises if one cannot be loaded."""
        try:
            for model in [each for each in self if each.is_named]:
                await self._residents.measured(model)
                if self._residents.fits_now(model):
                    self._residents.end(await self._residents.admitted(model, None))
                else:
                    logger.warning("%s does not fit beside the others: it is loaded when it is asked for", model.name)
        except QuireError as error:
            self.error = error
            raise
        self.is_loaded = True

    async def unload(self, name: str) -> Model:
        """Let one go: now if nobody uses it, else as soon as nobody does."""
        model = self.find(name)
        await self._residents.release(model)
        return model

    async def watch(self) -> None:
        """For as long as the server runs, move memory to where it is needed."""
        await self._residents.watch()

    async def close(self) -> None:
        """End all engines."""
        await self._residents.close()

    def _offered(self, name: str, named: Sequence[Model]) -> Wanted | None:
        if name:
            return self._offers.find(name)
        offered = [] if named else self._offers.all()
        return offered[0] if len(offered) == 1 else None

    def _card(self, model: Model) -> ModelCard:
        card, resident = model.facts or ModelCard(model.name, is_loaded=False), self._residents.of(model)
        if model.engine is None or resident is None or model.slot is None:
            return card
        left = resident.keep if resident.running else resident.expires - time.monotonic()
        ready = model.engine.client.ready
        allowed = self._residents.allowed_bytes(model)
        first = model.slot.first
        return replace(
            card,
            is_loaded=True,
            loaded_bytes=allowed,
            accelerator_bytes=allowed if has_own_memory(ready.device) else 0,
            shares_with="" if first is None or first is model else first.name,
            max_context=ready.max_context,
            expires=None if resident.keep < 0 else time.time() + max(0.0, left),
        )
