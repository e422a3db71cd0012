"""All that handlers share: settings, models, keys, quotas, and those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from quire.config import Config
from quire.observe.meters import Meters
from quire.observe.metrics import Sample, summed
from quire.observe.record import Observer, Record
from quire.serve.dialect import Dialect, Limits
from quire.serve.exchange import Exchange
from quire.serve.form import constraint_of
from quire.serve.keys import EVERYBODY, Key, Keys
from quire.serve.models import Models
from quire.serve.prompts import Prompt, Speech, num_chars, prompts_of
from quire.serve.quota import Quotas
from quire.serve.routing import Router
from quire.types.chat import Ask, ChatRequest
from quire.types.library import Library
from quire.types.request import Constraint

T = TypeVar("T")
LONG_TEXT = 4096  # characters, from which on a prompt is tokenized in a thread: the loop must not wait for it
LARGE_BODY = 1 << 17  # bytes, from which on a body is decoded in one
NUM_TEXT_THREADS = 2


@dataclass(slots=True)
class Service:
    """One for a server; used in its event loop's thread."""

    config: Config
    models: Models
    dialects: Sequence[Dialect] = ()
    keys: Keys = field(default_factory=lambda: Keys(()))
    quotas: Quotas = field(default_factory=Quotas)
    meters: Meters = field(default_factory=Meters)
    observers: Sequence[Observer] = ()  # beside the meters
    library: Library | None = None  # who keeps the models, if they may be changed here
    others: Callable[[], list[Sample]] = list  # what other processes of this server have measured
    is_draining: bool = False
    router: Router = field(init=False)
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="quire-text")
    )

    def __post_init__(self) -> None:
        self.router = Router(self.config.serve.routes, self.models)

    @property
    def origins(self) -> list[str]:
        """Web pages that may call."""
        return [origin for part in self.config.serve.cors_origins.split(",") if (origin := part.strip())]

    def limits(self, key: Key = EVERYBODY) -> Limits:
        """How much one request may ask for."""
        serve = self.config.serve
        limits = Limits(
            max_n=serve.max_n,
            max_stops=serve.max_stops,
            max_tools=serve.max_tools,
            max_schema_bytes=self.config.grammar.max_grammar_bytes,
            max_logprobs=serve.max_logprobs,
            max_prompts=serve.max_prompts,
        )
        return limits if key.max_n is None else replace(limits, max_n=min(limits.max_n, key.max_n))

    async def body(self, exchange: Exchange) -> bytes:
        """A request's body, within the limits."""
        serve = self.config.serve
        return await exchange.body(int(serve.max_body_mb * 1e6), serve.body_seconds)

    async def decoded(self, exchange: Exchange, decode: Callable[[bytes, Limits], T]) -> T:
        """What a request's body asks for."""
        body = await self.body(exchange)
        work = partial(decode, body, self.limits(exchange.key))
        return await self._beside(work) if len(body) >= LARGE_BODY else work()

    async def prompts(self, ask: Ask, speech: Speech) -> list[Prompt]:
        """What is asked, as tokens."""
        work = partial(prompts_of, ask, speech)
        return await self._beside(work) if num_chars(ask) >= LONG_TEXT else work()

    async def constraints(self, ask: Ask, prompts: Sequence[Prompt], speech: Speech) -> list[Constraint | None]:
        """The form of each prompt's answer. Schemas of tools that must be called may take a while."""
        setting = self.config.grammar.open_objects

        def work() -> list[Constraint | None]:
            return [constraint_of(ask, prompt, speech, setting) for prompt in prompts]

        must_call = isinstance(ask, ChatRequest) and ask.tool_choice.mode == "required"
        return await self._beside(work) if must_call else work()

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def samples(self) -> list[Sample]:
        """What was measured, in all processes of this server."""
        return summed([*self.meters.samples(), *self.others()])

    def tell(self, record: Record) -> None:
        """A request has ended."""
        for observe in (self.meters.ended, *self.observers):
            observe(record)
