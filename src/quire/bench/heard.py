"""What came of one request, as its client saw it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

clock = time.perf_counter  # of all times here


@dataclass(slots=True)
class Heard:
    """Filled by the one who asks. None: the server did not say."""

    due: float  # when it was to be sent
    max_tokens: int = 0
    must_reach: bool = False  # max_tokens, for it was asked not to end before
    wants_json: bool = False
    sent: float = 0.0
    ended: float = 0.0
    stamps: list[float] = field(default_factory=list)  # of each event that has a part of the answer
    text: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Of the answer: as the server says, or else a token for each event."""
        return len(self.stamps) if self.output_tokens is None else self.output_tokens

    @property
    def first_token(self) -> float:
        """Seconds from the request to the first part of its answer."""
        return self.stamps[0] - self.sent

    @property
    def per_token(self) -> float | None:
        """Seconds for each token after the first. None: there is none."""
        return (self.stamps[-1] - self.stamps[0]) / (self.num_tokens - 1) if self.num_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between parts."""
        return [after - before for before, after in pairwise(self.stamps)]

    @property
    def seconds(self) -> float:
        """From the request to the end of its answer."""
        return self.ended - self.sent

    @property
    def is_good(self) -> bool:
        """It was answered."""
        return self.error is None and bool(self.stamps)
