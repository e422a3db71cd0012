"""A request that names an alias: which models it is tried with, and what is told of that.

Which rule applies is decided by gateway/routing.py. Here the facts of a request are gathered, the models are tried one
after the other until the first byte of an answer, and the file of rules is read again when the server is told to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from quire.gateway.routing import RequestFacts, RouteChoice, Routes, load_routes
from quire.serve.errors import ModelNotServed, ShuttingDown
from quire.serve.http.exchange import Exchange
from quire.serve.residency.models import Models
from quire.types.chat import Ask, ChatRequest
from quire.types.errors import CacheTooSmall, ContextTooLong, DeadlineExceeded, QuireError

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Ask)
ROUTE, MODEL = "x-quire-route", "x-quire-model"


class Router:
    """The routes of one server. Without a file, every name is a model's."""

    def __init__(self, file: str | None, models: Models) -> None:
        self._path = None if file is None else Path(file).expanduser()
        self._models = models
        self._routes: Routes | None = None
        self._num_reloads = 0
        self._read_at = 0.0
        self._problem: str | None = None  # why the file was not taken the last time it was read
        if self._path is not None:
            self._read()

    @property
    def path(self) -> Path | None:
        """The file, which may be read again."""
        return self._path

    def reload(self) -> bool:
        """Read the file again. If it is wrong, the rules stay as they are."""
        if self._path is None:
            return False
        try:
            self._read()
        except QuireError as error:
            self._problem = error.public
            logger.error("the routes stay as they were: %s", error.public)
            return False
        self._num_reloads += 1
        logger.info("the routes were read again from %s", self._path)
        return True

    def chooser(self, ask: Ask, key: str) -> Callable[[], RouteChoice | None] | None:
        """A function that returns what a request is to be tried with; for a thread, as rules may read the whole prompt.

        None, here or there: the request names a model.
        """
        if self._routes is None:
            return None
        loaded = frozenset(model.name for model in self._models if model.is_ready)
        return partial(self._routes.choose, ask.model, lambda: facts_of(ask, key, loaded))

    def aliases(self) -> Mapping[str, str]:
        """Names that requests may use beside those of models, and the model that each leads to by default."""
        return {} if self._routes is None else self._routes.defaults()

    def describe(self) -> dict[str, Any] | None:
        """For /props."""
        if self._routes is None:
            return None
        told = {"file": str(self._path), "read_at": self._read_at, "num_reloads": self._num_reloads}
        return {**told, "problem": self._problem, **self._routes.describe()}

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
    """Have a request answered by the model that it names; or by the first that can, of those that its alias leads to.

    `undo` takes back what an attempt has cost that came to nothing.
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
    raise failures[0]  # of the model that was meant


def may_fall_back(error: QuireError) -> bool:
    """Is it this model that cannot, so that another may?"""
    if isinstance(error, ContextTooLong | CacheTooSmall | ModelNotServed):
        return True
    is_final = isinstance(error, DeadlineExceeded | ShuttingDown) or not getattr(error, "may_retry", True)
    return error.status >= 500 and not is_final


def facts_of(ask: Ask, key: str, loaded: frozenset[str]) -> RequestFacts:
    """What rules may look at."""
    said = _said(ask)
    return replace(
        said,
        key=key,
        user=ask.terms.user,
        session=ask.terms.session or "",
        metadata=ask.terms.metadata,
        loaded=loaded,
    )


def _said(ask: Ask) -> RequestFacts:
    if isinstance(ask, ChatRequest):
        of_user = [message.text for message in ask.messages if message.role == "user"]
        system = "\n".join(message.text for message in ask.messages if message.role == "system")
        text = "\n".join(message.text for message in ask.messages)
        return RequestFacts(last=(of_user or [""])[-1], first=(of_user or [""])[0], system=system, text=text)
    texts = [prompt for prompt in ask.prompts if isinstance(prompt, str)]
    num_ids = sum(len(prompt) for prompt in ask.prompts if not isinstance(prompt, str))
    return RequestFacts(last=(texts or [""])[-1], first=(texts or [""])[0], text="\n".join(texts), num_ids=num_ids)
