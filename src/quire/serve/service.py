"""What all handlers share: settings, models, API keys, quotas, observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from quire.config import Config
from quire.gateway.routing import RouteChoice
from quire.grammar.tool_schemas import exact_parameters
from quire.observe.meters import Meters
from quire.observe.metrics import MetricSample, sum_samples
from quire.observe.record import Observer, Record
from quire.serve.access.keys import ANONYMOUS, ApiKey, ApiKeys
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
    """One for each process that serves HTTP; used in its event loop's thread."""

    config: Config
    models: Models
    dialects: Sequence[Dialect] = ()
    keys: ApiKeys = field(default_factory=lambda: ApiKeys(()))
    quotas: Quotas = field(default_factory=Quotas)
    meters: Meters = field(default_factory=Meters)
    observers: Sequence[Observer] = ()  # in addition to the meters
    library: Library | None = None  # None: models cannot be changed over HTTP
    others: Callable[[], list[MetricSample]] = list  # metrics of the other processes of this server
    is_draining: bool = False
    num_running: int = 0  # requests in progress
    num_cut: int = 0  # requests cut off by the shutdown
    router: Router = field(init=False)
    _threads: TextThreads = field(default_factory=TextThreads)

    def __post_init__(self) -> None:
        self.router = Router(self.config.serve.routes, self.models)

    @property
    def origins(self) -> list[str]:
        """Origins of web pages that may call this server."""
        return [origin for part in self.config.serve.cors_origins.split(",") if (origin := part.strip())]

    def limits(self, key: ApiKey = ANONYMOUS) -> RequestLimits:
        """The limits of one request."""
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

    async def parse_body(self, exchange: Exchange, parse: Callable[[bytes], T]) -> T:
        """Read and parse a request's body, within the limits."""
        serve = self.config.serve
        body = await exchange.body(int(serve.max_body_mb * 1e6), serve.body_seconds)
        return await self._threads.run(partial(parse, body), len(body), LARGE_BODY)

    async def decoded(self, exchange: Exchange, decode: Callable[[bytes, RequestLimits], T]) -> T:
        """Read a request's body and decode it with a dialect."""
        limits = self.limits(exchange.key)

        def work(body: bytes) -> T:
            ignores = self.config.serve.unknown_fields == "ignore"
            with ignore_unknown_fields(ignores), allow_context(self.config.scheduler.max_context):
                return decode(body, limits)

        return await self.parse_body(exchange, work)

    async def constraints(self, ask: Ask, prompts: Sequence[Prompt], model_text: ModelText) -> list[Constraint | None]:
        """The constraint of each prompt's answer. The schemas of required tools may take a while."""
        parameters = partial(exact_parameters, self.config.grammar.open_objects)

        def work() -> list[Constraint | None]:
            return [constraint_of(ask, prompt, model_text, parameters) for prompt in prompts]

        must_call = isinstance(ask, ChatRequest) and ask.tool_choice.mode == "required"
        return await self._threads.run(work, LONG_TEXT if must_call else 0, LONG_TEXT)

    async def route(self, exchange: Exchange, ask: Ask) -> RouteChoice | None:
        """The models to try for a request that names an alias. None: it names a model."""
        choose = self.router.chooser(ask, exchange.key.name)
        return None if choose is None else await self.run_sized(exchange, choose)

    async def prompts(
        self, exchange: Exchange, ask: Ask, model_text: ModelText, max_tokens: int | None = None
    ) -> list[Prompt]:
        """The request's prompts as tokens. `max_tokens`: a prompt that is far longer is refused early."""
        if exchange.note.prompts and await self._has_same_text(exchange.note.text_digest, model_text):
            return exchange.note.prompts
        return await self.run_sized(exchange, partial(encode_prompts, ask, model_text, max_tokens))

    async def _has_same_text(self, digest: str, model_text: ModelText) -> bool:
        """Did a gateway encode with this tokenizer and template?"""
        own = await self._threads.run(lambda: model_text.digest, 0 if model_text.has_digest else LONG_TEXT, LONG_TEXT)
        return bool(own) and own == digest

    async def run_sized(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Run work whose time grows with the request's body: in a thread if the body is large."""
        return await self._threads.run(work, exchange.num_body_bytes, LONG_TEXT)

    def samples(self) -> list[MetricSample]:
        """The metrics of all processes of this server."""
        return sum_samples([*self.meters.samples(), *self.others()])

    def report(self, record: Record) -> None:
        """Report an ended request to the meters and observers."""
        for observe in (self.meters.observe, *self.observers):
            observe(record)
