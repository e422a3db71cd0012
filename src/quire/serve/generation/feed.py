"""News of the requests of one exchange, on their way from the engine's link to the task that writes.

The engine never waits for a reader. What comes while the task is held up by its socket is put together: the next time
it looks, it finds one piece for each sample. So what is kept is bounded by the answer itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from quire.engine.client import Client
from quire.engine.messages import Failed, News
from quire.serve.http.exchange import ClientGone
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest

MAX_PIECES = 512  # lying here before they are put together

Gap = Callable[[float, int], None]  # seconds between two tokens of a sample, and how many came at once


class Feed:
    """Everything happens in the event loop's thread: the link must be read there.

    With `wakes_late` the task hears nothing before the last request has ended: it wants the answer whole.
    """

    def __init__(self, client: Client, requests: Sequence[GenerateRequest], gap: Gap, wakes_late: bool = False) -> None:
        self._client = client
        self._requests = requests
        self._gap = gap
        self._wakes_late = wakes_late
        self._loop = asyncio.get_running_loop()
        self._news: list[Tokens | Finished] = []
        self._error: QuireError | None = None
        self._limit = MAX_PIECES
        self._waiter: asyncio.Future[None] | None = None
        self._first_of: dict[str, int] = {}  # request -> its first choice
        self._open: dict[str, int] = {}  # live request -> samples that go on
        self._last: list[float] = []  # choice -> when its newest token came
        self._is_abandoned = False
        self.first_token: float | None = None  # when

    def submit(self) -> None:
        """Hand in all requests. If one is refused at once, none is left."""
        for request in self._requests:
            self._first_of[request.id] = len(self._last)
            self._open[request.id] = request.sampling.n
            self._last += [0.0] * request.sampling.n
            try:
                self._client.submit(request, self._hear)
            except BaseException:
                del self._open[request.id]
                self.cancel()
                raise

    async def take(self, patience: float | None = None) -> list[Tokens | Finished]:
        """What has come, at least something; nothing only if the patience, in seconds, is over.

        Raises what a request failed of, and ClientGone once the feed was abandoned.
        """
        if not self._is_due:
            self._waiter = self._loop.create_future()
            alarm = None if patience is None else self._loop.call_later(patience, self._wake)
            await self._waiter
            if alarm is not None:
                alarm.cancel()
        if self._is_abandoned:
            raise ClientGone
        if self._error is not None and not self._news:
            raise self._error
        news, self._news, self._limit = self._news, [], MAX_PIECES
        return folded(news) if len(news) > 1 else news

    def stop(self, request_id: str, sample: int) -> None:
        """The text of a sample has ended with a stop string."""
        self._client.cancel(request_id, FinishReason.STOP, sample)

    def abandon(self) -> None:
        """The client has gone: so do its requests."""
        self._is_abandoned = True
        self.cancel()
        self._wake()

    def cancel(self) -> None:
        """End what has not ended. The engine frees its blocks before its next step."""
        for request_id in self._open:
            self._client.cancel(request_id)
        self._open.clear()

    @property
    def _is_due(self) -> bool:
        """Is there something that the task should know now?"""
        has_news = self._news and not (self._wakes_late and self._open)
        return bool(has_news or self._is_abandoned or self._error)

    def _hear(self, news: News) -> None:
        """Called by the link, for every token of every stream."""
        if isinstance(news, Tokens | Finished):
            if news.tokens:
                self._clock(self._first_of[news.request_id] + news.sample, len(news.tokens))
            self._news.append(news)
            if isinstance(news, Finished):
                self._close(news.request_id, 1)
        elif isinstance(news, Failed):
            self._error = news.error
            self._close(news.request_id, self._open.get(news.request_id, 0) if news.sample is None else 1)
        else:
            return  # it was accepted; there is nothing to tell yet
        if self._waiter is not None and self._is_due:
            self._wake()
        elif len(self._news) >= self._limit:
            self._news = folded(self._news)
            self._limit = len(self._news) + MAX_PIECES

    def _clock(self, choice: int, num_tokens: int) -> None:
        now, before = time.monotonic(), self._last[choice]
        self._last[choice] = now
        if before:
            self._gap((now - before) / num_tokens, num_tokens)
        elif self.first_token is None:
            self.first_token = now

    def _close(self, request_id: str, num_samples: int) -> None:
        """So many samples have ended; none of them is to be cancelled later."""
        num_left = self._open.pop(request_id, 0) - num_samples
        if num_left > 0:
            self._open[request_id] = num_left

    def _wake(self) -> None:
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                waiter.set_result(None)


def folded(news: Sequence[Tokens | Finished]) -> list[Tokens | Finished]:
    """One piece for each sample that goes on, and the last one of each that has ended, in the order of their coming."""
    told: list[Tokens | Finished] = []
    places: dict[tuple[str, int], int] = {}
    for each in news:
        if isinstance(each, Finished):
            told.append(each)
            continue
        place = places.setdefault((each.request_id, each.sample), len(told))
        if place == len(told):
            told.append(each)
            continue
        before = told[place]
        assert isinstance(before, Tokens)
        told[place] = Tokens(
            each.request_id,
            each.sample,
            before.tokens + each.tokens,
            before.logprobs + each.logprobs,
            max(before.num_hit, each.num_hit),
            before.prompt_logprobs + each.prompt_logprobs,
            before.num_forced + each.num_forced,
        )
    return told
