"""Buffers the engine's output for the requests of one exchange until the task that writes takes it.

The engine never waits for a reader. Output that arrives while the task is blocked by its socket is merged: the task
then gets one piece for each sample, so the buffer is never larger than the answer itself.
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

MAX_PIECES = 512  # in the buffer before they are merged

RecordGap = Callable[[float, int], None]  # seconds between two tokens of a sample, and how many came at once


class Feed:
    """All of it runs in the event loop's thread, which reads the link.

    With `wakes_late` the task is not woken before the last request has ended: it returns the whole answer.
    """

    def __init__(
        self, client: Client, requests: Sequence[GenerateRequest], record_gap: RecordGap, wakes_late: bool = False
    ) -> None:
        self._client = client
        self._requests = requests
        self._record_gap = record_gap
        self._wakes_late = wakes_late
        self._loop = asyncio.get_running_loop()
        self._outputs: list[Tokens | Finished] = []
        self._error: QuireError | None = None
        self._limit = MAX_PIECES
        self._waiter: asyncio.Future[None] | None = None
        self._first_choices: dict[str, int] = {}  # request id -> its first choice
        self._num_open: dict[str, int] = {}  # id of a live request -> samples that have not ended
        self._last_token: list[float] = []  # choice -> time of its newest token
        self._is_abandoned = False
        self.first_token: float | None = None  # time of the first token

    def submit(self, resumed: Sequence[GenerateRequest] | None = None) -> None:
        """Submit all requests. If one is refused, those before it are cancelled.

        `resumed`: submit these in their place, which continue an answer that another server began.
        """
        for request in self._requests if resumed is None else resumed:
            self._first_choices[request.id] = len(self._last_token)
            self._num_open[request.id] = len(request.unfinished_samples)
            self._last_token += [0.0] * request.sampling.n
            try:
                self._client.submit(request, self._receive)
            except BaseException:
                del self._num_open[request.id]
                self.cancel()
                raise

    async def take(self, timeout: float | None = None) -> list[Tokens | Finished]:
        """Wait for output and return all of it; empty only if the timeout, in seconds, has passed.

        Raises the error of a request that failed, and ClientGone once the feed is abandoned.
        """
        if not self._is_due:
            self._waiter = self._loop.create_future()
            alarm = None if timeout is None else self._loop.call_later(timeout, self._wake)
            await self._waiter
            if alarm is not None:
                alarm.cancel()
        if self._is_abandoned:
            raise ClientGone
        if self._error is not None and not self._outputs:
            raise self._error
        outputs, self._outputs, self._limit = self._outputs, [], MAX_PIECES
        return merge_outputs(outputs) if len(outputs) > 1 else outputs

    def stop(self, request_id: str, sample: int) -> None:
        """End a sample in the engine whose text has ended."""
        self._client.cancel(request_id, FinishReason.STOP, sample)

    def abandon(self) -> None:
        """The client has disconnected: cancel its requests."""
        self._is_abandoned = True
        self.cancel()
        self._wake()

    def cancel(self) -> None:
        """Cancel all requests that have not ended. The engine frees their blocks before its next step."""
        for request_id in self._num_open:
            self._client.cancel(request_id)
        self._num_open.clear()

    @property
    def _is_due(self) -> bool:
        """Should the task be woken now?"""
        has_output = self._outputs and not (self._wakes_late and self._num_open)
        return bool(has_output or self._is_abandoned or self._error)

    def _receive(self, news: News) -> None:
        """Called by the link for every token of every stream."""
        if isinstance(news, Tokens | Finished):
            if news.tokens:
                self._record_time(self._first_choices[news.request_id] + news.sample, len(news.tokens))
            self._outputs.append(news)
            if isinstance(news, Finished):
                self._close(news.request_id, 1)
        elif isinstance(news, Failed):
            self._error = news.error
            self._close(news.request_id, self._num_open.get(news.request_id, 0) if news.sample is None else 1)
        else:
            return  # Accepted
        if self._waiter is not None and self._is_due:
            self._wake()
        elif len(self._outputs) >= self._limit:
            self._outputs = merge_outputs(self._outputs)
            self._limit = len(self._outputs) + MAX_PIECES

    def _record_time(self, choice: int, num_tokens: int) -> None:
        now, before = time.monotonic(), self._last_token[choice]
        self._last_token[choice] = now
        if before:
            self._record_gap((now - before) / num_tokens, num_tokens)
        elif self.first_token is None:
            self.first_token = now

    def _close(self, request_id: str, num_samples: int) -> None:
        """Count samples that have ended, so that they are not cancelled later."""
        num_left = self._num_open.pop(request_id, 0) - num_samples
        if num_left > 0:
            self._num_open[request_id] = num_left

    def _wake(self) -> None:
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                waiter.set_result(None)


def merge_outputs(outputs: Sequence[Tokens | Finished]) -> list[Tokens | Finished]:
    """Join the Tokens of each sample into one, at the place of the first. A Finished stays as it is."""
    merged: list[Tokens | Finished] = []
    places: dict[tuple[str, int], int] = {}
    for output in outputs:
        if isinstance(output, Finished):
            merged.append(output)
            continue
        place = places.setdefault((output.request_id, output.sample), len(merged))
        if place == len(merged):
            merged.append(output)
            continue
        before = merged[place]
        assert isinstance(before, Tokens)
        merged[place] = Tokens(
            output.request_id,
            output.sample,
            before.tokens + output.tokens,
            before.logprobs + output.logprobs,
            max(before.num_hit, output.num_hit),
            before.prompt_logprobs + output.prompt_logprobs,
            before.num_forced + output.num_forced,
            before.drafts + output.drafts,
        )
    return merged
