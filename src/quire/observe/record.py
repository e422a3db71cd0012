"""What became of one HTTP request: filled in on its way, and told to observers once, when it has ended.

Metrics, the access log and traces are observers: each is a function of a `Record`, and the only place where it is
called is `serve/http/app.py`. Times are on the monotonic clock; `at` is wall-clock time, so that traces can be aligned.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.types.errors import InvalidRequest, QuireError
from quire.types.request import SamplingParams

QUOTED = re.compile(r"['\"].*['\"]")  # greedy: a value may have quotes in it
NAME = re.compile(r"[A-Za-z_]\w{0,39}(?:\.?\[?\w{1,40}\]?){0,8}", re.ASCII)  # that a field can have
GRAMMAR_FIELD, TEMPLATE_ERROR = "constraint", "rejected_messages"


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
    message: str | None = None  # the sentence about it, without what the client wrote
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

    def fail(self, error: QuireError) -> None:
        """Note what went wrong. Of several errors the last counts."""
        self.error, self.message = error.code, loggable(error)


def loggable(error: QuireError) -> str:
    """The sentence of an error without the values that a client sent, which may be of a prompt: those are in quotes.

    What a grammar or a chat template says about the client's own text is left out.
    """
    text = " ".join(error.public.split())
    field = getattr(error, "field", None)
    if error.code == TEMPLATE_ERROR:
        return "the chat template refuses these messages."
    if field == GRAMMAR_FIELD and ":" in text:
        return text.partition(":")[0] + "."
    if isinstance(error, InvalidRequest):
        text = QUOTED.sub("'…'", text)
        if field and not NAME.fullmatch(field):
            text = text.replace(field, "…")
    return text


Observer = Callable[[Record], None]
