"""A request that is not over, and everything that was reported about it: enough to resume it in another engine.

Pure. Owned by recovery.py, which is the only one to change it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from quire.engine.messages import Failed, News
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest

Sink = Callable[[News], None]  # called where the link is read, a thread or an event loop: it must not block


class Told(NamedTuple):
    """News, and the sink that they are for."""

    sink: Sink
    news: News


@dataclass(slots=True, eq=False)
class Live:
    """A request that is not over."""

    request: GenerateRequest
    sink: Sink
    arrival: int
    outputs: list[array[int] | None] = field(init=False)  # of each sample; None: it is over
    num_open: int = field(init=False)
    num_said: int = 0  # tokens, of all samples
    num_scores: int = 0  # log probabilities of its prompt that were reported
    num_repeated: int = 0  # of those that the engine reports next, how many were reported before
    is_accepted: bool = False
    in_engine: bool = False
    sent_at: float = 0.0
    num_said_before: int = 0  # when it was sent
    exposure: float = 0.0  # seconds that it had been in the last engine that died
    is_suspect: bool = False  # it was in an engine that died, and has not been cleared since
    is_on_trial: bool = False  # a suspect in the engine
    is_prime: bool = False  # it was on trial in the last engine that died: never tried beside others
    is_separate: bool = False  # it was blamed before: never on trial together with another
    is_retry: bool = False  # on trial after the engine had run without it
    num_blamed: int = 0  # engines in a row that died while it was the only one on trial

    def __post_init__(self) -> None:
        self.num_open = self.request.sampling.n
        self.outputs = [array("I") for _ in range(self.num_open)]

    @property
    def num_new(self) -> int:
        """Tokens since it was last sent to an engine."""
        return self.num_said - self.num_said_before

    def take(self, news: News) -> News | None:
        """Record these news. Return what is new in them; None: it was reported before."""
        if isinstance(news, Tokens | Finished):
            return self._grow(news)
        if isinstance(news, Failed):
            self._end(range(len(self.outputs)) if news.sample is None else (news.sample,))
            return news
        is_new, self.is_accepted = not self.is_accepted, True
        return news if is_new else None

    def sent(self, now: float) -> GenerateRequest:
        """Return the request as an engine must see it now: with the tokens that were reported."""
        self.in_engine, self.sent_at = True, now
        self.num_said_before, self.num_repeated = self.num_said, self.num_scores
        if not self.is_accepted:
            return self.request
        return replace(self.request, resumed=tuple(None if o is None else tuple(o) for o in self.outputs))

    def lost(self, now: float) -> None:
        """The engine that it was in has died."""
        self.exposure = now - self.sent_at
        self.in_engine = self.is_on_trial = self.is_retry = False
        self.is_suspect = True

    def clear(self) -> None:
        """It survived its trial: nothing that was held against it counts any more."""
        self.is_suspect = self.is_on_trial = self.is_retry = self.is_separate = self.is_prime = False
        self.num_blamed = 0

    def _grow(self, news: Tokens | Finished) -> News | None:
        output, tokens = self.outputs[news.sample], news.tokens
        if output is None:
            return None  # it was ended here, and the engine had not heard of it
        self.num_said += len(tokens)
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
        """Of a prompt that is scored again, what is new."""
        num_known = min(self.num_repeated, len(news.prompt_logprobs))
        self.num_repeated -= num_known
        self.num_scores += len(news.prompt_logprobs) - num_known
        return news._replace(prompt_logprobs=news.prompt_logprobs[num_known:])

    def _end(self, samples: Iterable[int]) -> None:
        for sample in samples:
            self.num_open -= self.outputs[sample] is not None
            self.outputs[sample] = None


def failed(live: Live, error: QuireError) -> Told:
    """The last news of a request."""
    return Told(live.sink, Failed(live.request.id, None, error))
