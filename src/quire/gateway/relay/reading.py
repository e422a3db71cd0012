"""Reads a client's request as far as the gateway needs it: the model, the prompt's tokens, the terms.

A body that cannot be decoded here is passed on as it is: only the upstream knows whether it is valid.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from quire.gateway.relay.balance import BYTES_PER_TOKEN
from quire.gateway.relay.body_head import read_body_head
from quire.gateway.relay.request import RelayedRequest
from quire.gateway.relay.texts import ModelTexts
from quire.serve.dialects.body import ignore_unknown_fields
from quire.serve.dialects.contract import CountEndpoint, Dialect, GenerateEndpoint, RequestLimits
from quire.serve.http.exchange import Exchange
from quire.serve.http.text_threads import LARGE_BODY, LONG_TEXT, TextThreads
from quire.text.model_text import ModelText
from quire.text.prompts import Prompt, drop_forbidden_tools, encode_prompts
from quire.types.chat import Ask
from quire.types.errors import QuireError

OLLAMA = "ollama"
LIMITS = RequestLimits(max_n=2**16, max_stops=2**16, max_stop_chars=2**20, max_tools=2**16, max_prompts=2**16)
MAX_EXPECTED = 1024  # output tokens; answers rarely use all that they may


class RequestReader:
    """Used in the event loop's thread; large bodies are read in others."""

    limits = LIMITS  # wide ones: each upstream has its own

    def __init__(self, dialects: Sequence[Dialect], texts: ModelTexts) -> None:
        self._decoders: Mapping[str, GenerateEndpoint | CountEndpoint] = {
            endpoint.path: endpoint
            for dialect in dialects
            for endpoint in dialect.endpoints
            if isinstance(endpoint, GenerateEndpoint | CountEndpoint)
        }
        self._texts = texts
        self._threads = TextThreads()

    async def read(self, exchange: Exchange, body: bytes) -> RelayedRequest:
        """What the body says."""
        query = exchange.scope["query_string"].decode("latin-1")
        target = exchange.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        request = RelayedRequest(exchange, target, body, exchange.dialect.name)
        endpoint = self._decoders.get(exchange.record.path)
        if isinstance(endpoint, GenerateEndpoint):
            request.ask = await self._threads.run(partial(_decode, endpoint, body), len(body), LARGE_BODY)
        request.num_tokens = len(body) // BYTES_PER_TOKEN
        if request.ask is None:
            head = read_body_head(body, exchange.header("content-type") or "")
            request.model = request.named = head.model or head.name
            is_default = exchange.dialect.name == OLLAMA and isinstance(endpoint, GenerateEndpoint)
            request.streams = is_default if head.stream is None else head.stream
            request.session = head.user
            return request
        _add_terms(request, request.ask)
        return request

    async def encode(self, request: RelayedRequest) -> None:
        """Encode the prompts, once the model is known."""
        ask = request.ask
        text = self._texts.get(request.model)
        if ask is None or text is None or text.tokenizer is None:
            return
        work = partial(_encode, ask, text)
        prompts = await self._threads.run(work, request.exchange.num_body_bytes, LONG_TEXT)
        if prompts:
            request.prompts, request.text_digest = prompts, text.digest
            request.num_tokens = sum(len(prompt.tokens) for prompt in prompts)
        request.exchange.record.decoded = time.monotonic()


def _decode(endpoint: GenerateEndpoint, body: bytes) -> Ask | None:
    try:
        with ignore_unknown_fields(True):
            return drop_forbidden_tools(endpoint.decode(body, LIMITS).ask)
    except QuireError:
        return None


def _encode(ask: Ask, text: ModelText) -> list[Prompt]:
    """The prompts as tokens; without their text, which is needed only to echo it. Empty if they have an error."""
    try:
        prompts = encode_prompts(ask, text)
    except QuireError:  # the upstream says what is wrong
        return []
    return prompts if ask.echo else [_without_text(prompt) for prompt in prompts]


def _without_text(prompt: Prompt) -> Prompt:
    return Prompt(prompt.tokens, None, prompt.pins, prompt.begun, prompt.ends, prompt.predicted)


def _add_terms(request: RelayedRequest, ask: Ask) -> None:
    request.model = request.named = ask.model
    request.streams = ask.stream
    request.session = ask.terms.session or ask.terms.user
    request.expected_output = min(ask.sampling.max_tokens or 0, MAX_EXPECTED)
    request.cache_key = request.exchange.key.cache_key(ask.terms.salt)
