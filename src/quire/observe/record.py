"""The record of one HTTP request: filled in while it is handled, and passed to observers once, when it has ended.

Metrics, the access log and traces are observers: functions of a `Record`, called only in `serve/http/app.py`.
Times are on the monotonic clock; `at` is on the wall clock, so that traces can convert the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.types.errors import InvalidRequest, QuireError
from quire.types.request import SamplingParams

QUOTED = re.compile(r"['\"].*['\"]")  # greedy: a value may contain quotes
NAME = re.compile(r"[A-Za-z_]\w{0,39}(?:\.?\[?\w{1,40}\]?){0,8}", re.ASCII)  # of a field
GRAMMAR_FIELD, TEMPLATE_ERROR = "constraint", "rejected_messages"


@dataclass(slots=True)
class Record:
    """Owned by the request's exchange. None: the request did not get that far."""

    request_id: str
    method: str
    path: str
    dialect: str
    at: float  # seconds since 1970
    arrived: float
    key: str = ""  # the name of the API key
    status: int = 0  # 0: the client disconnected before there was one
    error: str | None = None  # the code of the error
    message: str | None = None  # the error's message, without text of the client
    model: str | None = None
    client_id: str | None = None  # the client's id for the request, from the body
    traceparent: str = ""  # the caller's trace context (W3C)
    tracestate: str = ""
    span: tuple[str, str] | None = None  # ids of the trace and of this request's span, if others know them already
    operation: str | None = None  # "chat" or "text_completion", if the request runs a model
    sampling: SamplingParams | None = None
    streams: bool = False
    prompt: str | None = None  # only if prompts are logged
    prompts: tuple[tuple[int, ...], ...] = ()  # as tokens, only with a request log
    salt: str = ""  # the tenant whose prefixes these are, only with a request log
    session: str | None = None  # only with a request log
    form: str | None = None  # the constraint of the answer
    decoded: float | None = None  # the body was parsed
    submitted: float | None = None  # the prompt was tokenized and sent to the engine
    first_token: float | None = None
    ended: float | None = None
    waited: float = 0.0  # seconds in the engine's queue
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    charged: int = 0  # prompt tokens charged to its key
    forced_tokens: int = 0
    drafted_tokens: int = 0  # verified
    accepted_drafts: int = 0  # of the output, tokens that were drafted
    reasoning_tokens: int = 0
    endings: list[str] = field(default_factory=list)  # finish reasons, one for each choice

    def fail(self, error: QuireError) -> None:
        """Record an error. The last of several counts."""
        self.error, self.message = error.code, loggable(error)


def loggable(error: QuireError) -> str:
    """An error's message without values that the client sent, which are in quotes and may be part of a prompt.

    The details of a grammar or a chat template about the client's text are left out.
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
