"""The requests of one exchange while they run: output of the engine comes in, events go out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from quire.text.answer_decoder import AnswerDecoder, StopSample, total_usage
from quire.text.output_format import OutputFormat
from quire.text.prompts import Prompt
from quire.types.answer import Usage
from quire.types.chat import Event
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest


class ResponseState:
    """Choice `i * n + s` is sample s of request i."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        requests: Sequence[GenerateRequest],
        output_format: OutputFormat,
        stop_sample: StopSample,
    ) -> None:
        n = output_format.sampling.n
        self._decoders = {
            request.id: AnswerDecoder(prompt, output_format, stop_sample, place * n)
            for place, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        }
        self._began = time.monotonic()
        self.is_over = False  # all choices have ended

    @property
    def waited(self) -> float:
        """Seconds in the queue, of the request that waited longest."""
        return max(decoder.waited for decoder in self._decoders.values())

    @property
    def endings(self) -> list[str]:
        """Why each choice ended that has."""
        return [ending for decoder in self._decoders.values() for ending in decoder.endings]

    def ended_samples(self, request_id: str) -> set[int]:
        """The samples of a request whose text has ended."""
        choices = self._decoders[request_id].choices
        return {sample for sample, choice in enumerate(choices) if choice.is_over}

    def take(self, outputs: Sequence[Tokens | Finished]) -> list[Event]:
        """Return the events of these outputs."""
        events: list[Event] = []
        for output in outputs:
            decoder = self._decoders[output.request_id]
            decoder.take(output, events)
            if decoder.is_over:
                self.is_over = all(each.is_over for each in self._decoders.values())
        return events

    def usage(self, first_token: float | None) -> Usage:
        """What it has cost so far. `first_token` is the time at which the first token came."""
        now = time.monotonic()
        return total_usage(tuple(self._decoders.values()), (first_token or now) - self._began, now - self._began)
