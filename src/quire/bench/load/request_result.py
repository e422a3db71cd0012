"""The result of one request as its client saw it: times, text, usage and error."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class RequestResult:
    """Filled in by the client that sends the request. None: the server did not report it."""

    due: float  # when the request was scheduled to be sent
    max_tokens: int = 0
    must_reach_max: bool = False  # sent with ignore_eos: fewer than max_tokens is an early end
    expects_json: bool = False
    sent: float = 0.0
    ended: float = 0.0
    event_times: list[float] = field(default_factory=list)  # arrival of each event that carries output
    text: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens: the server's count, or one for each event."""
        return len(self.event_times) if self.output_tokens is None else self.output_tokens

    @property
    def first_token(self) -> float:
        """Seconds from sending the request to its first output."""
        return self.event_times[0] - self.sent

    @property
    def per_token(self) -> float | None:
        """Seconds for each token after the first. None: there is only one."""
        return (self.event_times[-1] - self.event_times[0]) / (self.num_tokens - 1) if self.num_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive events."""
        return [after - before for before, after in pairwise(self.event_times)]

    @property
    def seconds(self) -> float:
        """From sending the request to the end of its answer."""
        return self.ended - self.sent

    @property
    def is_success(self) -> bool:
        """Whether it was answered without an error."""
        return self.error is None and bool(self.event_times)
