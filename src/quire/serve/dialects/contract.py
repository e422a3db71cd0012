"""The contract of a dialect: pure functions between bytes and the types of `types/chat.py`. Each has a folder here.

A dialect never sees a socket, a clock or a model, and no dialect is built on another. `decode` raises InvalidRequest
with the field's name as the client spells it. It also makes the `writer`, because the request decides how the answer
is written (with usage, with token ids, …); a writer holds only the state that its format needs, such as indices.
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
from quire.types.speech import Segment, SpeechOptions, Transcript
from quire.types.vectors import VectorAnswer, VectorRequest


class Reply(NamedTuple):
    """Facts of an answer that are not in the request: id, time, model."""

    id: str  # unique, without a prefix
    created: float  # seconds since 1970
    model: str  # as the client named it
    fingerprint: str = ""  # of what determines the answer besides the request: version, model, device
    sampling: SamplingParams | None = None  # with the model's defaults; None: nothing is sampled


class AnswerWriter(Protocol):
    """Writes one answer: open, write*, then close or fail; or whole alone."""

    content_type: str  # of a stream; a whole answer is application/json

    def open(self, usage: Usage) -> bytes:
        """The bytes before the first event. Of the usage only the prompt is known then."""

    def write(self, events: Sequence[Event]) -> bytes:
        """Encode events as one piece of the body. May be empty."""

    def close(self, usage: Usage) -> bytes:
        """The bytes after the last event."""

    def fail(self, error: QuireError) -> bytes:
        """The last bytes of a stream that failed."""

    def whole(self, answered: Answered) -> bytes:
        """Encode the answer to a request without `stream`."""


class Decoded(NamedTuple):
    """A request, and the writer of its answer."""

    ask: Ask
    writer: Callable[[Reply], AnswerWriter]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The most that one request may contain; from the server's settings."""

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
    streams: str = "text/event-stream"  # content type of a stream


class DecodedSpeech(NamedTuple):
    """A recording to transcribe, and how its text is written."""

    model: str
    audio: bytes  # of a sound file
    options: SpeechOptions
    streams: bool
    content_type: str  # of a whole answer
    whole: Callable[[Transcript], bytes]
    delta: Callable[[Segment], bytes]  # pieces of a stream
    done: Callable[[Transcript], bytes]  # its end


@dataclass(frozen=True, slots=True)
class SpeechEndpoint:
    """An endpoint that takes a recording, as a form. POST. `decode` is given the content type of the body too."""

    path: str
    decode: Callable[[str | None, bytes, RequestLimits], DecodedSpeech]


class DecodedVectors(NamedTuple):
    """A request for vectors or scores, and how its answer is encoded."""

    ask: VectorRequest
    encode: Callable[[Reply, VectorAnswer], bytes]


@dataclass(frozen=True, slots=True)
class VectorEndpoint:
    """An endpoint whose answer is vectors or scores. POST."""

    path: str
    decode: Callable[[bytes, RequestLimits], DecodedVectors]


@dataclass(frozen=True, slots=True)
class CountEndpoint:
    """An endpoint that counts a prompt's tokens. POST."""

    path: str
    decode: Callable[[bytes, RequestLimits], ChatRequest]
    encode: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class ListEndpoint:
    """An endpoint that lists all models. GET. `only_loaded`: only those in memory."""

    path: str
    encode: Callable[[Sequence[ModelCard]], bytes]
    only_loaded: bool = False


@dataclass(frozen=True, slots=True)
class PageEndpoint:
    """An endpoint that lists models page by page. GET.

    `header`: it handles requests that have this header; another dialect has the same path without it.
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
    """An endpoint that returns the server's version. GET."""

    path: str
    encode: Callable[[str], bytes]


class DecodedChange(NamedTuple):
    """A change of the stored models, and how its progress and result are encoded."""

    change: Change
    streams: bool = False  # its steps as they come
    step: Callable[[Step], bytes] = lambda step: b""
    done: bytes = b""  # the last line of a stream, or the whole body
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class ChangeEndpoint:
    """An endpoint that changes the stored models. For admins."""

    path: str
    decode: Callable[[bytes], DecodedChange]
    method: Literal["POST", "DELETE"] = "POST"
    streams: str = "application/x-ndjson"  # content type of a stream of steps


@dataclass(frozen=True, slots=True)
class BlobEndpoint:
    """An endpoint that uploads a model's file, with {digest} in its path. HEAD checks for one. For admins."""

    path: str
    method: Literal["POST", "HEAD"] = "POST"


Endpoint = (
    GenerateEndpoint
    | SpeechEndpoint
    | VectorEndpoint
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
