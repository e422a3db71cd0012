"""All that handlers share: settings, models, keys, quotas, and those who watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from quire.config import Config
from quire.gateway.routing import Choice
from quire.grammar.tool_schemas import exact_parameters
from quire.observe.meters import Meters
from quire.observe.metrics import Sample, summed
from quire.observe.record import Observer, Record
from quire.serve.access.keys import EVERYBODY, Key, Keys
from quire.serve.access.quota import Quotas
from quire.serve.dialects.body import ignore_unknown_fields
from quire.serve.dialects.contract import Dialect, RequestLimits
from quire.serve.dialects.strict_json import allow_context
from quire.serve.generation.routing import Router
from quire.serve.http.exchange import Exchange
from quire.serve.http.text_threads import LARGE_BODY, LONG_TEXT, TextThreads
from quire.serve.residency.models import Models
from quire.text.model_text import ModelText
from quire.text.output_format import constraint_of
from quire.text.prompts import Prompt, encode_prompts
from quire.types.chat import Ask, ChatRequest
from quire.types.library import Library
from quire.types.request import Constraint

T = TypeVar("T")


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
    num_running: int = 0  # requests that are being answered
    num_cut: int = 0  # requests that the end of the server has cut off
    router: Router = field(init=False)
    _threads: TextThreads = field(default_factory=TextThreads)

    def __post_init__(self) -> None:
        self.router = Router(self.config.serve.routes, self.models)

    @property
    def origins(self) -> list[str]:
        """Web pages that may call."""
        return [origin for part in self.config.serve.cors_origins.split(",") if (origin := part.strip())]

    def limits(self, key: Key = EVERYBODY) -> RequestLimits:
        """How much one request may ask for."""
        serve = self.config.serve
        limits = RequestLimits(
            max_n=serve.max_n,
            max_stops=serve.max_stops,
            max_tools=serve.max_tools,
            max_schema_bytes=self.config.grammar.max_grammar_bytes,
            max_logprobs=serve.max_logprobs,
            max_prompts=serve.max_prompts,
        )
        return limits if key.max_n is None else replace(limits, max_n=min(limits.max_n, key.max_n))

    async def parsed(self, exchange: Exchange, parse: Callable[[bytes], T]) -> T:
        """Read a request's body, within the limits, and parse it."""
        serve = self.config.serve
        body = await exchange.body(int(serve.max_body_mb * 1e6), serve.body_seconds)
        return await self._threads.run(partial(parse, body), len(body), LARGE_BODY)

    async def decoded(self, exchange: Exchange, decode: Callable[[bytes, RequestLimits], T]) -> T:
        """What a request's body asks for."""
        limits = self.limits(exchange.key)

        def work(body: bytes) -> T:
            ignores = self.config.serve.unknown_fields == "ignore"
            with ignore_unknown_fields(ignores), allow_context(self.config.scheduler.max_context):
                return decode(body, limits)

        return await self.parsed(exchange, work)

    async def constraints(self, ask: Ask, prompts: Sequence[Prompt], model_text: ModelText) -> list[Constraint | None]:
        """The form of each prompt's answer. Schemas of tools that must be called may take a while."""
        parameters = partial(exact_parameters, self.config.grammar.open_objects)

        def work() -> list[Constraint | None]:
            return [constraint_of(ask, prompt, model_text, parameters) for prompt in prompts]

        must_call = isinstance(ask, ChatRequest) and ask.tool_choice.mode == "required"
        return await self._threads.run(work, LONG_TEXT if must_call else 0, LONG_TEXT)

    async def route(self, exchange: Exchange, ask: Ask) -> Choice | None:
        """What a request that names an alias is to be tried with. None: it names a model."""
        choose = self.router.chooser(ask, exchange.key.name)
        return None if choose is None else await self.beside(exchange, choose)

    async def prompts(
        self, exchange: Exchange, ask: Ask, model_text: ModelText, max_tokens: int | None = None
    ) -> list[Prompt]:
        """What is asked, as tokens. `max_tokens`: a prompt that is far longer is refused early."""
        return await self.beside(exchange, partial(encode_prompts, ask, model_text, max_tokens))

    async def beside(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Do what takes time with the size of a request's body: in a thread if the body is large."""
        return await self._threads.run(work, exchange.num_body_bytes, LONG_TEXT)

    def samples(self) -> list[Sample]:
        """What was measured, in all processes of this server."""
        return summed([*self.meters.samples(), *self.others()])

    def tell(self, record: Record) -> None:
        """A request has ended."""
        for observe in (self.meters.ended, *self.observers):
            observe(record)
