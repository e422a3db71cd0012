"""What became of one HTTP request: filled in on its way, and told to observers once, when it has ended.

Metrics, the access log and traces are observers: each is a function of a `Record`, and the only place where it is
called is `serve/app.py`. Times are on the monotonic clock; `at` is that of the wall, so a trace can place the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quire.types.request import SamplingParams


@dataclass(slots=True)
class Record:
    """Owned by the exchange that it is about. None: it did not come to that."""

    request_id: str
    method: str
    path: str
    dialect: str
    at: float  # seconds since 1970
    arrived: float
    key: str = ""  # the name of the API key
    status: int = 0  # 0: the client left before it had one
    error: str | None = None  # the code of what went wrong
    model: str | None = None
    client_id: str | None = None  # the client's own name for it, out of the body
    traceparent: str = ""  # the caller's place in a trace, as W3C has it
    tracestate: str = ""
    operation: str | None = None  # of a request that runs a model: "chat" or "text_completion"
    sampling: SamplingParams | None = None  # of the same
    streams: bool = False
    prompt: str | None = None  # only if prompts are to be logged
    prompts: tuple[tuple[int, ...], ...] = ()  # their tokens, only if there is a request log
    salt: str = ""  # of the same: whose prefixes these are
    session: str | None = None  # of the same
    form: str | None = None  # that the answer must have
    decoded: float | None = None  # the body was read and understood
    submitted: float | None = None  # text had become tokens
    first_token: float | None = None
    ended: float | None = None
    waited: float = 0.0  # seconds in the engine's queue
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    charged: int = 0  # prompt tokens that its key has paid for
    forced_tokens: int = 0
    reasoning_tokens: int = 0
    endings: list[str] = field(default_factory=list)  # of its choices


Observer = Callable[[Record], None]
