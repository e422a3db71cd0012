"""A client's request on its way through the gateway: what is known of it, and how far its answer has come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from quire.gateway.relay.body_head import with_model
from quire.gateway.relay.ids import new_id
from quire.serve.access.keys import ApiKey
from quire.serve.http.exchange import Exchange
from quire.serve.relayed.note import CLIENT, NOTE, RelayedClient, RelayNote, encode_note
from quire.text.prompts import Prompt
from quire.types.chat import Ask
from quire.types.request import CacheKey
from quire.types.transfer import PrefixSource

# Headers of clients that upstreams get. All others stay here: keys, cookies, and what only a gateway may send.
PASSED = (
    *("content-type", "accept", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta"),
    *("openai-organization", "openai-project", "tracestate"),
)


@dataclass(slots=True)
class RelayedRequest:
    """A request that goes to one upstream after the other until one answers."""

    exchange: Exchange
    target: str  # path and query
    body: bytes
    dialect: str
    model: str = ""  # as upstreams name it
    named: str = ""  # as the body names the model
    streams: bool = False
    ask: Ask | None = None  # None: another kind of request, or one that only the upstream understands
    prompts: Sequence[Prompt] = ()  # empty: not encoded here
    text_digest: str = ""
    cache_key: CacheKey = field(default_factory=CacheKey)
    num_tokens: int = 0  # of the prompts, estimated if they are not encoded
    session: str = ""
    expected_output: int = 0  # tokens
    traceparent: str = ""

    @property
    def is_renamed(self) -> bool:
        """Is the model another one than the body names: behind an alias, with its tag, or the only one?"""
        return self.model != self.named

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of its first prompt, by which it is routed."""
        return self.prompts[0].tokens if self.prompts else ()

    def headers(self) -> dict[str, str]:
        """The headers for any upstream."""
        found = {name: value for name in PASSED if (value := self.exchange.header(name)) is not None}
        found["x-request-id"] = self.exchange.id
        if self.traceparent:
            found["traceparent"] = self.traceparent
        return found

    def client_header(self) -> str:
        """The client, for Quire upstreams."""
        return _client_header(self.exchange.key)


@dataclass(slots=True)
class AnswerProgress:
    """What the client has received of a streamed answer."""

    reply_id: str = field(default_factory=partial(new_id, 12))
    created: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    is_begun: bool = False  # the client has a part of the body
    is_framed: bool = False  # from a Quire upstream: another one can continue
    journal: list[bytes] = field(default_factory=list)
    num_tokens: int = 0
    text: str = ""  # of an answer of another kind, if it may be continued by its text
    num_resumed: int = 0

    def note(self, request: RelayedRequest, source: PrefixSource | None = None) -> RelayNote:
        """Return the note for the next Quire upstream. `source`: where it may fetch the prompt's blocks."""
        return RelayNote(
            model=request.model if request.is_renamed else "",
            reply_id=self.reply_id,
            created=self.created,
            elapsed=time.monotonic() - self.started,
            in_frames=True,
            is_begun=self.is_begun,
            journal=self.journal,
            prompts=list(request.prompts),
            text_digest=request.text_digest,
            prefix_source=source,
        )


@lru_cache(1024)
def _client_header(key: ApiKey) -> str:
    salt = key.name if key.salt is None else key.salt
    return RelayedClient(key.name, salt, key.priority, key.weight, key.max_n).header()


def quire_message(
    request: RelayedRequest, progress: AnswerProgress, source: PrefixSource | None = None
) -> tuple[dict[str, str], bytes]:
    """Return headers and body for a Quire upstream. For requests that generate text, a note follows the body."""
    headers, body = request.headers() | {CLIENT: request.client_header()}, request.body
    if request.ask is None:
        return headers, with_model(body, request.model) if body and request.is_renamed else body
    headers[NOTE] = str(len(body))
    return headers, body + encode_note(progress.note(request, source))
