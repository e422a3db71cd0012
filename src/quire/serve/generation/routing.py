"""Routes of requests that name an alias: the models to try, in order, and the fallback from one to the next.

gateway/routing.py decides which rule applies. This module collects the facts of a request, tries the models one after
the other until the first byte of an answer, and reloads the file of rules.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from quire.gateway.routing import RequestFacts, RouteChoice, Routes, load_routes
from quire.serve.errors import ModelNotServed, ShuttingDown
from quire.serve.http.exchange import Exchange
from quire.serve.residency.contract import ModelStatus
from quire.types.chat import Ask, ChatRequest
from quire.types.errors import CacheTooSmall, ContextTooLong, DeadlineExceeded, QuireError

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Ask)
ROUTE, MODEL = "x-quire-route", "x-quire-model"


class KnownModels(Protocol):
    """The models that rules may lead to."""

    def __iter__(self) -> Iterator[ModelStatus]: ...
    def knows(self, name: str) -> bool | None: ...


class Router:
    """The routes of one server. Without a file, every name is that of a model."""

    def __init__(self, file: str | None, models: KnownModels) -> None:
        self._path = None if file is None else Path(file).expanduser()
        self._models = models
        self._routes: Routes | None = None
        self._num_reloads = 0
        self._read_at = 0.0
        self._problem: str | None = None  # why the last reload failed
        if self._path is not None:
            self._read()

    @property
    def path(self) -> Path | None:
        """The file of rules."""
        return self._path

    def reload(self) -> bool:
        """Reload the file. If it is not valid, keep the rules and return False."""
        if self._path is None:
            return False
        try:
            self._read()
        except QuireError as error:
            self._problem = error.public
            logger.error("routes were not reloaded: %s", error.public)
            return False
        self._num_reloads += 1
        logger.info("reloaded the routes from %s", self._path)
        return True

    def chooser(self, ask: Ask, key: str) -> Callable[[], RouteChoice | None] | None:
        """Return a function that chooses the models of a request. It is for a thread: rules may read the whole prompt.

        None, from this method or from the function: the request names a model.
        """
        if self._routes is None:
            return None
        loaded = frozenset(model.name for model in self._models if model.is_ready)
        return partial(self._routes.choose, ask.model, lambda: facts_of(ask, key, loaded))

    def aliases(self) -> Mapping[str, str]:
        """The aliases that requests may use, each with its default model."""
        return {} if self._routes is None else self._routes.defaults()

    def describe(self) -> dict[str, Any] | None:
        """For /props."""
        if self._routes is None:
            return None
        facts = {"file": str(self._path), "read_at": self._read_at, "num_reloads": self._num_reloads}
        return {**facts, "problem": self._problem, **self._routes.describe()}

    def _read(self) -> None:
        assert self._path is not None
        self._routes = load_routes(self._path, self._models.knows)
        self._read_at, self._problem = time.time(), None


async def with_fallback(
    choice: RouteChoice | None,
    exchange: Exchange,
    ask: T,
    answer: Callable[[T], Awaitable[None]],
    undo: Callable[[], None],
) -> None:
    """Answer a request with the model that it names, or with the first model of its route that can.

    `undo` takes back what a failed attempt has cost.
    """
    if choice is None:
        await answer(ask)
        return
    exchange.headers[ROUTE] = choice.label
    failures: list[QuireError] = []
    for name in choice.models:
        exchange.headers[MODEL] = name
        try:
            await answer(replace(ask, model=name))
            return
        except QuireError as error:
            if exchange.has_begun or not may_fall_back(error):
                raise
            failures.append(error)
            undo()
            logger.info("%s: %s cannot answer (%s)", choice.label, name, error.code, extra={"request_id": exchange.id})
    del exchange.headers[MODEL]
    raise failures[0]  # of the preferred model


def may_fall_back(error: QuireError) -> bool:
    """Can another model still answer?"""
    if isinstance(error, ContextTooLong | CacheTooSmall | ModelNotServed):
        return True
    is_final = isinstance(error, DeadlineExceeded | ShuttingDown) or not getattr(error, "may_retry", True)
    return error.status >= 500 and not is_final


def facts_of(ask: Ask, key: str, loaded: frozenset[str]) -> RequestFacts:
    """The facts that rules may look at."""
    return replace(
        _text_facts(ask),
        key=key,
        user=ask.terms.user,
        session=ask.terms.session or "",
        metadata=ask.terms.metadata,
        loaded=loaded,
    )


def _text_facts(ask: Ask) -> RequestFacts:
    if isinstance(ask, ChatRequest):
        of_user = [message.text for message in ask.messages if message.role == "user"]
        system = "\n".join(message.text for message in ask.messages if message.role == "system")
        text = "\n".join(message.text for message in ask.messages)
        return RequestFacts(last=(of_user or [""])[-1], first=(of_user or [""])[0], system=system, text=text)
    texts = [prompt for prompt in ask.prompts if isinstance(prompt, str)]
    num_ids = sum(len(prompt) for prompt in ask.prompts if not isinstance(prompt, str))
    return RequestFacts(last=(texts or [""])[-1], first=(texts or [""])[0], text="\n".join(texts), num_ids=num_ids)
