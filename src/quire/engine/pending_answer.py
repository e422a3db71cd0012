"""One request of the Python API while it runs."""

from __future__ import annotations

import time

from quire.engine.messages import Accepted, Failed, News
from quire.text.answer_collector import AnswerCollector
from quire.text.answer_decoder import AnswerDecoder, total_usage
from quire.types.answer import Completion, Delta, Sample, Usage
from quire.types.chat import Choice, Ending, Event, Finish, ReasoningDelta, TextDelta, ToolDelta
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import TokenLogprobs

FINISH_REASONS = {
    Ending.STOP: FinishReason.STOP,
    Ending.STOP_TEXT: FinishReason.STOP,
    Ending.LENGTH: FinishReason.LENGTH,
    Ending.TOOL_CALLS: FinishReason.TOOL_CALLS,
    Ending.CANCELLED: FinishReason.CANCELLED,
}


class PendingAnswer:
    """Collects the engine's messages about a request: `take` returns deltas, `completion` the whole answer."""

    def __init__(self, request: GenerateRequest, decoder: AnswerDecoder) -> None:
        self.request = request
        self.error: QuireError | None = None
        self._decoder = decoder
        self._collector = AnswerCollector()
        self._logprobs: list[list[TokenLogprobs]] = [[] for _ in decoder.choices]
        self._began = self._latest = time.monotonic()
        self._first: float | None = None

    @property
    def is_over(self) -> bool:
        """Has every sample ended?"""
        return self.error is not None or self._decoder.is_over

    def take(self, news: News) -> Delta | None:
        """Decode a message; return what it adds to the answer. Raises the error of a request that failed."""
        if isinstance(news, Accepted):
            return None
        if isinstance(news, Failed):
            self.error = news.error
            raise news.error
        choice = self._decoder.choices[news.sample]
        if choice.is_over:
            return None
        events: list[Event] = []
        before = choice.num_tokens
        self._decoder.take(news, events)
        if not news.tokens and not isinstance(news, Finished):
            return None
        self._latest = time.monotonic()
        if self._first is None and news.tokens:
            self._first = self._latest
        self._collector.take(events)
        return self._delta(news, events, choice.num_tokens - before)

    def usage(self) -> Usage:
        """What it has cost so far."""
        first = (self._first or self._latest) - self._began
        return total_usage((self._decoder,), first, self._latest - self._began)

    def completion(self) -> Completion:
        """The whole answer, once it is over."""
        samples = [
            _sample(choice, logprobs)
            for choice, logprobs in zip(self._collector.choices(), self._logprobs, strict=True)
        ]
        prompt_logprobs = tuple(self._decoder.prompt_logprobs)
        return Completion(tuple(samples), self.request.prompt, self.usage(), prompt_logprobs, self._decoder.prompt.text)

    def _delta(self, news: Tokens | Finished, events: list[Event], count: int) -> Delta:
        """`count` of the tokens are part of the answer: those after a stop string are not."""
        tokens, logprobs = news.tokens[:count], news.logprobs[:count]
        self._logprobs[news.sample] += logprobs
        text, reasoning, calls, finish = "", "", [], None
        for event in events:
            match event:
                case TextDelta():
                    text += event.text
                case ReasoningDelta():
                    reasoning += event.text
                case ToolDelta() if event.id is not None or event.arguments:
                    calls.append(event)
                case Finish():
                    finish = FINISH_REASONS[event.ending]
        usage = None if finish is None else self.usage()
        return Delta(text, tokens, logprobs, finish, usage, news.sample, reasoning, tuple(calls))


def _sample(choice: Choice, logprobs: list[TokenLogprobs]) -> Sample:
    return Sample(
        choice.text,
        choice.tokens,
        FINISH_REASONS[choice.ending],
        tuple(logprobs),
        choice.reasoning or None,
        choice.tool_calls,
        choice.stop,
    )
