"""A live request with everything reported about it so far: enough to resume it in another engine.

Pure. Changed by recovery.py alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from quire.engine.messages import Failed, News
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest

Sink = Callable[[News], None]  # called in the thread or event loop that reads the link: must not block

Delivery = tuple[Sink, News]  # a message and the sink that it is for; a plain tuple: one is built for every token


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request that has not ended."""

    request: GenerateRequest
    sink: Sink
    arrival: int
    outputs: list[array[int] | None] = field(init=False)  # of each sample; None: it has ended
    num_open: int = field(init=False)
    num_reported: int = 0  # tokens of all samples
    num_scores: int = 0  # prompt log probabilities that were reported
    num_repeated: int = 0  # of the next prompt log probabilities, how many were reported before
    is_accepted: bool = False
    in_engine: bool = False
    sent_at: float = 0.0
    num_reported_before: int = 0  # when it was last sent
    exposure: float = 0.0  # seconds that it spent in the last engine that died
    is_suspect: bool = False  # was in an engine that died, and has not been cleared since
    is_on_trial: bool = False  # a suspect that is in the engine
    is_prime_suspect: bool = False  # was on trial in the last engine that died: tried with other prime suspects alone
    is_separate: bool = False  # was blamed before: tried alone
    is_retry: bool = False  # on trial again, after an engine ran without it
    num_blamed: int = 0  # consecutive engines that died while it alone was on trial

    def __post_init__(self) -> None:
        resumed = self.request.resumed or ((),) * self.request.sampling.n
        self.outputs = [None if output is None else array("I", output) for output in resumed]
        self.num_open = len(self.request.unfinished_samples)

    @property
    def num_new(self) -> int:
        """Tokens since it was last sent to an engine."""
        return self.num_reported - self.num_reported_before

    def record(self, news: News) -> News | None:
        """Record a message. Return the part of it that is new; None: all of it was reported before."""
        if isinstance(news, Tokens | Finished):
            return self._grow(news)
        if isinstance(news, Failed):
            self._end(range(len(self.outputs)) if news.sample is None else (news.sample,))
            return news
        is_new, self.is_accepted = not self.is_accepted, True
        return news if is_new else None

    def mark_sent(self, now: float) -> GenerateRequest:
        """Return the request as it must be sent to an engine now: with the tokens reported so far."""
        self.in_engine, self.sent_at = True, now
        self.num_reported_before, self.num_repeated = self.num_reported, self.num_scores
        if not self.is_accepted:
            return self.request
        return replace(self.request, resumed=tuple(None if o is None else tuple(o) for o in self.outputs))

    def mark_lost(self, now: float) -> None:
        """The engine that had this request died."""
        self.exposure = now - self.sent_at
        self.in_engine = self.is_on_trial = self.is_retry = False
        self.is_suspect = True

    def clear(self) -> None:
        """The engine survived its trial: drop all suspicion."""
        self.is_suspect = self.is_on_trial = self.is_retry = self.is_separate = self.is_prime_suspect = False
        self.num_blamed = 0

    def _grow(self, news: Tokens | Finished) -> News | None:
        output, tokens = self.outputs[news.sample], news.tokens
        if output is None:
            return None  # it was ended on this side before the engine knew
        self.num_reported += len(tokens)
        if len(tokens) == 1:
            output.append(tokens[0])
        else:
            output.extend(tokens)
        if isinstance(news, Finished):
            self._end((news.sample,))
        elif news.prompt_logprobs:
            return self._score(news)
        return news

    def _score(self, news: Tokens) -> News:
        """Return the message without the prompt log probabilities that were reported before."""
        num_known = min(self.num_repeated, len(news.prompt_logprobs))
        self.num_repeated -= num_known
        self.num_scores += len(news.prompt_logprobs) - num_known
        return news._replace(prompt_logprobs=news.prompt_logprobs[num_known:])

    def _end(self, samples: Iterable[int]) -> None:
        for sample in samples:
            self.num_open -= self.outputs[sample] is not None
            self.outputs[sample] = None


def failure_of(live: LiveRequest, error: QuireError) -> Delivery:
    """The last message of a request that cannot be served."""
    return live.sink, Failed(live.request.id, None, error)
