"""The requests of one exchange while they run: news come in, events go out, and at the end there is a bill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.engine.messages import Finished, Tokens
from quire.serve.generation.choice_decoder import ChoiceDecoder, OutputFormat
from quire.serve.generation.prompts import Prompt
from quire.types.answer import Usage
from quire.types.chat import Event, Finish, PromptEcho
from quire.types.request import GenerateRequest
from quire.types.step import TokenLogprobs

StopFound = Callable[[str, int], None]  # request id, sample


class _Echo:
    """A prompt that is to be told before its answers. Its log probabilities come in pieces, from the first sample."""

    def __init__(self, prompt: Prompt, is_scored: bool) -> None:
        self._num_wanted = len(prompt.tokens) - 1 if is_scored else 0
        self.logprobs: list[TokenLogprobs] = []
        self.held: list[Tokens | Finished] = []  # news of answers that came before it was complete

    def take(self, news: Tokens | Finished) -> bool:
        """Is the prompt complete now? If its first sample has ended, nothing more comes."""
        self.held.append(news)
        if isinstance(news, Tokens):
            self.logprobs += news.prompt_logprobs
        is_over = isinstance(news, Finished) and news.sample == 0
        return len(self.logprobs) >= self._num_wanted or is_over


class ResponseState:
    """Choice `i * n + s` is sample s of request i."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        requests: Sequence[GenerateRequest],
        output_format: OutputFormat,
        stop_found: StopFound,
    ) -> None:
        self._prompts = prompts
        self._manner = output_format
        self._stop_found = stop_found
        self._n = output_format.sampling.n
        self._places = {request.id: place for place, request in enumerate(requests)}
        self._scribes = [ChoiceDecoder(choice, output_format) for choice in range(len(requests) * self._n)]
        self._num_open = len(self._scribes)
        is_scored = output_format.sampling.prompt_logprobs is not None
        self._echoes = {place: _Echo(prompt, is_scored) for place, prompt in enumerate(prompts) if output_format.echo}
        self._hits = [0] * len(requests)
        self._began = time.monotonic()
        self.waited = 0.0  # in the queue
        self.num_forced = 0
        self.endings: list[str] = []

    @property
    def is_over(self) -> bool:
        """Have all choices ended?"""
        return not self._num_open

    def take(self, news: Sequence[Tokens | Finished]) -> list[Event]:
        """The events that these news are."""
        out: list[Event] = []
        for each in news:
            place = self._places[each.request_id]
            self.num_forced += each.num_forced
            if not each.sample and each.num_hit > self._hits[place]:
                self._hits[place] = each.num_hit  # that of the others is what they share with the first
            if place not in self._echoes:
                self._write(place, each, out)
            elif self._echoes[place].take(each):
                self._tell_prompt(place, out)
        return out

    def usage(self, first_token: float | None) -> Usage:
        """What it cost so far."""
        now = time.monotonic()
        return Usage(
            prompt=sum(len(prompt.tokens) for prompt in self._prompts),
            cached=sum(self._hits),
            output=sum(scribe.num_tokens for scribe in self._scribes),
            first_token_seconds=(first_token or now) - self._began,
            seconds=now - self._began,
            forced=self.num_forced,
            reasoning=sum(scribe.num_reasoning for scribe in self._scribes),
            kept=sum(max(0, p.num_kept - hit) for p, hit in zip(self._prompts, self._hits, strict=True)),
        )

    def _write(self, place: int, news: Tokens | Finished, out: list[Event]) -> None:
        scribe = self._scribes[place * self._n + news.sample]
        if type(news) is Finished:
            self.waited = max(self.waited, news.waited)
        if scribe.is_over:
            return
        scribe.take(news, out)
        if scribe.is_over:
            self._num_open -= 1
            last = out[-1]
            assert isinstance(last, Finish)
            self.endings.append(last.ending)
            if type(news) is not Finished:
                self._stop_found(news.request_id, news.sample)

    def _tell_prompt(self, place: int, out: list[Event]) -> None:
        echo, prompt = self._echoes.pop(place), self._prompts[place]
        scores = self._manner.prompt_scores(prompt.tokens, echo.logprobs)
        for sample in range(self._n):
            out.append(PromptEcho(place * self._n + sample, prompt.text, prompt.tokens, scores))
        for news in echo.held:
            self._write(place, news, out)
