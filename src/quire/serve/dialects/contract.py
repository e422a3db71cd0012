"""What a dialect is: pure functions between bytes and our own words. `dialects/` has one file for each.

A dialect never sees a socket, a clock or a model, and no dialect goes through another. `decode` raises InvalidRequest
with the field's name in the client's spelling. `writer` is made by decode, because how an answer is to be written (with
usage, with token ids, …) is the request's business; it holds no more than the format needs, such as indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from quire.types.answer import Usage
from quire.types.chat import Answered, Ask, ChatRequest, Event, ModelCard
from quire.types.errors import QuireError
from quire.types.library import Change, Step
from quire.types.request import SamplingParams


class Reply(NamedTuple):
    """Facts of an answer that a pure function cannot make."""

    id: str  # unique, without a prefix
    created: float  # seconds since 1970
    model: str  # as the client named it
    fingerprint: str = ""  # of all that decides about the answer beside the request: version, model, device
    sampling: SamplingParams | None = None  # with the model's defaults; None: nothing is sampled


class AnswerWriter(Protocol):
    """Writes one answer: open, write*, then close or fail; or whole alone."""

    content_type: str  # of a stream; a whole answer is application/json

    def open(self, usage: Usage) -> bytes:
        """What comes before the first event. The usage has what is known then: the prompt."""

    def write(self, events: Sequence[Event]) -> bytes:
        """Some events, as one piece of the body. May be empty."""

    def close(self, usage: Usage) -> bytes:
        """What comes after the last event."""

    def fail(self, error: QuireError) -> bytes:
        """The end of a stream that cannot go on."""

    def whole(self, answered: Answered) -> bytes:
        """The answer to a request that did not ask for a stream."""


class Decoded(NamedTuple):
    """A request, and how its answer is to be written."""

    ask: Ask
    writer: Callable[[Reply], AnswerWriter]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much one request may ask for; the server's settings."""

    max_n: int = 128
    max_stops: int = 64
    max_stop_chars: int = 1024
    max_tools: int = 256
    max_schema_bytes: int = 256 * 1024
    max_logprobs: int = 20
    max_prompts: int = 1024


@dataclass(frozen=True, slots=True)
class GenerateEndpoint:
    """An endpoint that runs the model. POST."""

    path: str
    decode: Callable[[bytes, RequestLimits], Decoded]
    streams: str = "text/event-stream"  # the type of a stream's content


@dataclass(frozen=True, slots=True)
class CountEndpoint:
    """An endpoint that only counts a prompt's tokens. POST."""

    path: str
    decode: Callable[[bytes, RequestLimits], ChatRequest]
    encode: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class ListEndpoint:
    """An endpoint that shows all models. GET. `only_loaded`: those that are in memory."""

    path: str
    encode: Callable[[Sequence[ModelCard]], bytes]
    only_loaded: bool = False


@dataclass(frozen=True, slots=True)
class PageEndpoint:
    """An endpoint that shows all models, some at a time, as the query asks. GET.

    `header`: it answers the requests that have this header; others are for another dialect with the same path.
    """

    path: str
    encode: Callable[[Sequence[ModelCard], Mapping[str, str]], bytes]
    header: str = ""


@dataclass(frozen=True, slots=True)
class ShowEndpoint:
    """An endpoint that shows one model: GET with {name} in its path, or POST with a body that names it."""

    path: str
    encode: Callable[[ModelCard], bytes]
    name_of: Callable[[bytes], str] | None = None  # None: GET
    header: str = ""  # as in Pages


@dataclass(frozen=True, slots=True)
class VersionEndpoint:
    """An endpoint that says something fixed of the server. GET. `encode` takes its version."""

    path: str
    encode: Callable[[str], bytes]


class DecodedChange(NamedTuple):
    """A change of what models there are, and how it is told."""

    change: Change
    streams: bool = False  # steps as they come
    step: Callable[[Step], bytes] = lambda step: b""
    done: bytes = b""  # the last of a stream, or all
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class ChangeEndpoint:
    """An endpoint that changes what models there are. For admins."""

    path: str
    decode: Callable[[bytes], DecodedChange]
    method: Literal["POST", "DELETE"] = "POST"
    streams: str = "application/x-ndjson"  # the content type of an answer that tells how far it is


@dataclass(frozen=True, slots=True)
class BlobEndpoint:
    """An endpoint with {digest} in its path, for files that models are made of. HEAD asks for one. For admins."""

    path: str
    method: Literal["POST", "HEAD"] = "POST"


Endpoint = (
    GenerateEndpoint
    | CountEndpoint
    | ListEndpoint
    | PageEndpoint
    | ShowEndpoint
    | VersionEndpoint
    | ChangeEndpoint
    | BlobEndpoint
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API."""

    name: str
    endpoints: tuple[Endpoint, ...]
    error: Callable[[QuireError], bytes]  # the body; the status is the error's own
    headers: Mapping[str, str]  # of every answer
    schemas: Mapping[str, object]  # path -> JSON schema of its body, for /openapi.json
